"""Forecast of the slot's loss: the unused part of `max_slot_wal_keep_size` and its rate of use."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

from tailrace.cdc.postgres.slot import Slot

_SAMPLES: Final = 120
"""Maximum length of the history: ten minutes with a sample every five seconds."""

_LEAST_S: Final = 60.0
"""Minimum duration of the history for a trend: the slot moves in steps, at checkpoints and every 15 s."""


class Growth:
    """Recent growth rate of the WAL that the server retains for the slot."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def add(self, at: float, retained: int) -> None:
        """Record the retained bytes at a time in seconds."""
        self._samples.append((at, retained))

    def rate(self) -> float | None:
        """Return the growth in bytes per second, negative if it shrinks; None while the history is too short."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended - began >= _LEAST_S else None


def seconds_to_full(safe_wal_size: int | None, rate: float | None) -> float | None:
    """Return the seconds that `safe_wal_size` bytes last at `rate` bytes/s; None without limit or growth."""
    if safe_wal_size is None or rate is None or rate <= 0:
        return None
    return max(0, safe_wal_size) / rate


class Level(IntEnum):
    """Severity: the risk that the slot is lost."""

    SAFE = 0
    NOTICE = 1
    WARNING = 2
    DANGER = 3


_LEVELS: Final = ((Level.DANGER, 0.9, 3600.0), (Level.WARNING, 0.75, 4 * 3600.0), (Level.NOTICE, 0.5, 24 * 3600.0))
"""For each level, the minimum used fraction of the limit and the maximum seconds until the limit."""


_LEAST_PART: Final = 0.1
"""Minimum used fraction of the limit for a forecast: below it, a single burst of changes would be an alarm."""


def level_of(slot: Slot, retained: int, left_s: float | None) -> Level:
    """Return the level of a slot from its retained WAL and the forecast; without a limit it is never lost."""
    if slot.wal_status in ("unreserved", "lost"):
        return Level.DANGER
    if slot.safe_wal_size is None:
        return Level.SAFE
    limit = retained + max(0, slot.safe_wal_size)
    part = retained / limit if limit else 1.0
    for level, least_part, most_s in _LEVELS:
        if part >= least_part or (part >= _LEAST_PART and left_s is not None and left_s < most_s):
            return level
    return Level.SAFE


class Alarm:
    """Decides when to log a level: when it rises, again while it stays, after it was low for a while."""

    def __init__(self) -> None:
        self._said = Level.SAFE
        self._said_at = 0.0
        self._high_at = 0.0

    def speaks(self, now: float, level: Level) -> bool:
        """Return whether to log `level` at time `now` (seconds)."""
        if level >= self._said:
            self._high_at = now
        risen = level > self._said
        again = level == self._said and level > Level.SAFE and now - self._said_at >= _AGAIN_S[level]
        # avoid a log event each time that a value oscillates around a bound
        fallen = level < self._said and now - self._high_at >= _LOW_S
        if risen or again or fallen:
            self._said, self._said_at, self._high_at = level, now, now
            return True
        return False


_AGAIN_S: Final = {Level.NOTICE: 6 * 3600.0, Level.WARNING: 3600.0, Level.DANGER: 300.0}
_LOW_S: Final = 120.0
