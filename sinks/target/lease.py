"""One writer per view: a lock that one process holds while it writes, and the news that another one had it.

`follow` takes the lease for each batch of a view, `rebuild` for its last catch-up and the swap. Whoever gets it
after another process has had it (`changed`) must read the applied cut from the target again: the generation may be
another one by now. So a rebuild beside a running follow is safe, and follow goes on from the swapped generation.

What it covers: all processes on one host that share the folder, also after `kill -9` (the kernel lets go). What it
does not: writers on several hosts. The catalog on SQLite is for one host for the same reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tailrace.schemas.config.model import Config

_POLL_S: Final = 0.02


def lease_folder(config: Config) -> Path:
    """Return where this pipeline's leases are: beside the SQLite catalog if there is one.

    Whoever can write to that catalog meets the same lock, whatever user it runs as. Else under the user's state.
    """
    file = None if config.warehouse is None else config.warehouse.sqlite_file
    if file is not None:
        return Path(file).absolute().parent / "leases"
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    pipeline = hashlib.sha256(f"{config.kafka.bootstrap} {config.kafka.prefix}".encode()).hexdigest()[:16]
    return state / "tailrace" / "leases" / pipeline


def view_lease(config: Config, view: str) -> Lease:
    """Return the lease of a view's live generation."""
    return Lease(lease_folder(config), f"{config.kafka.prefix}.{view}")


class Lease:
    """The lock of one name; `changed` is whether another holder wrote since we last held it."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.lease"
        self._token = uuid.uuid4().bytes
        self.changed = True

    @property
    def was_taken(self) -> bool:
        """Whether another holder has had it since we last did; nobody is kept waiting by the question."""
        return self._path.exists() and self._path.read_bytes() != self._token

    @contextmanager
    def held(self, wait_s: float) -> Iterator[bool]:
        """Hold the lease for the block, or give False if another holder keeps it for longer than `wait_s`."""
        # Appending keeps the last holder's token until we are the holder, and never makes a second file.
        with open(self._path, "a+b") as file:
            deadline = time.monotonic() + wait_s
            while not _locked(file.fileno()):
                if time.monotonic() >= deadline:
                    yield False
                    return
                time.sleep(_POLL_S)
            file.seek(0)
            self.changed = file.read() != self._token
            file.truncate(0)
            file.write(self._token)
            file.flush()
            yield True  # closing the file lets go


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
