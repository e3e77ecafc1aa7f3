"""Lanes: which batches run at the same time, and which of them a view waits for before its next one.

A round is all views that are ready when the progress topic is read, each with its newest cut. They share the records
that they read. So a view whose batch has ended waits for the others of its round, but not for a batch that takes much
longer than its own: that batch continues during the next rounds, and its view joins none of them until it has ended.

Memory is bounded by the number of lanes: `spark.views_at_once` and one more, which is only for views that no longer
wait for a long batch. A lane runs one batch at a time, and each round whose records are in Spark's cache has a batch
in a lane, or is the newest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from tailrace.schemas.closes import Closes
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.records import Records, Spans

PATIENCE_S: Final = 2.0
"""Time in seconds that every view waits for a running batch."""

MUCH_LONGER: Final = 3.0
"""A view waits as well for this multiple of the shorter of its last two batches: a single long one is an exception."""

POOL: Final = "spark.scheduler.pool"


@dataclass(eq=False, slots=True)
class Turn:
    """One batch of one view, up to the cut `seen`; None if there is no cut yet."""

    view: KeptView
    seen: SeenCut | None
    began: float = 0.0

    @property
    def name(self) -> str:
        return self.view.declared.name


@dataclass(eq=False, slots=True)
class _Round:
    pending: list[Turn]
    running: list[Turn] = field(default_factory=list)
    spans: Spans = field(default_factory=Spans)

    def startable(self) -> Iterator[Turn]:
        """Yield the pending turns whose views read no view with an unfinished turn in the round."""
        unended = {turn.name for turn in (*self.pending, *self.running)}
        return (turn for turn in tuple(self.pending) if unended.isdisjoint(turn.view.declared.views))


class Lanes(Closes):
    """Runs the turns of rounds. `work` runs one in its own thread and returns whether it had work to do.

    The methods must be called from one thread. They raise the exceptions of `work`.
    """

    def __init__(self, records: Records, at_once: int, work: Callable[[Turn], bool]) -> None:
        self._records = records
        self._at_once = at_once
        self._work = work
        self._pool = ThreadPoolExecutor(at_once + 1, "views")
        self._rounds: list[_Round] = []
        self.running: dict[Future[bool], tuple[_Round, Turn]] = {}
        self._ended = threading.Event()
        self._lasted_s: dict[str, tuple[float, ...]] = {}
        """Durations in seconds of the last two batches of each view that had work to do."""

    @property
    def idle(self) -> bool:
        """Whether no batch runs."""
        return not self.running

    def ready(self, views: Sequence[KeptView]) -> list[KeptView]:
        """Return the views that can be in a round that begins now; `views` lists each after those it reads.

        Left out are views that wait for a running batch, that read a view which is not ready, or that are parked.
        """
        if len(self.running) > self._at_once or any(any(this.startable()) for this in self._rounds):
            return []
        free, waits = {view.declared.name for view in views} - self._names(), set[str]()
        for view in views:
            name = view.declared.name
            # Not for parked views: a view that reads one reports it.
            if name not in free or self._awaited(name) or not waits.isdisjoint(view.declared.views):
                waits.add(name)
        return [view for view in views if view.declared.name not in waits and not view.parked]

    def begin(self, turns: Sequence[Turn]) -> None:
        """Begin a round: its turns start in this order as lanes become free, each after the views it reads.

        Pending turns of earlier rounds come first.
        """
        self._rounds.append(_Round(list(turns)))
        self._next()

    def wait(self, seconds: float) -> None:
        """Wait for up to `seconds` or until a batch ends; then start all turns that can start."""
        self._ended.wait(seconds)
        self._ended.clear()
        self._next()

    def end(self) -> None:
        """Wait until the running batches have ended; no other starts."""
        for this in self._rounds:
            this.pending.clear()
        while self.running:
            self.wait(1.0)

    def close(self) -> None:
        """Shut down the threads and ignore the results of batches."""
        self._pool.shutdown(cancel_futures=True)

    def _names(self) -> set[str]:
        return {turn.name for this in self._rounds for turn in (*this.pending, *this.running)}

    def _awaited(self, name: str) -> int:
        """Return the number of running batches that a view waits for."""
        patience = max(PATIENCE_S, MUCH_LONGER * min(self._lasted_s.get(name, (0.0,))))
        now = time.monotonic()
        return sum(now - turn.began < patience for _, turn in self.running.values())

    def _next(self) -> None:
        self._note_ended()
        for this in self._rounds:
            for turn in this.startable():
                if len(self.running) <= self._at_once and self._awaited(turn.name) < self._at_once:
                    self._start(this, turn)

    def _start(self, this: _Round, turn: Turn) -> None:
        this.pending.remove(turn)
        this.running.append(turn)
        turn.began = time.monotonic()
        future = self._pool.submit(self._run, this, turn)
        self.running[future] = this, turn
        future.add_done_callback(lambda _: self._ended.set())

    def _run(self, this: _Round, turn: Turn) -> bool:
        self._records.session.sparkContext.setLocalProperty(POOL, turn.name)
        with self._records.within(this.spans):
            return self._work(turn)

    def _note_ended(self) -> None:
        ended = [future for future in self.running if future.done()]
        for future in ended:
            this, turn = self.running.pop(future)
            this.running.remove(turn)
            if future.exception() is None and future.result():
                self._lasted_s[turn.name] = *self._lasted_s.get(turn.name, ())[-1:], time.monotonic() - turn.began
        for this in [this for this in self._rounds if not this.pending and not this.running]:
            self._rounds.remove(this)
            self._records.release(this.spans)
        for future in ended:
            future.result()
