"""Rate limit of table reads, as configured by the user."""

from __future__ import annotations

import time

_BURST_S = 0.5


class Pace:
    """A limit in bytes per second, None for no limit. Unused bytes of the last 0.5 s may be read at once."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self._rate = bytes_per_s
        self._due = 0.0

    def read(self, size: int) -> None:
        """Record `size` bytes that were read."""
        if self._rate is not None:
            self._due = max(self._due, time.monotonic() - _BURST_S) + size / self._rate

    def rest(self) -> float:
        """Return the number of seconds to wait before the next read."""
        return max(0.0, self._due - time.monotonic())
