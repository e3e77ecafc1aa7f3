"""A view that is maintained: its lease, its applied state, and its record on the views topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql import SparkSession

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import RebuildError, SinkError, StateError, TailraceError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import Verified, ViewRecord, ViewsTopic, now_ms, read_views
from tailrace.sinks.kafka.groups import Groups
from tailrace.sinks.target.lease import view_lease
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.log import line
from tailrace.spark_jobs.lookup.known_tables import KnownTables
from tailrace.spark_jobs.maintain.batch import Report, ViewBatch
from tailrace.spark_jobs.maintain.waiting import Waiting
from tailrace.spark_jobs.topics.cuts import Cuts, SeenCut, advanced
from tailrace.spark_jobs.topics.records import Records
from tailrace.spark_jobs.views import Declared

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0
LEASE_WAIT_S: Final = 600.0
"""Maximum wait in seconds: of a rebuild for a batch of `follow`, of a batch for a process that advances an input."""

HELD: Final = "TR-529"


@dataclass(frozen=True, slots=True)
class Shared:
    """Resources that all views of a job share."""

    config: Config
    session: SparkSession
    records: Records
    cuts: Cuts
    views_topic: ViewsTopic
    groups: Groups
    bases: dict[str, KeptView] = field(default_factory=dict)
    """The base tables that this job maintains, by name (`spark_jobs.maintain.base_tables`)."""
    views: dict[str, KeptView] = field(default_factory=dict)
    """The views that this job maintains, or brings forward for views that read them, by name."""
    known: KnownTables = field(default_factory=KnownTables)
    """The rows that small batches of queries look up."""


def not_free(view: KeptView) -> StateError:
    """Return the error for a view's lease that another process has held for `LEASE_WAIT_S`."""
    return held_elsewhere(view.declared.name)


def held_elsewhere(name: str, wait_s: float = LEASE_WAIT_S) -> StateError:
    """Return the error for a lease that another process has held for `wait_s` seconds."""
    return StateError(
        HELD,
        f'"{name}": another process has held its lease for {wait_s:.0f} s',
        detail="What is live is as it was.",
        hint="Is a `tailrace views follow` or `rebuild` stuck? Then repeat the command.",
    )


