"""One embedded server: its record in the state file, and the check whether it can be reused."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from tailrace.cdc.dev.process import Process, alive, end, wait_until


@dataclass(frozen=True, slots=True)
class Server:
    """A process of ours in a state folder; `settings` are those that its start requested."""

    name: str
    process: Process
    log: Path
    data: Path | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    # The folder of PostgreSQL's Unix socket.
    socket: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for the state file."""
        return {
            "pid": self.process.pid,
            "started": self.process.started,
            "log": str(self.log),
            "data": str(self.data) if self.data else None,
            "ports": dict(self.ports),
            "settings": dict(self.settings),
            "socket": str(self.socket) if self.socket else None,
        }

    @classmethod
    def from_json(cls, name: str, kept: Mapping[str, Any]) -> Server:
        """Return the server from the form of `to_json`."""
        return cls(
            name,
            Process(int(kept["pid"]), str(kept["started"])),
            Path(kept["log"]),
            Path(kept["data"]) if kept["data"] else None,
            dict(kept["ports"]),
            dict(kept["settings"]),
            Path(kept["socket"]) if kept["socket"] else None,
        )


# Stores a server in the state file; called before the server runs.
Record = Callable[[Server], None]


def stop(server: Server) -> None:
    """End a server: a clean shutdown, then SIGKILL. No error if it has already ended."""
    # SIGTERM makes PostgreSQL wait for its clients to disconnect; SIGINT is its fast shutdown.
    if server.name == "postgres":
        end(server.process, politely=signal.SIGINT)
    else:
        # the first shutdown of a JVM writes an archive of its classes, which takes some seconds of a core
        end(server.process, politely=signal.SIGTERM, seconds=60)


def wanted_settings(old: Server | None, settings: Mapping[str, str] | None) -> dict[str, str]:
    """Return the settings to run with: the requested ones, or if None those of the last run."""
    if settings is not None:
        return dict(settings)
    return dict(old.settings) if old else {}


def reusable(
    old: Server | None, settings: Mapping[str, str], ready: Callable[[Server], bool], seconds: float
) -> TypeGuard[Server]:
    """Return whether a server runs with these settings and answers within `seconds`; if not, end it."""
    if old is None or not alive(old.process):
        return False
    # A server that was just killed counts as running until its last thread has ended, but it never becomes ready.
    if dict(old.settings) == dict(settings) and wait_until(lambda: ready(old), old.process, seconds):
        return True
    stop(old)
    return False
