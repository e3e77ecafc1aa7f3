"""How fast tables are read: no faster than a person has allowed."""

from __future__ import annotations

import time

_BURST_S = 0.5


class Pace:
    """A limit in bytes a second, None for none. What was not read in the last half second may be read at once."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self._rate = bytes_per_s
        self._due = 0.0

    def read(self, size: int) -> None:
        """Take note of bytes that were read."""
        if self._rate is not None:
            self._due = max(self._due, time.monotonic() - _BURST_S) + size / self._rate

    def rest(self) -> float:
        """Return how many seconds to wait before the next read."""
        return max(0.0, self._due - time.monotonic())
