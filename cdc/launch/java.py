"""Find the JDKs of this machine, and the first one that fits a component.

Machines differ: one JDK for Spark, another for OpenSearch, none on PATH. So all known locations are searched, and the
error lists the JDKs found and the one to install. Callers are all parts that start a JVM: the jar fetch, the embedded
servers, the Spark jobs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tailrace.schemas.errors import ConfigError

# JDK versions of each component (components.md). Spark 4.1 calls APIs that later JDKs have removed, hence no 25.
SPARK = (17, 21)
KAFKA = range(17, 100)
OPENSEARCH = range(21, 100)
IVY = range(11, 100)

SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a fast start and little memory: OpenSearch takes 300 MB when idle.

Without them, indexing a document takes half the time.
"""

SMALL_SPARK = " ".join((*SMALL, "-XX:ReservedCodeCacheSize=240m"))
"""The same for `spark.driver.extraJavaOptions`, with a larger code cache.

The C1 compiler alone gets a code cache of 48 MB, which Spark fills in some minutes. From then on, code is evicted and
compiled again continuously.
"""

_JVM_FOLDER = Path("/usr/lib/jvm")

LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
"""The log4j2.properties of an embedded server: it logs to standard output, which is its log file."""


@dataclass(frozen=True, slots=True)
class Java:
    """One JDK: its folder and its major version."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        """The path of the `java` executable."""
        return self.home / "bin" / "java"


def find_java(component: str, accepts: Container[int]) -> Java:
    """Return the first JDK whose major version `component` accepts; ConfigError TR-600 if there is none."""
    found = list(installed())
    for java in found:
        if java.version in accepts:
            return java
    have = ", ".join(f"JDK {java.version} in {java.home}" for java in found) or "none"
    raise ConfigError(
        "TR-600",
        f"no Java for {component}: it needs a JDK {wanted(accepts)}",
        detail=f"Found: {have}. Looked at JAVA_HOME, PATH and {_JVM_FOLDER}.",
        hint=f"apt-get install openjdk-{smallest(accepts)}-jdk-headless  # beside the others; "
        "or set JAVA_HOME to such a JDK",
    )


def installed(environment: dict[str, str] | None = None, jvm_folder: Path = _JVM_FOLDER) -> Iterator[Java]:
    """Yield every JDK once: JAVA_HOME's, PATH's, then those of the distribution, by name."""
    seen: set[Path] = set()
    for home in _homes(dict(os.environ) if environment is None else environment, jvm_folder):
        # Distributions link one JDK under several names.
        home = home.resolve()
        if home in seen or not (home / "bin" / "java").is_file():
            continue
        seen.add(home)
        version = _version(home)
        if version is not None:
            yield Java(home, version)


def wanted(accepts: Container[int]) -> str:
    """Return a set of versions as text: `17 or 21`, `21 or later`."""
    if isinstance(accepts, range):
        return f"{accepts.start} or later"
    return " or ".join(str(version) for version in _numbers(accepts))


def smallest(accepts: Container[int]) -> int:
    """Return the oldest accepted version: the one that distributions are most likely to have."""
    return min(_numbers(accepts))


def major_version(version: str) -> int | None:
    """Return the major version of a version string: 17 of `17.0.15`, 8 of `1.8.0_402`, 25 of `25-ea`."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else None


def _numbers(accepts: Container[int]) -> Iterable[int]:
    return (version for version in range(100) if version in accepts)


def _homes(environment: dict[str, str], jvm_folder: Path) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        # /usr/bin/java is a link to a link to HOME/bin/java.
        yield Path(on_path).resolve().parent.parent
    if jvm_folder.is_dir():
        yield from sorted(jvm_folder.iterdir())


def _version(home: Path) -> int | None:
    """Return the major version from the `release` file, else from the JVM itself (old JREs lack the file)."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    if match is None:
        try:
            said = subprocess.run(
                [str(home / "bin" / "java"), "-version"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            ).stderr
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = re.search(r'version "([^"]+)"', said)
    return major_version(match[1]) if match else None
