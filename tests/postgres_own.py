"""PostgreSQL 18 servers of a test's own, with settings that the shared one must not have, and standbys of them."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cdc.dev import postgres, unprivileged
from cdc.dev.server import Server, stop


@contextmanager
def own_postgres(settings: dict[str, str]) -> Iterator[Server]:
    """Start a server; it and its data are gone afterwards."""
    with _folder() as folder, _started(folder, settings) as server:
        yield server


@contextmanager
def standby_of(primary: Server, settings: dict[str, str]) -> Iterator[Server]:
    """Start a hot standby that streams from `primary`; it and its data are gone afterwards."""
    with _folder() as folder:
        data = folder / "data"
        assert primary.data is not None
        uid = primary.data.stat().st_uid
        folder.chmod(0o777)
        command = [*unprivileged.prefix(uid), str(postgres.binaries() / "pg_basebackup"), "-D", str(data), "-R"]
        command += ["-d", postgres.dsn(primary), "--checkpoint=fast", "-X", "stream", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        with _started(folder, settings) as server:
            yield server


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tailrace-pg-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def _started(folder: Path, settings: dict[str, str]) -> Iterator[Server]:
    started: list[Server] = []
    try:
        yield postgres.start(folder, None, {"fsync": "off", **settings}, started.append)
    finally:
        for server in started:
            stop(server)
