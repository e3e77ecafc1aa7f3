"""The last hour of the daemon's measurements, one sample every five seconds. No I/O here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tailrace.cdc.health.health import Health

EVERY_S: Final = 5.0
_SAMPLES: Final = 720
"""Maximum number of samples: one hour."""

_RATE_S: Final = 10.0
"""Minimum time over which a present rate is measured, in seconds."""

_WINDOWS_S: Final = (300.0, 900.0, 3600.0)
_MOST_BUCKETS: Final = 180


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements at `at` (seconds since 1970); LSNs and times (s) are None while unknown.

    `records` and `transactions` count what this process has committed to Kafka since its start. `sent_lsn` is that of
    the slot's walsender, `views_lsn` that of the oldest view.
    """

    at: float
    records: int = 0
    transactions: int = 0
    wal_lsn: int | None = None
    confirmed_lsn: int | None = None
    sent_lsn: int | None = None
    flushed_lsn: int | None = None
    views_lsn: int | None = None
    lag_s: float | None = None
    delivery_s: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The present window of one measurement: equal buckets, oldest first; None without a sample."""

    window_s: float
    values: tuple[float | None, ...]


def measured(health: Health, views_lsn: int | None, now: float) -> Sample:
    """Return a sample of the daemon's health."""
    source, record = health.source, health.record
    return Sample(
        now,
        sum(dict(health.records).values()),
        health.kafka_transactions,
        source.wal_lsn if source else None,
        source.slot.confirmed_flush_lsn if source and source.slot else None,
        source.sent_lsn if source else None,
        record.here.flushed_lsn if record else None,
        views_lsn,
        health.lag_seconds(),
        health.delivery_s,
    )


class History:
    """The samples of the last hour; one thread adds to it and reads it."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)

    def add(self, sample: Sample) -> None:
        """Append a sample; the oldest one is dropped."""
        self._samples.append(sample)

    def rate(self, value: Callable[[Sample], float | None]) -> float | None:
        """Return the present growth of `value` per second; None while it is unknown."""
        if not self._samples:
            return None
        newest = self._samples[-1]
        before = next((each for each in reversed(self._samples) if newest.at - each.at >= _RATE_S), self._samples[0])
        now, then = value(newest), value(before)
        if now is None or then is None or newest.at <= before.at:
            return None
        return max(0.0, (now - then) / (newest.at - before.at))

    def maxima(self, value: Callable[[Sample], float | None], now: float) -> Series:
        """Return the maximum of `value` in each bucket."""
        return self._series([(each.at, value(each)) for each in self._samples], now)

    def rates(self, value: Callable[[Sample], float], now: float) -> Series:
        """Return the growth of `value` per second in each bucket: the highest between two samples."""
        grown = [
            (late.at, max(0.0, (value(late) - value(early)) / (late.at - early.at)))
            for early, late in pairwise(self._samples)
            if late.at > early.at
        ]
        return self._series(grown, now)

    def _series(self, found: Sequence[tuple[float, float | None]], now: float) -> Series:
        age_s = now - self._samples[0].at if self._samples else 0.0
        window_s = next((each for each in _WINDOWS_S if age_s <= each), _WINDOWS_S[-1])
        count = min(_MOST_BUCKETS, round(window_s / EVERY_S))
        values: list[float | None] = [None] * count
        for at, value in found:
            n = count - 1 - int((now - at) * count / window_s)
            if 0 <= n < count and value is not None:
                values[n] = max(value, values[n] or 0.0)
        return Series(window_s, tuple(values))
