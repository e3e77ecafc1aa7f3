"""How long until the server gives the slot up: what is left of `max_slot_wal_keep_size`, and how fast it goes."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

from tailrace.cdc.postgres.slot import Slot

_SAMPLES: Final = 120
"""Bounds the history: ten minutes of a look every five seconds."""

_LEAST_S: Final = 60.0
"""A shorter history is no trend: the slot moves in steps, at checkpoints and every 15 s."""


class Growth:
    """How fast the WAL that is kept for the slot has grown of late."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    def add(self, at: float, retained: int) -> None:
        """Note what is kept at a time in seconds."""
        self._samples.append((at, retained))

    def rate(self) -> float | None:
        """Return bytes a second, negative when it shrinks; None as long as the history says too little."""
        if len(self._samples) < 2:
            return None
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return (last - first) / (ended - began) if ended - began >= _LEAST_S else None


def seconds_to_full(safe_wal_size: int | None, rate: float | None) -> float | None:
    """Return how long `safe_wal_size` bytes last at `rate` bytes a second; None without a limit or without growth."""
    if safe_wal_size is None or rate is None or rate <= 0:
        return None
    return max(0, safe_wal_size) / rate


class Level(IntEnum):
    """How near the slot is to being lost."""

    SAFE = 0
    NOTICE = 1
    WARNING = 2
    DANGER = 3


_LEVELS: Final = ((Level.DANGER, 0.9, 3600.0), (Level.WARNING, 0.75, 4 * 3600.0), (Level.NOTICE, 0.5, 24 * 3600.0))
"""From which part of the limit, and from how many seconds before it, a level holds."""


def level_of(slot: Slot, retained: int, left_s: float | None) -> Level:
    """Judge a slot by what it holds and by the forecast; without a limit it is never lost."""
    if slot.wal_status in ("unreserved", "lost"):
        return Level.DANGER
    if slot.safe_wal_size is None:
        return Level.SAFE
    limit = retained + max(0, slot.safe_wal_size)
    part = retained / limit if limit else 1.0
    for level, least_part, most_s in _LEVELS:
        if part >= least_part or (left_s is not None and left_s < most_s):
            return level
    return Level.SAFE


class Alarm:
    """Says when a level is worth a line in the log: when it rises, when it stays, when it has been low for a while."""

    def __init__(self) -> None:
        self._said = Level.SAFE
        self._said_at = 0.0
        self._high_at = 0.0

    def speaks(self, now: float, level: Level) -> bool:
        """Say whether to speak of `level` now (seconds)."""
        if level >= self._said:
            self._high_at = now
        risen = level > self._said
        again = level == self._said and level > Level.SAFE and now - self._said_at >= _AGAIN_S[level]
        # not at each step of a value that goes up and down around a bound
        fallen = level < self._said and now - self._high_at >= _LOW_S
        if risen or again or fallen:
            self._said, self._said_at, self._high_at = level, now, now
            return True
        return False


_AGAIN_S: Final = {Level.NOTICE: 6 * 3600.0, Level.WARNING: 3600.0, Level.DANGER: 300.0}
_LOW_S: Final = 120.0
