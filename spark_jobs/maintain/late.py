"""List late rows: those later than their view's lateness allows. They still correct the windows.

The list is a table with the view's name in the namespace ``_late``: one row for each late change, by table, key and
position. It is written before the batch, and a row that it has already is not listed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import DELETED, Commit
from tailrace.spark_jobs.maintain.difference import difference
from tailrace.spark_jobs.query.late import EventTime
from tailrace.spark_jobs.query.rewrite import state
from tailrace.spark_jobs.topics.events import LSN, ORDINAL, events
from tailrace.spark_jobs.topics.records import Every
from tailrace.spark_jobs.topics.shapes import TableShapes

NAMESPACE: Final = "_late"
_KEY: Final = ("table", "key", "commit_lsn", "ordinal")

_FAR: Final = "9999-01-01"
"""An event time from this date on is infinity, or a mistake: it makes no other row late."""


class LateRows:
    """The late rows of one view; `session` is the view's own, which has the batch's states by name."""

    def __init__(
        self, session: SparkSession, warehouse: Warehouse, view: str, lateness_s: float, by: Sequence[str] = ()
    ) -> None:
        self._session = session
        self._by = by
        self._lateness = f"INTERVAL {lateness_s:.3f} SECONDS"
        self._target = IcebergTarget(session, warehouse.model_copy(update={"namespace": NAMESPACE}), view)

    def of(self, time: EventTime, key: Sequence[str]) -> DataFrame | None:
        """Return key, event time and its limit of a table's late rows in this batch; None if there are none.

        A row is late if it is older, by more than the view's lateness, than the newest event time at the previous cut,
        of the rows with the same values of the columns `by`. These columns of the table at that cut are read.
        """
        column = F.col(quote(time.column))
        usual = self._session.table(state(time.table, "old")).where(column < F.lit(_FAR).cast("timestamp"))
        newest = (F.max(column) - F.expr(self._lateness)).alias("late_before")
        before, after = (self._session.table(state(time.table, which)) for which in ("before", "after"))
        changed = difference(before, after, key).where(~F.col(DELETED))
        if self._by:
            limited = self._with_limits(changed, usual, newest)
        else:
            limited = changed.crossJoin(F.broadcast(usual.agg(newest)))
        late = limited.where(column < F.col("late_before")).select(
            *map(quote, key), column.cast("timestamp").alias("tailrace_at"), F.col("late_before").cast("timestamp")
        )
        return late if late.take(1) else None

    def _with_limits(self, changed: DataFrame, usual: DataFrame, newest: Column) -> DataFrame:
        """Return the changed rows with the newest time of those `usual` rows that have the same values of `by`."""
        names = {name: f"tailrace_by{number}" for number, name in enumerate(self._by)}
        same = reduce(Column.__and__, (F.col(quote(name)).eqNullSafe(F.col(other)) for name, other in names.items()))
        keys = changed.select(*(F.col(quote(name)).alias(other) for name, other in names.items())).distinct()
        # a batch changes rows of some devices only
        limits = usual.join(keys, same).groupBy(*names.values()).agg(newest)
        return changed.join(limits, same)

    def note(self, found: Mapping[EventTime, tuple[DataFrame, Every, TableShapes]], cut: Cut) -> int:
        """Add late rows, with the positions of their changes, to the list; return their number."""
        parts = [self._positioned(time, *each) for time, each in found.items()]
        rows = reduce(DataFrame.unionByName, parts).persist()
        try:
            live = self._target.live()
            if live is None:
                self._target.replace(self._target.stage({}, _KEY), rows, _KEY, Commit(cut))
            else:
                self._target.merge(live.generation, rows.withColumn(DELETED, F.lit(False)), _KEY, Commit(cut))
            return rows.count()
        finally:
            rows.unpersist()

    def _positioned(self, time: EventTime, late: DataFrame, every: Every, shapes: TableShapes) -> DataFrame:
        decoded = events(every.records(self._session), every.facts, shapes)
        position = F.max(F.struct(LSN, ORDINAL)).alias("tailrace_position")
        names = {name: f"tailrace_k{number}" for number, name in enumerate(shapes.key)}
        newest = decoded.groupBy(*(F.col(quote(name)).alias(other) for name, other in names.items())).agg(position)
        same = [F.col(quote(name)).eqNullSafe(F.col(other)) for name, other in names.items()]
        return late.join(newest, reduce(Column.__and__, same)).select(
            F.lit(time.table).alias("table"),
            F.to_json(F.struct(*map(quote, shapes.key))).alias("key"),
            F.lit(time.column).alias("column"),
            F.col("tailrace_at").alias("at"),
            "late_before",
            F.col("tailrace_position")[LSN].alias("commit_lsn"),
            F.col("tailrace_position")[ORDINAL].alias("ordinal"),
        )
