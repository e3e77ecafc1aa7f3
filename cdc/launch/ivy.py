"""Fetch jars with the Ivy inside pyspark: with checksums, resumable, without Maven.

The repository is Ivy's default public one, or the mirror in the user's Maven settings; this module chooses no other.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from tailrace.cdc.launch import java
from tailrace.schemas.errors import ConfigError

# Ivy's pattern for file names; the organisation distinguishes artifacts with the same name.
_PATTERN = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"

_LOCK_PATTERN = "[organisation]/[artifact]/[revision]/[ext]/[type](@[classifier])"

_PROCESSES = 4
"""Most of the time of one Ivy is that of a small request and its answer."""


def retrieve(
    modules: Iterable[str], *, transitive: bool, cache: Path, into: Path, progress: Callable[[str], None]
) -> None:
    """Copy the jars of `modules` (`organisation:name:revision`) into a folder, from cache or network.

    With a suffix such as `:tar.gz:classifier`, that artifact is copied instead of the jar. Only with `transitive` are
    their POMs read, and the jars of their dependencies copied, too. When this returns, every file has been compared
    with the repository's checksum. Raises ConfigError TR-601 if a file is not available.
    """
    if transitive:
        _run(modules, True, cache, f"{into}/{_PATTERN}", progress)
        return
    of_module: dict[str, list[str]] = {}
    for module in modules:
        of_module.setdefault(":".join(module.split(":")[:3]), []).append(module)
    groups = list(of_module.values())
    shares = [[each for group in groups[number::_PROCESSES] for each in group] for number in range(_PROCESSES)]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        # a cache for each: Ivy's does not support two writers
        running = [
            pool.submit(_run, share, False, cache / str(number), f"{into}/{_PATTERN}", progress)
            for number, share in enumerate(shares)
            if share
        ]
    for each in running:
        each.result()


def file_name(module: str) -> str:
    """Return the name that `retrieve` gives to the file of a module."""
    return f"{module.partition(':')[0]}_{short_name(module)}"


def short_name(module: str) -> str:
    """Return the name of a module's file in the repository, with which `retrieve` calls `progress`."""
    _, name, revision, *archive = module.split(":")
    kind, classifier = archive or ("jar", "")
    return f"{name}-{revision}{classifier and '-'}{classifier}.{kind}"


def with_dependencies(modules: Iterable[str], cache: Path, *, transitive: bool) -> dict[str, Path]:
    """Return the jars of `modules` and, with `transitive`, of their dependencies by module; they are below `cache`."""
    into = cache / "found"
    _run(modules, transitive, cache, f"{into}/{_LOCK_PATTERN}", lambda _: None)
    found: dict[str, Path] = {}
    for path in sorted(path for path in into.rglob("*") if path.is_file()):
        organisation, name, revision, kind, file = path.relative_to(into).parts
        classifier = file.partition("@")[2]
        found[":".join([organisation, name, revision, *([kind, classifier] if classifier else [])])] = path
    return found


def _run(modules: Iterable[str], transitive: bool, cache: Path, pattern: str, progress: Callable[[str], None]) -> None:
    executable = java.find_java("the jar fetch", java.IVY).executable
    with tempfile.TemporaryDirectory(prefix="tailrace-ivy-") as folder:
        settings, wanted = Path(folder, "settings.xml"), Path(folder, "ivy.xml")
        settings.write_text(settings_xml(mirror(), poms=transitive), encoding="utf-8")
        wanted.write_text(module_xml(modules, transitive=transitive), encoding="utf-8")
        command = [
            str(executable),
            *proxy_options(dict(os.environ)),
            "-cp",
            str(_ivy_jar()),
            "org.apache.ivy.Main",
        ]
        command += [
            "-settings",
            str(settings),
            "-cache",
            str(cache),
            "-ivy",
            str(wanted),
            "-confs",
            "default",
        ]
        command += ["-m2compatible", "-types", "jar", "bundle", "tar.gz", "-retrieve", pattern]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                fetched = re.match(r"downloading .*/([^/ ]+) \.\.\.", line)
                if fetched:
                    progress(fetched[1])
        if process.returncode != 0:
            raise ConfigError(
                "TR-601",
                "jars could not be fetched",
                detail=f"Ivy ended with exit code {process.returncode}. " + _reason(lines),
                hint="Once the network is back, run the same command again; fetched files are reused. "
                "To use a mirror, name it in ~/.m2/settings.xml (mirrorOf central or *).",
            )


