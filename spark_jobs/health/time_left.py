"""Warnings in the log before a view stops because compaction or the end of tombstones has overtaken it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tailrace.spark_jobs.health.health import ViewHealth

_SHARES: Final = (0.5, 0.25, 0.0)
"""Shares of the limit below which the time left is warned of; the alerts for Prometheus have the first two."""


@dataclass(frozen=True, slots=True)
class StopsSoon:
    """A view that stops with `code` at a time in UTC if it does not advance; `level` rises from 1 to 3: it is over."""

    view: str
    code: str
    stops_at: str
    seconds_left: int
    level: int


class TimeLeft:
    """Remembers what has been warned of; memory is bounded by the views and the codes that stop them."""

    def __init__(self) -> None:
        self._levels: dict[tuple[str, str], int] = {}

    def news(self, views: Mapping[str, ViewHealth], now: float) -> Iterator[StopsSoon]:
        """Yield each view whose time left has fallen below a further share since the last call."""
        for name, view in views.items():
            limits = dict(view.limits)
            for code, stops_at in view.stops_at().items():
                left, limit = stops_at - now, limits.get(code, 0) / 1000
                level = sum(left < share * limit for share in _SHARES)
                if level > self._levels.get((name, code), 0):
                    at = datetime.fromtimestamp(stops_at, UTC).isoformat(timespec="seconds")
                    yield StopsSoon(name, code, at, round(left), level)
                self._levels[name, code] = level
