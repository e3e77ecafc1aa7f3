"""A view that is being kept: its lease, what it has applied, and what it tells the views topic."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from schemas.config import Config
from schemas.errors import SinkError, StateError, TailraceError
from schemas.topics import Topics
from sinks.changes import Applied, Target
from sinks.iceberg import IcebergTarget
from sinks.lease import Lease, lease_folder
from sinks.opensearch import OpenSearchTarget
from sinks.views_topic import ViewRecord, ViewsTopic, now_ms, read_views
from spark_jobs.batch import Batch, Report
from spark_jobs.cuts import Cuts, SeenCut, order
from spark_jobs.records import Records
from spark_jobs.views import Declared, declare

_FIRST_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 300.0
SWAP_WAIT_S: Final = 600.0
"""How long a rebuild waits for the batch that follow is in."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all views of a job use."""

    config: Config
    session: SparkSession
    records: Records
    cuts: Cuts
    views_topic: ViewsTopic


class KeptView:
    """One view with its state between batches."""

    def __init__(self, shared: Shared, name: str) -> None:
        self._shared = shared
        self.declared: Declared = declare(shared.config, name)
        self.lease = Lease(lease_folder(shared.config), f"{shared.config.kafka.prefix}.{name}")
        # A session of its own: the snapshot properties are session settings.
        self._session = shared.session.newSession()
        self._batch: Batch | None = None
        self._applied: Applied | None = None
        self._current_ms = 0
        self._pause_s = 0.0
        self._next_try = 0.0

    @property
    def applied(self) -> Applied | None:
        return self._applied

    @property
    def parked(self) -> bool:
        """Whether the last batch failed and it is too early to try again."""
        return time.monotonic() < self._next_try

    @property
    def batch(self) -> Batch:
        """What runs this view's batches; made when first needed, since making it asks the target."""
        if self._batch is None:
            shared = self._shared
            self._batch = Batch(
                self.declared,
                open_target(shared.config, self._session, self.declared),
                self._session,
                shared.records,
                shared.config.kafka,
                shared.cuts.wait,
            )
        return self._batch

    def step(self, seen: SeenCut, report: Report) -> bool:
        """Bring the view to the cut, under the lease; False if another process holds it."""
        with self.lease.held(0) as mine:
            if not mine:
                return False
            if self.lease.changed or self._applied is None:
                self._applied, self._current_ms = self.load()
            before = self._applied
            if before is not None:
                self._check_tombstones(before, seen)
            self._applied = self.batch.advance(before, seen, report)
            self._current_ms = now_ms()
            # Said aloud only when there is something new to say.
            if before is None or order(before.cut) != order(self._applied.cut) or self._pause_s:
                self.publish(self._applied)
                report.stage("publish")
            self._pause_s = 0.0
        return True

    def load(self) -> tuple[Applied | None, int]:
        """Ask the target for what is live; the views topic may know a later cut that changed no row."""
        live = self.batch.target.live()
        record = read_views(self._shared.config.kafka, Topics(self._shared.config.kafka.prefix)).get(self.declared.name)
        if live is None:
            return None, 0
        if record is None or record.generation != live.generation or record.cut is None:
            return live, live.cut.commit_ts_us // 1000
        if record.snapshot_id != live.snapshot_id or order(record.cut) < order(live.cut):
            return live, record.current_ms
        later = Applied(live.generation, record.cut, live.snapshot_id, live.unfinished)
        return later, record.current_ms

    def publish(self, applied: Applied) -> None:
        """Tell the views topic what is applied, and that it is level with the newest cut now."""
        self._current_ms = now_ms()
        self._shared.views_topic.publish(
            ViewRecord(
                view=self.declared.name,
                target=self.declared.target,
                generation=applied.generation,
                cut=applied.cut,
                current_ms=self._current_ms,
                snapshot_id=applied.snapshot_id,
            )
        )

    def park(self, error: TailraceError) -> float:
        """Put the view aside for a while, longer each time; return for how many seconds. Others go on."""
        self._pause_s = min(max(self._pause_s * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._next_try = time.monotonic() + self._pause_s
        # The target may have committed before the failure: what is applied is asked again.
        self._applied = None
        nothing = ViewRecord(self.declared.name, self.declared.target, 0, None, 0)
        # With Kafka gone there is nobody to tell; the line on stderr says it.
        with suppress(SinkError):
            self._shared.views_topic.publish(replace(self._on_topic() or nothing, error=str(error)))
        return self._pause_s

    def _on_topic(self) -> ViewRecord | None:
        kafka = self._shared.config.kafka
        return read_views(kafka, Topics(kafka.prefix)).get(self.declared.name)

    def _check_tombstones(self, applied: Applied, seen: SeenCut) -> None:
        """A delete that came and went from the topic while nobody looked would leave its row in the view."""
        limit = self._shared.config.kafka.delete_retention_ms
        age = now_ms() - self._current_ms
        (topic,) = self.declared.topics
        if age > limit and seen.cut.offsets.get(topic) != applied.cut.offsets.get(topic):
            raise StateError(
                "TR-526",
                f'view "{self.declared.name}" was not kept for longer than deletes stay on the topics',
                detail=f"Last level with the topics {age // 60_000} min ago; kafka.delete_retention_ms is "
                f"{limit // 60_000} min.",
                hint=f"tailrace views rebuild {self.declared.name}",
            )


def open_target(config: Config, session: SparkSession, view: Declared) -> Target:
    """Return the target of a declared view."""
    if view.target == "search":
        assert config.search is not None  # `declare` has checked it
        return OpenSearchTarget(config.search, view.name)
    assert config.warehouse is not None
    return IcebergTarget(session, config.warehouse, view.name)
