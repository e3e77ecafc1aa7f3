"""Base tables: copies of captured tables that queries read, with a state for each cut of their views.

They are in the namespace ``_base`` of the warehouse, one for each topic, and are maintained like single-table views.
Those with commit columns, for queries that name these, are others, in ``_base_commits``. Queries are computed over
their snapshots, because the topics do not retain the old image of a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql import SparkSession

from tailrace.schemas.errors import RebuildError, StateError
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import HELD, LEASE_WAIT_S, KeptView, Shared, not_free
from tailrace.spark_jobs.maintain.table_batch import TableBatch
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.views import Declared

NAMESPACE: Final = "_base"
WITH_COMMITS: Final = "_base_commits"


def is_base(name: str) -> bool:
    """Whether the name of a view that a job maintains is that of a base table."""
    return name.startswith((f"{NAMESPACE}.", f"{WITH_COMMITS}."))


def base_name(topic: str, *, commits: bool) -> str:
    """Return the name of a topic's base table among the views that a job maintains."""
    return f"{WITH_COMMITS if commits else NAMESPACE}.{topic}"


class BaseTables:
    """The base tables that the views of one job share, as used by one of these views."""

    def __init__(self, shared: Shared, view: Declared) -> None:
        self._shared = shared
        self._view = view.name
        self._commits = view.commits
        self._table_of = dict(zip(view.topics, view.captured, strict=True))

    def advance(self, topics: Iterable[str], seen: SeenCut) -> list[Applied]:
        """Bring the base tables of `topics` to the cut; return their states, some of which may be newer."""
        return [self.step(self._kept(topic), seen) for topic in topics]

    def renew(self, topics: Iterable[str], seen: SeenCut) -> None:
        """Bring base tables to the cut, like `advance`; recreate those that cannot continue.

        With the same columns, a recreated one retains its old states. Other views that need a missing state raise
        TR-551.
        """
        for base in map(self._kept, topics):
            try:
                self.step(base, seen)
            except StateError as error:
                if error.code == HELD:
                    raise
                if not self._make_anew(base, seen):
                    self.step(base, seen)

    def step(self, base: KeptView, seen: SeenCut) -> Applied:
        """Bring a base table to the cut, unless it is there already."""
        applied = base.applied
        if applied is not None and applied.cut.order == seen.cut.order:
            return applied
        try:
            applied = base.step(seen, Report(), LEASE_WAIT_S)
        except RebuildError as error:
            base.forget()
            # No command accepts the name of a base table: it is rebuilt with any view that reads it.
            (table,) = base.declared.captured
            raise error.of_base_table(table, self._view) from None
        except Exception:
            base.forget()
            raise
        if applied is None:
            raise not_free(base)
        return applied

    def _make_anew(self, base: KeptView, seen: SeenCut) -> bool:
        """Recreate a base table from offset 0; False if another process has written it since it failed here.

        That process may have recreated it at a newer cut than ours: views at that cut would lose their state.
        """
        with base.lease.held(LEASE_WAIT_S) as mine:
            if not mine:
                raise not_free(base)
            if base.lease.changed:
                return False
            batch = base.batch
            columns, key = batch.layout()
            done = batch.advance(None, seen, Report(), generation=batch.target.stage(columns, key))
            batch.target.swap(done.generation, key)
            live = batch.target.live()
            assert live is not None
            base.publish(live, seen.level_ms)
            base.forget()
            return True

    def view(self, topic: str) -> KeptView:
        """Return a topic's base table, which is maintained like a view."""
        return self._kept(topic)

    def target(self, topic: str) -> IcebergTarget:
        """Return the base table of a topic; its lineage is never broken, so a cut alone finds a snapshot."""
        target = self._kept(topic).batch.target
        assert isinstance(target, IcebergTarget)
        return target

    def _kept(self, topic: str) -> KeptView:
        name = base_name(topic, commits=self._commits)
        known = self._shared.bases.get(name)
        return known or self._shared.bases.setdefault(name, self._open(topic))

    def _open(self, topic: str) -> KeptView:
        return _open(self._shared, topic, self._table_of[topic], commits=self._commits)


def _open(shared: Shared, topic: str, table: str, *, commits: bool) -> KeptView:
    # Kafka does not distinguish a dot and an underscore in topic names, so no two tables get the same name here.
    name = base_name(topic, commits=commits)
    declared = Declared(name, "warehouse", (topic,), None, captured=(table,), commits=commits)
    records = shared.records.commits() if commits else shared.records

    def open_batch(session: SparkSession) -> TableBatch:
        assert shared.config.warehouse is not None  # `declare` has checked it
        warehouse = shared.config.warehouse.model_copy(update={"namespace": name.partition(".")[0]})
        target = IcebergTarget(session, warehouse, topic.replace(".", "_"))
        return TableBatch(declared, target, session, shared.config, records, shared.cuts)

    return KeptView(shared, declared, open_batch)
