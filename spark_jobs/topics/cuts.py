"""Cuts for the jobs: which one is newer, and the age of the cut that a batch reads up to."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.schemas.closes import Closes
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut, PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import PositionTail
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.log import line

if TYPE_CHECKING:
    from tailrace.spark_jobs.views import Declared

_ANSWER_S: Final = 10.0
"""Maximum wait, in seconds, for a broker to return the records that it has."""


@dataclass(frozen=True, slots=True)
class SeenCut:
    """The newest cut that is a state of all tables that a view reads.

    `level_ms` is a time, in milliseconds since 1970, at which the tables' topics had no record after the cut: the
    latest such time that is known, else one before the next change can have been committed. `is_end`: there was no
    record after the cut at the last look. `waits_for` are the tables that are incomplete now: until they are complete,
    no newer cut is a state of all tables.
    """

    cut: Cut
    level_ms: int
    is_end: bool = True
    waits_for: tuple[str, ...] = ()


def advanced(applied: Applied, cut: Cut) -> bool:
    """Whether `cut` is newer than the applied one, and at least as new as that of an interrupted batch."""
    if applied.unfinished is not None:
        return cut.order >= applied.unfinished.order
    return cut.order > applied.cut.order


@dataclass(frozen=True, slots=True)
class Look:
    """The newest position record, and a time (ms since 1970) at which there was none after it."""

    record: PositionRecord
    at_ms: int

    @property
    def order(self) -> tuple[Position, int]:
        return self.record.here.order


class Cuts(Closes):
    """The newest state cuts of the pipeline, from the end of the progress topic.

    Each view has its own state cut, which depends on the tables that it reads. `seen` answers for all views from one
    position record: views without an incomplete table get the same cut. Memory: one cut for each set of tables.
    """

    def __init__(self, config: Config) -> None:
        self._tail = PositionTail(config.kafka, Topics(config.kafka.prefix), config.source.slot)
        self._look: Look | None = None
        self._before: Look | None = None
        self._seen: dict[tuple[str, ...], SeenCut] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        self._tail.close()

    def look(self, wait: float = 0.0) -> None:
        """Read new records of the progress topic, waiting up to `wait` seconds for them."""
        with self._lock:
            asked_ms = now_ms()
            self._note(self._tail.newest(wait), asked_ms)

    def seen(self, view: Declared) -> SeenCut | None:
        """Return the newest state cut of a view's tables, as of the last look; None if there is none yet."""
        with self._lock:
            found = newest_state(view, self._look, self._before, self._seen.get(view.captured))
            if found is not None:
                self._seen[view.captured] = found
            return found

    def waits_for(self, view: Declared) -> tuple[str, ...]:
        """Return the tables of a view that were incomplete at the last look."""
        with self._lock:
            return self._look.record.waits_for(view.captured) if self._look is not None else ()

    def newest(self, view: Declared, wait: float = 0.0) -> SeenCut | None:
        """Return the newest state cut of a view's tables, waiting up to `wait` seconds for a new record."""
        with self._lock:
            self.look(wait)
            return self.seen(view)

    def wait(self, view: Declared) -> SeenCut:
        """Return the newest state cut of a view's tables that is committed by now; wait until there is one."""
        with self._lock:
            asked_ms = now_ms()
            self._note(self._tail.committed(_ANSWER_S), asked_ms)
            seen = self.seen(view)
        said: tuple[str, ...] = ()
        while seen is None:
            if said != (tables := self.waits_for(view)):
                line(event="view waiting", level="warning", view=view.name, tables=tables)
                said = tables
            seen = self.newest(view, 1.0)
        return seen

    def _note(self, record: PositionRecord | None, asked_ms: int) -> None:
        if record is not None:
            self._before, self._look = self._look, Look(record, asked_ms)


def newest_state(view: Declared, look: Look | None, before: Look | None, known: SeenCut | None) -> SeenCut | None:
    """Return the newest state cut of a view's tables, or None.

    `before` is the look before `look`, `known` the previous result for these tables.
    """
    if look is None:
        return None
    here = look.record.here
    cut = look.record.state_for(view.captured)
    if known is not None and cut is not None and cut.order <= known.cut.order:
        cut = known.cut  # if the record names no cut, the known one may need records that its topics have lost
    waits_for = look.record.waits_for(view.captured)
    if cut is None or (waits_for and any(topic not in cut.offsets for topic in view.topics)):
        # without a topic, the cut precedes the table's capture: it would show a table that has rows as empty
        return None
    is_end = all(cut.offsets.get(topic) == here.offsets.get(topic) for topic in view.topics)
    if is_end:
        level_ms = look.at_ms
    elif before is not None and cut.order > before.order:
        level_ms = before.at_ms  # the cut did not exist at that time
    else:
        level_ms = cut.commit_ts_us // 1000  # changes after the cut were committed later
    if known is not None:
        level_ms = max(level_ms, known.level_ms)  # no record after an older cut: none after this one
    return SeenCut(cut, level_ms, is_end, waits_for)
