"""PostgreSQL 18 servers for one test, with settings that the shared server must not have."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import Server, stop


@contextmanager
def own_postgres(settings: dict[str, str]) -> Iterator[Server]:
    """Yield a new server; it and its data are removed after the block."""
    with _folder() as folder, _started(folder, settings) as server:
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
