"""Findings of `tailrace check` on the page: looked for in a thread of their own, only while somebody looks.

One check at a time, at most one a minute, and in at most a twentieth of the time. Memory: the findings of the newest
check.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tailrace.cdc.check.finding import Finding
from tailrace.cdc.check.run_check import Part, check
from tailrace.cdc.page.watched import Watched
from tailrace.schemas.config.model import Config

log = structlog.get_logger()

PARTS: Final[tuple[Part, ...]] = ("source", "kafka")
"""The parts that the page shows: the views' part starts a JVM."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check that ended at `at` (seconds since 1970), and its duration in seconds."""

    at: float
    seconds: float
    findings: Sequence[Finding]


class Checks:
    """Owner of the newest check. `current` may be read by any thread; None before the first check has ended."""

    least_rest_s = 60.0
    """Minimum pause between two checks, in seconds."""
    rest_share = 19.0
    """Minimum pause after a check, as a multiple of its duration."""

    def __init__(self, config: Config, watched: Watched, on_checked: Callable[[], None]) -> None:
        """`on_checked` is called, by the thread of the checks, when `current` is new."""
        self._config = config
        self._watched = watched
        self._on_checked = on_checked
        self.current: Checked | None = None

    def start(self) -> None:
        """Begin to check while somebody looks."""
        threading.Thread(target=self._work, name="page-check", daemon=True).start()

    def rest_s(self, took_s: float) -> float:
        """Return the pause after a check that took this time, in seconds."""
        return max(self.least_rest_s, self.rest_share * took_s)

    def _work(self) -> None:
        while self._watched.wait():
            began = time.monotonic()
            try:
                findings = check(self._config, PARTS, inside=True)
                self.current = Checked(time.time(), time.monotonic() - began, findings)
                self._on_checked()
            except Exception:
                log.exception("check of the status page failed; it continues")
            self._watched.rest(self.rest_s(time.monotonic() - began))
