"""Upkeep of the tables of views and base tables: compaction and expiry beside the batches of `follow`.

It maintains one table at a time, under the table's lease, and only while upkeep in total has taken no more than its
share of the time. So a table's batch is delayed by that table's own turn at most, and SIGTERM by one procedure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from tailrace.schemas.closes import Closes
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, now_ms, read_views
from tailrace.sinks.iceberg.maintenance import commits_since_compaction, compact, expire, nothing
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.spark_jobs.log import line, named
from tailrace.spark_jobs.maintain.base_tables import base_name, is_base
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.lanes import POOL
from tailrace.spark_jobs.views import declare

_BASE_KEEP_MS: Final = 600_000
"""Retention of base tables' states, in ms. Batches record the states that they need; this covers a view's first
batch, which has recorded nothing yet."""

_LATER: Final = 0.1
"""Part of the retention by which the oldest state may be older: to find what expires, all retained states are read."""


class UpkeepThread(Closes):
    """Runs upkeep in its own thread. Its Spark jobs have their own pool, like those of a view (`lanes`)."""

    def __init__(self, upkeep: Upkeep, session: SparkSession) -> None:
        self._upkeep = upkeep
        self._session = session
        self._pool = ThreadPoolExecutor(1, "upkeep")
        self._turn: Future[None] | None = None

    def begin(self, stop: threading.Event) -> None:
        """Begin a turn, unless one is under way. Raise the exception of the previous turn, if any."""
        if self._turn is not None and not self._turn.done():
            return
        if self._turn is not None:
            self._turn.result()
        self._turn = self._pool.submit(self._run, stop)

    def close(self) -> None:
        self._pool.shutdown()

    def _run(self, stop: threading.Event) -> None:
        self._session.sparkContext.setLocalProperty(POOL, "upkeep")
        self._upkeep.turn(stop)


class Upkeep:
    """The upkeep of all tables that one job writes."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._began = time.monotonic()
        self._spent_s = 0.0
        self._commits: dict[str, tuple[int | None, int]] = {}

    def turn(self, stop: threading.Event) -> None:
        """Maintain the table with the most commits, if one is due and time is left; count the commits of all."""
        warehouse = self._shared.config.warehouse
        if warehouse is None or not warehouse.upkeep_share:
            return
        due = [(count, name) for name, count in self._counted() if count >= warehouse.compact_after]
        if not due or stop.is_set() or self._spent_s > warehouse.upkeep_share * (time.monotonic() - self._began):
            return
        began = time.monotonic()
        if (view := self._tables().get(max(due)[1])) is not None:
            self._look_after(view, stop)
        self._spent_s += time.monotonic() - began

    def _tables(self) -> dict[str, KeptView]:
        kept = (*self._shared.views.values(), *self._shared.bases.values())
        there = (view for view in kept if view.applied is not None and isinstance(view.batch.target, IcebergTarget))
        return {view.declared.name: view for view in there}

    def _counted(self) -> Iterator[tuple[str, int]]:
        """Yield each table's name and its number of commits since compaction.

        A newest snapshot that differs from that of the previous turn counts as one more commit.
        """
        for name, view in self._tables().items():
            applied = view.applied
            if applied is None:
                continue  # its batch has failed since
            snapshot = applied.snapshot_id
            if name not in self._commits:
                try:
                    self._commits[name] = snapshot, commits_since_compaction(_target(view).snapshots())
                except Exception:
                    # An outage of the catalog parks the views that need it; upkeep can wait.
                    continue
            before, count = self._commits[name]
            if before != snapshot:
                self._commits[name] = snapshot, count + 1
            yield name, self._commits[name][1]

    def _look_after(self, view: KeptView, stop: threading.Event) -> None:
        name = view.declared.name
        report: dict[str, Any] = {}
        began = time.monotonic()
        delete = nothing
        with view.lease.held(0) as mine:
            if not mine:
                return
            if view.lease.changed:
                view.forget()
            with _noted(report):
                report |= compact(_target(view))
                # The states that a view's first batch reads are not recorded yet.
                if not stop.is_set() and self._is_old(view) and not any(map(self._begins, self._readers(view))):
                    report["snapshots_expired"], delete = expire(_target(view), *self._needed(view))
        report["held_ms"] = round((time.monotonic() - began) * 1000)
        with _noted(report):
            report["files_deleted"] = delete()
        self._commits[name] = self._commits[name][0], 0
        line(event="upkeep", view=name, **report, ms=round((time.monotonic() - began) * 1000))

    def _needed(self, view: KeptView) -> tuple[int, Cut | None, dict[str, int]]:
        """Return the data that `expire` must spare: from a time (ms) on, from a cut on, live generations."""
        config = self._shared.config
        records = read_views(config.kafka, Topics(config.kafka.prefix))
        cuts = [records[name].cut for name in self._readers(view) if name in records]
        needed = [cut for cut in cuts if cut is not None]
        slowest = min(needed, key=lambda cut: cut.order, default=None)
        return now_ms() - self._keep_ms(view), slowest, _generations(records)

    def _keep_ms(self, view: KeptView) -> int:
        assert self._shared.config.warehouse is not None
        return _BASE_KEEP_MS if is_base(view.declared.name) else self._shared.config.warehouse.keep_s * 1000

    def _is_old(self, view: KeptView) -> bool:
        """Whether a table has states that may expire."""
        return now_ms() - _target(view).oldest_ms() >= (1 + _LATER) * self._keep_ms(view)

    def _begins(self, name: str) -> bool:
        """Whether the first batch of a view is under way in this job."""
        view = self._shared.views.get(name)
        return view is not None and view.applied is None and view.busy

    def _readers(self, view: KeptView) -> Iterator[str]:
        """Yield the names of the declared views whose batches read the table of `view`."""
        for name in self._shared.config.views:
            try:
                reader = declare(self._shared.config, name)
            except TailraceError:
                continue
            bases = {base_name(topic, commits=reader.commits) for topic in reader.topics_read}
            if reader.text is not None and view.declared.name in {*bases, *reader.views}:
                yield name


@contextmanager
def _noted(report: dict[str, Any]) -> Iterator[None]:
    """Put the error that ends the block into a report.

    Upkeep is retried after as many commits; no applied state depends on it.
    """
    try:
        yield
    except Exception as error:
        report["error"] = str(named(error))


def _generations(records: dict[str, ViewRecord]) -> dict[str, int]:
    return {name: record.generation for name, record in records.items()}


def _target(view: KeptView) -> IcebergTarget:
    target = view.batch.target
    assert isinstance(target, IcebergTarget)
    return target
