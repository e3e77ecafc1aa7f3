"""Cuts as the jobs see them: which is newer, and how old the one is that a batch reads up to."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from schemas.closes import Closes
from schemas.config import Config
from schemas.progress import Cut, PositionRecord
from schemas.topics import Topics
from sinks.changes import Applied
from sinks.progress import PositionTail
from sinks.views_topic import now_ms

_ANSWER_S: Final = 10.0
"""How long a broker may take to give what it has."""


@dataclass(frozen=True, slots=True)
class SeenCut:
    """A state cut, and the last moment at which nothing was behind it; milliseconds since 1970, 0: not known."""

    cut: Cut
    level_ms: int


def advanced(applied: Applied, cut: Cut) -> bool:
    """Whether `cut` is newer than what is applied, and at least as new as a batch that was cut short."""
    if applied.unfinished is not None:
        return cut.order >= applied.unfinished.order
    return cut.order > applied.cut.order


class Cuts(Closes):
    """The newest state cut of the pipeline, from the end of the progress topic."""

    def __init__(self, config: Config) -> None:
        self._tail = PositionTail(config.kafka, Topics(config.kafka.prefix), config.source.slot)
        self._seen: SeenCut | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        self._tail.close()

    def newest(self, wait: float = 0.0) -> SeenCut | None:
        """Return the newest state cut, waiting up to `wait` seconds for news; None if there is none yet."""
        with self._lock:
            return self._see(self._tail.newest(wait))

    def wait(self) -> SeenCut:
        """Return the newest state cut that there is by now, or wait until there is one."""
        with self._lock:
            seen = self._see(self._tail.committed(_ANSWER_S))
        while seen is None:
            seen = self.newest(1.0)
        return seen

    def _see(self, record: PositionRecord | None) -> SeenCut | None:
        if record is None or (cut := record.state) is None:
            return None
        if self._seen is None or cut.order > self._seen.cut.order:
            # Found at the start behind records that are no state, its age is not known.
            fresh = record.is_state or self._seen is not None
            self._seen = SeenCut(cut, now_ms() if fresh else 0)
        return self._seen
