"""Run our programs in forked processes: importing them takes a CPU second, and tests start hundreds.

Each is forked from one process that has imported the modules already, and has done nothing else:
https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods ("forkserver").
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tailrace.cdc.cli.main",
        "tailrace.cdc.health.health",
        "tailrace.cdc.daemon.http",
        "tailrace.cdc.daemon.http_routes",
        "tailrace.cdc.daemon.log",
        "tailrace.cdc.daemon.notify",
        "tailrace.cdc.operations.verify",
        "tailrace.cdc.daemon.service",
        "tailrace.cdc.daemon.slot_watch",
        "tailrace.schemas.config.file",
    ]
)

# an exit code can be read only once, and `start` reads those of all processes that have ended
_LOCK = threading.Lock()


class Forked:
    """A module's `program(*arguments)` as a process, with what tests use of `subprocess.Popen`."""

    def __init__(
        self, program: Callable[..., None], *arguments: object, stdout: Path, stderr: Path, cwd: Path | None = None
    ) -> None:
        where = (stdout, stderr, dict(os.environ), cwd or Path.cwd())
        self._process = _CONTEXT.Process(target=_run, args=(where, program, arguments), daemon=True)
        for path in {stdout, stderr}:
            path.touch()
        with _LOCK:
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with _LOCK:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; `subprocess.TimeoutExpired` after `timeout` seconds."""
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal if it still runs."""
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.send_signal(signal.SIGKILL)


def _run(
    where: tuple[Path, Path, dict[str, str], Path], program: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    stdout, stderr, environment, cwd = where
    for path, stream in ((stdout, sys.stdout), (stderr, sys.stderr)):
        with path.open("a") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    program(*arguments)
