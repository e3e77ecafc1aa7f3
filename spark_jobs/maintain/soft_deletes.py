"""One batch of a view of one table that retains deleted rows, with the time of their deletion in `DELETED_AT`.

Its content, which comparisons and repairs compute, are the live rows. Deletions that are not on the topic any more are
only in the generation that a batch continues: a rebuild knows those that compaction has not removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType, TimestampType

from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import DELETED, DELETED_AT, Applied
from tailrace.spark_jobs.maintain.batch import Content, Report
from tailrace.spark_jobs.maintain.table_batch import TableBatch
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.latest import before_truncates, changes, first_time, truncates
from tailrace.spark_jobs.topics.records import Latest
from tailrace.spark_jobs.views import check_soft_deletes


@dataclass(slots=True)
class SoftDeletesBatch(TableBatch):
    """Batches of a view of one table with soft deletes."""

    target: IcebergTarget

    with_deletions: ClassVar[bool] = True

    def layout(self) -> tuple[Mapping[str, DataType], tuple[str, ...]]:
        columns, key = TableBatch.layout(self)
        self.check_columns(columns)
        return _with_time(columns), key

    def first(self, found: Latest | None, seen: SeenCut, report: Report) -> Content:
        """Return the live rows, and the keys of the deleted ones whose deletions are on the topic."""
        shapes = self._shapes(found, report)
        columns = _with_time(shapes.columns)
        if found is None:
            fields = [StructField(name, kind) for name, kind in columns.items()]
            return Content(columns, self.session.createDataFrame([], StructType(fields)), shapes.key)
        rows = changes(found.rows(self.session), found.facts, shapes)
        return Content(columns, rows.drop(DELETED), shapes.key)

    def truncate(self, applied: Applied, found: Latest, seen: SeenCut, report: Report) -> Applied:
        """Mark all rows without a newer record, also those of this batch, as deleted by the first truncate after them.

        If it came with another key, earlier rows are not retained: several of them may have one new key.
        """
        generation, shapes = applied.generation, self._shapes(found, report)
        key = shapes.key
        if self.target.key(generation) != key:
            content = self.first(found, seen, report)
            return self.target.replace(generation, content.rows, content.key, self.commit(seen))
        latest = found.rows(self.session)
        rows = changes(latest, found.facts, shapes)
        self.target.shape_as(generation, rows.drop(DELETED))  # raises TR-522 before Spark unites columns of two types
        passed = truncates(latest, shapes)
        earlier = _without(before_truncates(latest, passed, shapes), rows, key)
        removed = _without(_without(self.target.rows(generation), rows, key), earlier, key).select(
            *map(quote, key), F.lit(True).alias(DELETED), first_time(passed).alias(DELETED_AT)
        )
        everything = rows.unionByName(earlier.unionByName(removed), allowMissingColumns=True)
        return self.target.merge(generation, everything, key, self.commit(seen))

    def retained(self, generation: int, rows: DataFrame, key: Sequence[str]) -> DataFrame | None:
        deleted = self.target.stored_rows(generation).where(F.col(DELETED_AT).isNotNull())
        return _without(deleted, rows, key)

    def check_columns(self, columns: Mapping[str, DataType]) -> None:
        check_soft_deletes(self.view, columns)


def _with_time(columns: Mapping[str, DataType]) -> dict[str, DataType]:
    return {**columns, DELETED_AT: TimestampType()}


def _without(rows: DataFrame, others: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the rows whose key is not among those of `others`."""
    names = {name: f"tailrace_k{number}" for number, name in enumerate(key)}
    keys = others.select(*(F.col(quote(name)).alias(other) for name, other in names.items()))
    same = reduce(Column.__and__, (F.col(quote(name)).eqNullSafe(F.col(other)) for name, other in names.items()))
    return rows.join(keys, same, "left_anti")