class KeptView:
    """One view with its state between batches.

    `open_batch` queries the target, so it is called only before the first batch.
    """

    def __init__(
        self, shared: Shared, declared: Declared, open_batch: Callable[[SparkSession], ViewBatch[Any]]
    ) -> None:
        self._shared = shared
        self.declared = declared
        self.lease = view_lease(shared.config, declared.name)
        self._open_batch = open_batch
        self._lock = threading.Lock()
        self._batch: ViewBatch[Any] | None = None
        self._applied: Applied | None = None
        self._current_ms = 0
        self._pause_s = 0.0
        self._next_try = 0.0
        self._said: str | None = None
        self._stands_for: tuple[str, ...] = ()
        self.took_ms = 0
        """Duration of the last batch in ms, without reading, which is done once for all views of a topic."""
        self._group_failed: str | None = None
        self._verified: Verified | None = None
        self._unpublished = False
        """Whether the views topic lacks the state that was loaded, or still has an error beside it."""
        self.takeovers = 0
        """Number of times that another process was found to have held the lease."""

    @property
    def applied(self) -> Applied | None:
        return self._applied

    @property
    def level_ms(self) -> int:
        """A time (ms since 1970) at which the view's topics had no record after `applied`; 0 while unknown."""
        return self._current_ms

    @property
    def stop_limits(self) -> dict[str, int]:
        """Times (ms) from `level_ms` on after which the view stops if it has not advanced, by error code.

        Its batches check them: `check_tombstones`, and `_check_lag` of histories, logs and percolate views.
        """
        kafka, shape = self._shared.config.kafka, self.declared.shape
        limits = {"TR-526": kafka.delete_retention_ms}
        if shape == "percolate":
            limits["TR-591"] = kafka.min_compaction_lag_ms
        # the topic of a table without a key is not compacted
        elif shape == "history" or (shape == "log" and self._shared.records.shapes(self.declared.topics[0]).keys):
            limits["TR-560"] = kafka.min_compaction_lag_ms
        return limits

    @property
    def busy(self) -> bool:
        """Whether a batch is under way."""
        return self._lock.locked()

    @property
    def parked(self) -> bool:
        """Whether the last batch failed and it is too early to try again.

        Once another process has had the lease, it is not: the generation is a different one, or a person has
        intervened.
        """
        return time.monotonic() < self._next_try and not self.lease.was_taken

    @property
    def verified(self) -> Verified | None:
        """The result of the newest comparison with the recomputed content, if it is of the live generation."""
        return self._verified

    @property
    def error(self) -> str | None:
        """The error on the views topic that explains why the view does not advance; None if it does."""
        return self._said

    @property
    def batch(self) -> ViewBatch[Any]:
        """The object that runs this view's batches."""
        if self._batch is None:
            # A separate session: the snapshot properties are session settings.
            self._batch = self._open_batch(self._shared.session.newSession())
        return self._batch

    def step(self, seen: SeenCut, report: Report, wait_s: float = 0) -> Applied | None:
        """Bring the view to the cut under its lease; None if another process holds it beyond `wait_s`.

        If several threads call this, one runs the batch, and the others find it done.
        """
        with self._lock, self.lease.held(wait_s) as mine:
            if not mine:
                return None
            if self.lease.changed:
                self._taken_over()
                self.batch.superseded()
            if self._applied is None:
                self._applied, self._current_ms = self.load()
            before = self._applied
            if before is not None:
                self.check_tombstones(before, self._current_ms, seen)
            applied = self._applied = self.batch.advance(before, seen, report)
            self.took_ms = report.milliseconds.get("apply", self.took_ms)
            # Not the present time: while one of its tables is incomplete, the view's topics advance, but the view does
            # not.
            self._current_ms = max(self._current_ms, seen.level_ms)
            # Publish only news; a process that was killed behind its commit has not done so.
            if before is None or before.cut.order != applied.cut.order or self._said or self._unpublished:
                self.publish(applied, self._current_ms)
                report.stage("publish")
            self._pause_s = 0.0
            self._said = None
        return applied

    def load(self) -> tuple[Applied | None, int]:
        """Return the live state, from the target, and a time (ms) at which it was level with the topics.

        The views topic may have a later cut that changed no row.
        """
        live = self.batch.target.live()
        record = read_views(self._shared.config.kafka, Topics(self._shared.config.kafka.prefix)).get(self.declared.name)
        self._verified, self._unpublished = None, True
        if live is None:
            return None, 0
        if record is None or record.generation != live.generation or record.cut is None:
            return live, live.level_since_ms
        self._verified = record.verified
        if record.snapshot_id != live.snapshot_id or record.cut.order < live.cut.order:
            return live, record.current_ms
        self._unpublished = record.error is not None
        return replace(live, cut=record.cut), record.current_ms

    def publish(self, applied: Applied, level_ms: int) -> None:
        """Publish the applied state on the views topic, and commit its offsets to the view's consumer group.

        `level_ms` is a time, in ms since 1970, at which the view's topics had no record after the state.
        """
        self._current_ms, self._unpublished = level_ms, False
        if self._verified is not None and self._verified.generation != applied.generation:
            self._verified = None
        self._shared.views_topic.publish(
            ViewRecord(
                view=self.declared.name,
                target=self.declared.target,
                generation=applied.generation,
                cut=applied.cut,
                current_ms=self._current_ms,
                snapshot_id=applied.snapshot_id,
                history_from=applied.history_from,
                verified=self._verified,
            )
        )
        failed = self._shared.groups.commit(self.declared.name, applied.cut)
        if failed != self._group_failed:
            self._group_failed = failed
            if failed is not None:
                why = f"its consumer group: {failed}"
                line(event="lag not shown", level="warning", view=self.declared.name, error=why)

    @contextmanager
    def borrowed(self, wait_s: float) -> Iterator[bool]:
        """Hold the lease for the block, beside this process's batches; False if it is not free within `wait_s`.

        If another process has held it since the last batch, the next batch still notices.
        """
        with self.lease.held(wait_s) as mine:
            if mine and self.lease.changed:
                self._taken_over()
                self._next_try = 0.0
            yield mine

    def note_verified(self, found: Verified, takeovers: int, wait_s: float) -> bool:
        """Publish the result of a comparison; False if a batch, or another process, holds the view beyond `wait_s`.

        The result is dropped if another process has held the lease since there were `takeovers`, or another generation
        is live: what was compared may have been repaired or replaced.
        """
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            with self.borrowed(0) as mine:
                record = self._on_topic() if mine and self.takeovers == takeovers else None
                if record is not None and record.generation == found.generation:
                    self._shared.views_topic.publish(replace(record, verified=found))
                    self._verified = found
                return mine
        finally:
            self._lock.release()

    def drop_differences(self) -> None:
        """Remove the keys that differed from the views topic, after a repair. The caller holds the lease."""
        self._verified, record = None, self._on_topic()
        if record is not None and record.verified is not None and record.verified.keys:
            self._shared.views_topic.publish(replace(record, verified=None))

    def park(self, error: TailraceError) -> float:
        """Park the view for a while, longer each time; return the seconds. Other views continue."""
        self._pause_s = min(max(self._pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._next_try = time.monotonic() + self._pause_s
        self.forget()
        self._say(str(error))
        return self._pause_s

    def wait(self, error: Waiting) -> bool:
        """Publish once what the view waits for; return whether that is news. The next round retries it."""
        news = self._said != str(error)
        if news:
            self._say(str(error))
        return news

    def stands_for(self, tables: tuple[str, ...]) -> bool:
        """Record the incomplete tables that hold the view back; return whether they are new and not none."""
        news = tables != self._stands_for and bool(tables)
        self._stands_for = tables
        return news

    def _say(self, error: str) -> None:
        self._said = error
        nothing = ViewRecord(self.declared.name, self.declared.target, 0, None, 0)
        # If Kafka is unavailable, the log on standard error alone has the error.
        with suppress(SinkError):
            self._shared.views_topic.publish(replace(self._on_topic() or nothing, error=error))

    def _taken_over(self) -> None:
        self.takeovers += 1
        self.forget()

    def forget(self) -> None:
        """Discard the known state, so that the target is read again: it may have committed before a failure."""
        self._applied = None

    def _on_topic(self) -> ViewRecord | None:
        kafka = self._shared.config.kafka
        return read_views(kafka, Topics(kafka.prefix)).get(self.declared.name)

    def check_tombstones(self, applied: Applied, level_ms: int, seen: SeenCut) -> None:
        """Raise RebuildError (TR-526) if the view may have missed deletes.

        A delete that was added to and removed from the topic while the view was not maintained would leave its row in
        the view.
        """
        if not advanced(applied, seen.cut):
            return
        limit = self._shared.config.kafka.delete_retention_ms
        age = now_ms() - level_ms
        moved = any(seen.cut.offsets.get(t) != applied.cut.offsets.get(t) for t in self.declared.topics_read)
        if age > limit and moved:
            raise RebuildError(
                "TR-526",
                f'view "{self.declared.name}" was not kept for longer than deletes stay on the topics',
                view=self.declared.name,
                detail=f"Last level with the topics {age // 60_000} min ago; kafka.delete_retention_ms is "
                f"{limit // 60_000} min.",
            )
