"""Lease: a file lock that admits one writer per view, and detects that another process has held it.

`follow` takes the lease for each batch of a view, `rebuild` for its last catch-up and the swap. If another process
has held it since (`changed`), the new holder must read the applied cut from the target again, because the live
generation may have changed. So a rebuild during a running follow is safe, and follow continues with the new generation.

The lease covers all processes on one host that share the folder, also after `kill -9`: the kernel releases the lock.
It does not cover writers on several hosts. The SQLite catalog is limited to one host for the same reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tailrace.schemas.config.model import Config

_POLL_S: Final = 0.02


def lease_folder(config: Config) -> Path:
    """Return the folder of this pipeline's leases.

    It is beside the SQLite catalog if there is one, so that all writers of the catalog use the same lock, whatever
    their user. Otherwise it is in the user's state folder (XDG_STATE_HOME).
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
    """The lock of one name; `changed`: at the last acquisition, the previous holder was not this object."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.lease"
        self._token = uuid.uuid4().bytes
        self._holder: int | None = None
        self.changed = True

    @property
    def was_taken(self) -> bool:
        """True if another holder has had the lease since we last did. Takes no lock."""
        return self._path.exists() and self._path.read_bytes() != self._token

    @contextmanager
    def held(self, wait_s: float) -> Iterator[bool]:
        """Hold the lease for the block; yield False if another holder keeps it for more than `wait_s` seconds.

        A thread that already holds it by this object holds it on, and `changed` stays as it is.
        """
        if self._holder == threading.get_ident():
            yield True
            return
        # Append mode keeps the last holder's token until we hold the lock, and never makes a second file.
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
            self._holder = threading.get_ident()
            try:
                yield True  # closing the file releases the lock
            finally:
                self._holder = None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
