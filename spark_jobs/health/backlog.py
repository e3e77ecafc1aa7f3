"""Records on its topics that a view lacks: how many, and since when."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tailrace.schemas.lag import age, lacking, missing_since
from tailrace.schemas.records.position import Cut

_SAMPLES: Final = 720
"""Maximum number of stored cuts per view, each with the offsets of the view's topics."""

_SILENT_S: Final = 20.0
"""After this time without a look at the topics, it is unknown whether the view has everything."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The cut that a view has applied, and a time (ms since 1970) at which its topics had no later record."""

    cut: Cut
    level_ms: int


@dataclass(frozen=True, slots=True)
class Lag:
    """Changes that a view lacks: age of the oldest in seconds, bytes of WAL, records; all 0 if there is none."""

    seconds: float = 0.0
    wal_bytes: int = 0
    records: int = 0


class Backlog:
    """The newest cuts of a view's topics. One thread calls `saw`; any thread may call `lag`."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics
        self._cuts: deque[tuple[Cut, float]] = deque()
        self._first: Cut | None = None
        self._newest: tuple[Cut, float] | None = None

    def saw(self, here: Cut, at: float, reached: Reached | None) -> None:
        """Record the topics' cut at time `at` (seconds since 1970); `reached` is what the view has applied."""
        own = replace(here, offsets={topic: here.offsets[topic] for topic in self._topics if topic in here.offsets})
        if self._newest is None:
            self._first = own
        self._newest = own, at
        while reached and self._cuts and not lacking(reached.cut, self._cuts[0][0], self._topics):
            self._cuts.popleft()
        last = self._cuts[-1] if self._cuts else None
        if last is None or last[0].offsets != own.offsets:
            if last is not None and len(self._cuts) >= _SAMPLES:
                # The lag must not become shorter: the last one has all later records, at its own earlier time.
                self._cuts[-1] = replace(own, commit_ts_us=last[0].commit_ts_us), last[1]
            else:
                self._cuts.append((own, at))

    def lag(self, reached: Reached | None, now: float) -> Lag | None:
        """Return what the view lacks; None while unknown: before its first position, and while Kafka is silent."""
        newest = self._newest
        if newest is None or reached is None:
            return None
        here, at = newest
        records = lacking(reached.cut, here, self._topics)
        if not records:
            return Lag() if now - at < _SILENT_S else None
        wal_bytes = max(0, here.flushed_lsn - reached.cut.flushed_lsn)
        return Lag(age(self._since(reached, newest), now), wal_bytes, records)

    def _since(self, reached: Reached, newest: tuple[Cut, float]) -> float:
        stored = (each for each in tuple(self._cuts) if lacking(reached.cut, each[0], self._topics))
        cut, at = next(stored, newest)
        if cut is self._first and reached.level_ms:
            return min(reached.level_ms / 1000, at)  # changes before the first look may be older than its newest one
        return missing_since(reached.cut, cut, at)
