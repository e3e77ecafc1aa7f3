"""Runs the daemon and restarts it whenever it ends, as a service manager does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.daemon import main
from tests.support.daemon import ROOT
from tests.support.forked import Forked

_AGAIN_S = 0.2
_PASSING = (4, 5)
"""Exit codes after which a service manager restarts: the source or the sink was not reachable."""


class Supervisor:
    """Runs one life of the daemon after the other; each of the first lives ends at its point in `deaths`."""

    def __init__(
        self, config: Path, deaths: Sequence[str], environment: Mapping[str, str], more: Sequence[str] = ()
    ) -> None:
        self.log = config.parent / "run.log"
        self.died: Counter[str] = Counter()
        self.unexpected: list[str] = []
        self.restarts = 0
        self._config = config
        self._deaths = list(deaths)
        self._environment = environment
        self._more = more
        self._armed = ""
        self._paused = False
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._process = self._start()
        self._thread = threading.Thread(target=self._keep, name="supervisor")
        self._thread.start()

    def _start(self) -> Forked | subprocess.Popen[bytes]:
        self._armed = self._deaths.pop(0) if self._deaths else ""
        arguments = [str(self._config), *([self._armed] if self._armed else []), *self._more]
        with self.log.open("a") as log:
            log.write(f"-- a life that ends at {self._armed or 'no point'}\n")
            log.flush()
            if not self._environment:
                return Forked(main, arguments, stdout=self.log, stderr=self.log)
            # it may preload a library, which works only when a program starts
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.daemon", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self._environment},
            )

    def _keep(self) -> None:
        while True:
            code = self._process.wait()
            if code == -signal.SIGKILL and self._armed:
                self.died[self._armed.rpartition(":")[0]] += 1
            elif code not in (-signal.SIGKILL, *_PASSING) and not self._ending.is_set():
                self.unexpected.append(f"the daemon ended with exit code {code}")
            if self._ending.is_set() or self._ending.wait(_AGAIN_S):
                return
            with self._lock:
                self.restarts += 1
                self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        with self._lock:
            self._armed = ""
            self._process.kill()

    def pause(self) -> None:
        with self._lock:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        with self._lock:
            self._process.send_signal(signal.SIGCONT)

    def die_at(self, deaths: Sequence[str]) -> None:
        """Make the next lives end at these points, and end the present one now."""
        with self._lock:
            self._deaths += deaths
        self.kill()

    def disarm(self) -> None:
        """Let no life end at a point from now on."""
        with self._lock:
            self._deaths = []
            if self._armed:
                self._armed = ""
                self._process.kill()

    def stop(self, seconds: float = 15) -> int:
        """Ask the daemon to stop; return its exit code."""
        self._ending.set()
        with self._lock:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        finally:
            self.end()

    def end(self) -> None:
        """Kill the daemon and stop restarting it."""
        self._ending.set()
        with self._lock:
            self._process.kill()
        self._thread.join()
