"""Continuous verification: compare the maintained views with their content from the topics, beside the batches.

One view at a time, spread over `verify.every_s`, in a thread of its own and in no more than `verify.share` of the time.
A comparison holds the view's lease only until the states to compare are pinned; it reads the topics itself, so that it
waits for no batch and no batch for it. A failure is logged and counted, and parks nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

from py4j.protocol import Py4JError

from tailrace.schemas.closes import Closes
from tailrace.schemas.errors import StateError
from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.sinks.control.views_topic import Verified, now_ms
from tailrace.spark_jobs.causes import is_jvm_gone
from tailrace.spark_jobs.health.health import JobHealth
from tailrace.spark_jobs.jobs.verify import is_comparable, verify
from tailrace.spark_jobs.log import line, named
from tailrace.spark_jobs.lookup.known_tables import KnownTables
from tailrace.spark_jobs.maintain.kept_view import LEASE_WAIT_S, KeptView, Shared, not_free
from tailrace.spark_jobs.maintain.lanes import POOL
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.topics.records import Records

_GROUP: Final = "verify"
"""The scheduler pool and the group of all Spark jobs of comparisons."""

_SLICE_S: Final = 0.2
"""Interval, in seconds, at which waits look whether the job ends."""

_INDEX_WAIT_S: Final = 5.0
"""Maximum wait, in seconds, for `tailrace verify` of the same matches; the end of the job waits as long."""

_AGAIN_S: Final = 600.0
"""A comparison that failed is repeated after this time, in seconds, or after `every_s` if that is shorter."""


class _Ending(Exception):
    """The job ends."""


@dataclass(slots=True)
class Schedule:
    """When each of `views` views is compared next. Times are in seconds since 1970; memory is one time per view.

    No two comparisons begin within `every_s` divided by the number of views; so those of one round are spread over it.
    """

    every_s: float
    share: float
    views: int
    began: float
    spent_s: float = 0.0
    next_at: float = 0.0
    due: dict[str, float] = field(default_factory=dict)

    def choose(self, ready: Mapping[str, float | None], now: float) -> str | None:
        """Return the view to compare now; None if none is due or no time is left.

        `ready` are the views that can be compared, each with the time at which it was, by an earlier job perhaps.
        """
        for name, at in ready.items():
            self.due.setdefault(name, 0.0 if at is None else at + self.every_s)
        if now < self.next_at or self.spent_s > self.share * (now - self.began):
            return None
        first = min(ready, key=lambda each: self.due[each], default=None)
        return first if first is not None and self.due[first] <= now else None

    def done(self, name: str, began: float, now: float, *, well: bool) -> None:
        """Record a comparison that began at `began` and has ended; one that failed is repeated sooner."""
        self.spent_s += now - began
        self.due[name] = began + (self.every_s if well else min(self.every_s, _AGAIN_S))
        self.next_at = began + self.every_s / self.views


class Verifying(Closes):
    """Compares the views of a job in its own thread, while the job runs.

    `begin` and `close` must be called from one thread.
    """

    def __init__(self, shared: Shared, views: Sequence[KeptView], health: JobHealth) -> None:
        self._shared = shared
        self._views = {view.declared.name: view for view in views if is_comparable(view.declared)}
        self._health = health
        self._ending = threading.Event()
        self._pool = ThreadPoolExecutor(1, "verify")
        self._turn: Future[None] | None = None
        settings = shared.config.verify
        self._schedule = Schedule(settings.every_s, settings.share, len(self._views), time.time())

    @cached_property
    def _own(self) -> Shared:
        """Records and views of its own: a batch may begin during a comparison, and has its state in those of the job.

        They are bounded by the number of views, as those are.
        """
        records = Records(self._shared.session, self._shared.config.kafka)
        return replace(self._shared, records=records, bases={}, views={}, known=KnownTables())

    def begin(self) -> None:
        """Begin a comparison in the background if one is due and none is under way."""
        schedule = self._schedule
        if not schedule.every_s or (self._turn is not None and not self._turn.done()):
            return
        # the first batch of a view has read when it was compared last
        views = [view for view in self._views.values() if view.applied is not None and not view.parked]
        ready = {view.declared.name: view.verified.at_ms / 1000 if view.verified else None for view in views}
        name = schedule.choose(ready, time.time())
        if name is not None:
            self._turn = self._pool.submit(self._run, self._views[name])

    def close(self) -> None:
        """End the comparison that is under way, without a result."""
        self._ending.set()
        while self._turn is not None and not self._turn.done():
            # it may begin another Spark job before it notices
            with suppress(Py4JError, OSError):
                self._shared.session.sparkContext.cancelJobGroup(_GROUP)
            wait([self._turn], _SLICE_S)
        self._pool.shutdown()

    def _run(self, view: KeptView) -> None:
        name, began, well = view.declared.name, time.time(), False
        context = self._shared.session.sparkContext
        try:
            context.setLocalProperty(POOL, _GROUP)
            context.setJobGroup(_GROUP, f"comparing {name}", interruptOnCancel=True)
            self._note(view, *self._compared(view))
            well = True
        except _Ending:
            pass
        except Exception as error:
            if not self._ending.is_set() and not is_jvm_gone(error):
                self._failed(name, error)
        self._schedule.done(name, began, time.time(), well=well)

    def _failed(self, name: str, error: Exception) -> None:
        failed = named(error)
        if (health := self._health.views.get(name)) is not None:
            health.verify_failures[failed.code] += 1
        line(event="view not verified", level="warning", view=name, code=failed.code, error=str(failed))

    def _compared(self, view: KeptView) -> tuple[Verified, int]:
        """Compare a view; return the result, and the takeovers of the view before it."""
        takeovers = 0

        @contextmanager
        def hold(_: KeptView) -> Iterator[None]:
            nonlocal takeovers
            with self._held(view):
                takeovers = view.takeovers
                yield

        began_ms, keys, found = now_ms(), 0, {}
        name, own = view.declared.name, self._own
        try:
            mine = own.views.get(name) or open_view(own, name)
            for found in verify(own, mine, 0, hold=hold, say=_quiet, wait_s=_INDEX_WAIT_S):
                self._check_end()
                keys += self._differing(view, found)
        finally:
            own.records.release()
            own.records.close()
        if not found:
            raise _took_too_long(view, "Compaction may have removed stored queries meanwhile.")
        # each has the same generation and cut
        return Verified(began_ms, found["generation"], parse_lsn(found["cut"]), keys), takeovers

    @contextmanager
    def _held(self, view: KeptView) -> Iterator[None]:
        deadline = time.monotonic() + LEASE_WAIT_S
        while time.monotonic() < deadline:
            self._check_end()
            with view.borrowed(_SLICE_S) as mine:
                if mine:
                    yield
                    return
        raise not_free(view)

    def _differing(self, view: KeptView, found: Mapping[str, Any]) -> int:
        """Log a comparison with differences; return the number of keys that differ.

        StateError (TR-707) if compaction may be the cause.
        """
        (comparison,) = found["comparisons"]
        keys: int = comparison["differing"]
        if not keys:
            return 0
        if found["late"] and not self._is_level(view, found["cut"]):
            raise _took_too_long(view, f"{keys} keys differ, and compaction may be the cause.")
        table = found["table"]
        what = {"table": table} if table else {}
        line(event="view differs", level="error", view=view.declared.name, **what, keys=keys, lsn=found["cut"])
        return keys

    def _is_level(self, view: KeptView, cut: str) -> bool:
        """Whether the topics had no newer record than the cut until a short time ago: then nothing was compacted."""
        applied, lag_ms = view.applied, self._shared.config.kafka.min_compaction_lag_ms
        at_cut = applied is not None and format_lsn(applied.cut.flushed_lsn) == cut
        return at_cut and now_ms() - view.level_ms < lag_ms

    def _note(self, view: KeptView, found: Verified, takeovers: int) -> None:
        """Publish a result; a batch that is under way is waited for."""
        while not view.note_verified(found, takeovers, _SLICE_S):
            self._check_end()
        if (health := self._health.views.get(view.declared.name)) is not None:
            health.verified = view.verified
        if not found.keys:
            lsn = format_lsn(found.lsn)
            line(event="view verified", view=view.declared.name, lsn=lsn, ms=now_ms() - found.at_ms)

    def _check_end(self) -> None:
        if self._ending.is_set():
            raise _Ending


def _took_too_long(view: KeptView, consequence: str) -> StateError:
    return StateError(
        "TR-707",
        f'view "{view.declared.name}" was not verified: its comparison took too long',
        detail=f"It took longer than kafka.min_compaction_lag_ms. {consequence}",
        hint=f"tailrace verify {view.declared.name} --all  # once the view has advanced",
    )


def _quiet(**values: Any) -> None:
    """Do not log the progress of a comparison."""