def settings_xml(root: str | None, *, poms: bool) -> str:
    """Return Ivy's settings: one resolver, for Ivy's public repository or for the mirror at `root`.

    Without `poms`, the descriptions of modules are not read: a module is its jar.
    """
    where = f" root={quoteattr(root)}" if root else ""
    return (
        '<ivysettings><settings defaultResolver="public"/>'
        f'<resolvers><ibiblio name="public" m2compatible="true" usepoms="{str(poms).lower()}"{where}/></resolvers>'
        "</ivysettings>\n"
    )


def module_xml(modules: Iterable[str], *, transitive: bool) -> str:
    """Return the Ivy file that lists these modules as dependencies."""
    archives: dict[tuple[str, ...], list[str]] = {}
    for module in modules:
        organisation, name, revision, *archive = module.split(":")
        kind, classifier = map(quoteattr, archive or ("jar", ""))
        of = f" m:classifier={classifier}" if archive else ""
        artifact = f"<artifact name={quoteattr(name)} type={kind} ext={kind}{of}/>"
        archives.setdefault((organisation, name, revision), []).append(artifact)
    # The mapping is default->default: `runtime` excludes the main jar.
    lines = [
        f"<dependency org={quoteattr(organisation)} name={quoteattr(name)} rev={quoteattr(revision)} "
        f'conf="default->default" transitive="{str(transitive).lower()}">{"".join(artifacts)}</dependency>'
        for (organisation, name, revision), artifacts in archives.items()
    ]
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="tailrace" module="jars"/>'
        '<configurations><conf name="default"/></configurations><dependencies>'
        + "".join(lines)
        + "</dependencies></ivy-module>\n"
    )


def mirror(settings: Path | None = None) -> str | None:
    """Return the mirror of the public repository from Maven's user settings, None if there is none.

    Raises ConfigError TR-612 if the settings cannot be read.
    """
    path = settings or Path.home() / ".m2" / "settings.xml"
    try:
        tree = ElementTree.parse(path)
    except FileNotFoundError:
        return None
    except (OSError, ElementTree.ParseError) as error:
        raise ConfigError("TR-612", f"cannot read the Maven settings {path}", detail=str(error)) from error
    for found in tree.iterfind(".//{*}mirrors/{*}mirror"):
        covers = {name.strip() for name in (found.findtext("{*}mirrorOf") or "").split(",")}
        if covers & {"*", "central", "external:*"} and "!central" not in covers:
            # Maven expands ${env.NAME}, so users write it.
            address = (found.findtext("{*}url") or "").strip()
            return re.sub(r"\$\{env\.(\w+)\}", lambda name: os.environ.get(name[1], ""), address) or None
    return None


def proxy_options(environment: dict[str, str]) -> list[str]:
    """Return the JVM options for the environment's proxy: Java does not read these variables."""
    options = []
    for scheme in ("http", "https"):
        address = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        parts = urlsplit(address or "")
        if parts.hostname:
            options += [f"-D{scheme}.proxyHost={parts.hostname}", f"-D{scheme}.proxyPort={parts.port or 80}"]
    return options


def _ivy_jar() -> Path:
    # Found without importing pyspark, which takes half a second.
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted(Path(location, "jars").glob("ivy-*.jar")):
            return jar
    raise ConfigError("TR-602", "pyspark is not installed", hint="pip install 'tailrace[dev]'")


def _reason(lines: list[str]) -> str:
    reasons = [line.strip(": \t") for line in lines if re.search(r"not found|FAILED|WARN|ERROR|Exception", line)]
    return "; ".join(dict.fromkeys(line for line in reasons if line))[:600] or "\n".join(lines[-3:])
