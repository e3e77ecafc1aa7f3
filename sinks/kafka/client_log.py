"""Logger for librdkafka: warnings and errors, at most one line per kind in ten seconds, with a count.

A client that has `LOGGER` as its `logger` option calls it when it is polled. librdkafka's default, plain text on
standard error, does not fit a log of JSON lines, and reports a broker that is down hundreds of times a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_EVERY_S: Final = 10.0

_PASSING: Final = frozenset({"FAIL", "ERROR", "GETPID"})
"""Kinds for a failed connection or coordinator, often transient: one address of several, a broker that (re)starts."""

_PASSES_WITHIN_S: Final = 2.0
"""A transient kind is logged only after it has lasted this long."""


@dataclass(slots=True)
class _Kind:
    """State of one kind; times are from the throttle's clock.

    `began_at`: start of the present series, which a pause of ten seconds ends. `seen_at`: last record. `said_at`: last
    line. `left_out`: records since that line.
    """

    began_at: float
    seen_at: float
    said_at: float | None = None
    left_out: int = 0


class Throttle(logging.Filter):
    """Logging filter: limits the rate per kind; `lines` counts the kind's records since its last line.

    Memory: one entry per librdkafka log kind.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record; reformat librdkafka's own ("%s [%s] %s")."""
        if not isinstance(record.args, tuple) or len(record.args) != 3:
            return True
        kind, client, text = map(str, record.args)
        lines = self._lines(kind)
        if lines:
            record.msg, record.args = "Kafka client: %s", (text,)
            record.kind, record.client, record.lines = kind, client, lines
        return lines > 0

    def _lines(self, name: str) -> int:
        now = self._clock()
        with self._lock:
            kind = self._kinds.get(name)
            if kind is None or now - kind.seen_at >= _EVERY_S:
                kind = self._kinds[name] = _Kind(now, now, left_out=kind.left_out if kind and kind.said_at else 0)
            kind.seen_at = now
            kind.left_out += 1
            if name in _PASSING and now - kind.began_at < _PASSES_WITHIN_S:
                return 0
            if kind.said_at is not None and now - kind.said_at < _EVERY_S:
                return 0
            lines, kind.left_out, kind.said_at = kind.left_out, 0, now
            return lines


LOGGER: Final = logging.getLogger("tailrace.librdkafka")
LOGGER.setLevel(logging.WARNING)
LOGGER.addFilter(Throttle())
