"""Who follows a view: a file lock that the kernel releases however its process ends, and how the last one ended.

It covers the processes of one host that share the folder of the leases. On another host, ask the views job over HTTP.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self

import orjson

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError
from tailrace.sinks.target.lease import lease_folder

FollowerState = Literal["running", "stopped", "failed", "killed"]

_MOST: Final = 64 * 1024
"""Maximum bytes of a file: a message is much shorter."""


@dataclass(frozen=True, slots=True)
class Follower:
    """The newest process that follows a view, or did; `since` is when it entered `state`, in UTC.

    A killed one has recorded no end: `since` is when it started. `code` and `message` are of the error of a failed
    one.
    """

    state: FollowerState
    since: str
    host: str
    pid: int
    code: str | None = None
    message: str | None = None

    @property
    def needs_a_person(self) -> bool:
        """Whether nobody has stopped it, and it does not run."""
        return self.state in ("failed", "killed")

    @property
    def not_followed(self) -> str | None:
        """Why nobody follows the view, in words; None if this process does."""
        since = self.since.replace("T", " ").replace("+00:00", " UTC")
        process = f"`tailrace views follow` (process {self.pid} on {self.host})"
        if self.state == "running":
            return None
        if self.state == "stopped":
            return f"not followed: {process} was stopped at {since}"
        if self.state == "failed":
            why = " ".join(each for each in (self.code, self.message) if each)
            return f"NOT FOLLOWED: {process} failed at {since}: {why}"
        return f"NOT FOLLOWED: {process}, started at {since}, ended without reporting why (killed?)"

    def to_json(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        return cls(**{name: value.get(name) for name in cls.__dataclass_fields__})


@contextmanager
def following(config: Config, views: Iterable[str]) -> Iterator[None]:
    """Record for the block that this process follows the views, and after it why it does not any more.

    If the folder cannot be written, nothing is recorded: the leases and the catalog need it, and report it.
    """
    with ExitStack() as opened:
        files: list[BinaryIO] = []
        with suppress(OSError):
            files += [opened.enter_context(_locked(_path(config, view))) for view in views]
        _write(files, "running")
        try:
            yield
        except TailraceError as error:
            _write(files, "failed", error.code, error.message)
            raise
        except Exception as error:
            _write(files, "failed", message=type(error).__name__)
            raise
        _write(files, "stopped")


def follower(config: Config, view: str) -> Follower | None:
    """Return the newest process that follows a view on this host, or did; None if there was none, or it is unknown."""
    try:
        with open(_path(config, view), "rb") as file:
            found = Follower.from_json(file.read(_MOST))
            # a follower takes the lock before it writes: one that starts now has either, or is not there yet
            runs = not _free(file)
    except (OSError, ValueError, TypeError):
        return None
    if runs:
        return found
    return found if found.state != "running" else replace(found, state="killed")


def _path(config: Config, view: str) -> Path:
    return lease_folder(config) / f"{config.kafka.prefix}.{view}.follower"


@contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    path.parent.mkdir(parents=True, exist_ok=True)
    # append mode makes no second file and leaves what is there until we have the lock
    with open(path, "a+b") as file:
        # Two processes may follow a view in turn, by its lease; a reader has the exclusive lock for a moment only.
        fcntl.flock(file.fileno(), fcntl.LOCK_SH)
        yield file  # closing the file releases the lock


def _free(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(
    files: Iterable[BinaryIO], state: FollowerState, code: str | None = None, message: str | None = None
) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = Follower(state, now, socket.gethostname(), os.getpid(), code, message)
    for file in files:
        file.truncate(0)
        file.write(record.to_json())
        file.flush()
