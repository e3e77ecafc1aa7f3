"""What librdkafka logs, through Python's logging: warnings and worse, a line per kind and ten seconds, with a count.

A client that is handed `LOGGER` calls it when it is polled. Its own form on standard error would not fit into a log of
JSON lines, and a broker that is down would be said hundreds of times a minute.
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
"""Kinds that say that a connection or a coordinator failed: one address of several, a broker that (re)starts."""

_PASSES_WITHIN_S: Final = 2.0
"""Before such a kind has lasted for so long there is no line."""


@dataclass(slots=True)
class _Kind:
    """Since when it has come without a pause of ten seconds, when it came last, and what was left out since a line."""

    began_at: float
    seen_at: float
    said_at: float | None = None
    left_out: int = 0


class Throttle(logging.Filter):
    """Passes records that deserve a line; `lines` says how many of the kind there were since the line before.

    Memory: one entry for each kind that librdkafka has.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to log; make a record of librdkafka's ("%s [%s] %s") readable."""
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
