"""Start servers that outlive this process, recognize them later, and end them and no other process.

A server is identified by its process id *and* its start time: ids are reused, and we must never end a foreign process.
This module does not know which servers there are.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tailrace.schemas.errors import ConfigError

# The child waits for a line before it becomes the server, so that a launcher that is killed before it has
# recorded the id leaves no unknown server. It is a grandchild, so it does not become a zombie of this process.
_LAUNCH = """
exec 3<&0
( read -r go <&3 || exit 0; exec 3<&-; exec "$@" </dev/null ) >>"$0" 2>&1 &
echo $!
"""

# Below Linux's range for outgoing connections (32768 and up): such a connection could take a port of that range
# between a stop and the next start.
_PORTS = range(20000, 32768)


@dataclass(frozen=True, slots=True)
class Process:
    """Identity of a process: id and start time (`started` is opaque, only for comparison)."""

    pid: int
    started: str


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    folder: Path,
    record: Callable[[Process], None],
    environment: Mapping[str, str] | None = None,
) -> Process:
    """Start a command detached, in its own session, with its output in `log` (the last run's in `log`.1).

    `record` is called with the process before the command runs: if it raises, the command does not start. Raises
    ConfigError TR-608 if the process could not be started.
    """
    if log.exists():
        log.replace(log.with_name(log.name + ".1"))
    shell = subprocess.Popen(
        ["/bin/sh", "-c", _LAUNCH, str(log), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    with shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        started = started_at(pid)
        if started is None:
            raise ConfigError("TR-608", f"{command[0]} could not be started", detail=f"See {log}.")
        process = Process(pid, started)
        record(process)
        shell.stdin.write(b"go\n")
    return process


def started_at(pid: int) -> str | None:
    """Return a process's start time as an opaque value to compare; None if the process no longer exists."""
    try:
        process = psutil.Process(pid)
        zombie = process.status() == psutil.STATUS_ZOMBIE
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists():
            return None if zombie else str(process.create_time())
        # A killed JVM looks like a zombie while some of its threads are still ending and hold its ports and locks.
        if zombie and len(os.listdir(f"/proc/{pid}/task")) <= 1:
            return None
        # Ticks since boot: in wall-clock time, the same moment changes when the clock is set.
        ticks = stat.read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None
    return f"{boot}/{ticks}"


def alive(process: Process) -> bool:
    """Return whether exactly this process still runs, not a later one with the same id."""
    return started_at(process.pid) == process.started


def end(process: Process, *, politely: signal.Signals = signal.SIGTERM, seconds: float = 20) -> None:
    """End exactly this process: a signal, up to `seconds` of waiting, then SIGKILL.

    No error if it has already ended. Raises ConfigError TR-614 if SIGKILL does not end it within 10 s.
    """
    for number, patience in ((politely, seconds), (signal.SIGKILL, 10.0)):
        if not alive(process):
            return
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not alive(process):
                return
            time.sleep(0.02)
    raise ConfigError(
        "TR-614",
        f"process {process.pid} does not end",
        detail="SIGKILL was sent 10 s ago; the process may be waiting for a disk.",
    )


def free_ports(wanted: Sequence[int | None], among: range = _PORTS) -> list[int]:
    """Return a free loopback port for each of `wanted`: that one if free, else another; all differ.

    Raises ConfigError TR-607 if there are not enough free ports.
    """
    held: list[socket.socket] = []
    try:
        ports: list[int] = []
        for port in wanted:
            others = random.sample(among, min(len(among), 500))
            candidates = others if port is None else [port, *others]
            # Held until all are chosen, and compared as well: with SO_REUSEADDR, one port can be bound twice.
            ports.append(next((c for c in candidates if c not in ports and _hold(c, held)), 0))
        if 0 in ports:
            raise ConfigError(
                "TR-607",
                f"no free port on 127.0.0.1 from {among.start} to {among.stop - 1}",
                hint=f"ss -ltnp 'sport >= :{among.start} and sport < :{among.stop}'  # shows which programs use them",
            )
        return ports
    finally:
        for each in held:
            each.close()


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port."""
    held: list[socket.socket] = []
    try:
        return _hold(port, held)
    finally:
        for each in held:
            each.close()


def wait_until(ready: Callable[[], bool], process: Process, seconds: float) -> bool:
    """Wait until `ready` returns True; False if the process ends or `seconds` pass before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ready():
            return True
        if not alive(process):
            return False
        time.sleep(0.05)
    return False


def listening(port: int) -> bool:
    """Return whether a process accepts connections on this loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tail(log: Path) -> str:
    """Return the lines of a log that explain its process's failure, for an error's detail."""
    try:
        return reason(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return f"(no log at {log})"


def start_hint(log: Path) -> str:
    """Return the hint for a server that did not start, from its log."""
    try:
        taken = re.search(r"[Aa]ddress already in use|BindException", log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        taken = None
    if taken:
        return f"Repeat the command, which picks a free port: another program took this one. Log: {log}"
    return f"See {log}."


def reason(output: str) -> str:
    """Return the first lines with an error, else the last lines. (Java prints stack traces below errors.)"""
    # PostgreSQL logs this for clients that connect too early.
    lines = [line for line in output.strip().splitlines() if "the database system is starting up" not in line]
    faults = [line for line in lines if re.search(r"\b(FATAL|PANIC|ERROR)\b|Exception\b", line)]
    return "\n".join(line[:300] for line in (faults[:3] or lines[-5:]))


def _hold(port: int, held: list[socket.socket]) -> bool:
    candidate = socket.socket()
    # As the servers do: connections that remain from before the stop do not block the port.
    candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        candidate.bind(("127.0.0.1", port))
    except OSError:
        candidate.close()
        return False
    held.append(candidate)
    return True
