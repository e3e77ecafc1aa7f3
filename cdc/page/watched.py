"""Whether somebody looks at the page: the reading threads wait here while nobody does."""

from __future__ import annotations

import threading
import time
from typing import Final

_LOOKED_S: Final = 15.0
"""Time after the last request in which the page counts as looked at: a page without JavaScript reloads every 10 s."""


class Watched:
    """The time of the last request, and the end of the page. All methods may be called by any thread."""

    def __init__(self) -> None:
        self._looked_at = float("-inf")
        self._changed = threading.Condition()
        self._closed = threading.Event()

    def look(self) -> None:
        """Record that somebody looks at the page now."""
        with self._changed:
            self._looked_at = time.monotonic()
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits; the page is not served any more."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether the page has been closed."""
        return self._closed.is_set()

    @property
    def now(self) -> bool:
        """Whether somebody looks at the page."""
        return time.monotonic() - self._looked_at < _LOOKED_S

    def wait(self) -> bool:
        """Return True as soon as somebody looks, False if the page is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self.now)
        return not self.closed

    def rest(self, seconds: float) -> None:
        """Return after this time, or at once if the page is closed."""
        self._closed.wait(seconds)
