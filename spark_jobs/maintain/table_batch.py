"""One batch of a view of one table: the newest record of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from tailrace.sinks.target.protocol import DELETED, Applied
from tailrace.spark_jobs.maintain.batch import Content, Report, ViewBatch, are_few, own_cut, read_whole
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.latest import changes
from tailrace.spark_jobs.topics.records import Latest
from tailrace.spark_jobs.topics.shapes import TableShapes
from tailrace.spark_jobs.views import check_shapes


@dataclass(slots=True)
class TableBatch(ViewBatch[Latest | None]):
    """Batches of a view of one table."""

    with_deletions: ClassVar[bool] = False
    """Whether the times of deletions are read."""

    def layout(self) -> tuple[Mapping[str, DataType], tuple[str, ...]]:
        shapes = self.records.newest_shapes(self.view.topics[0])
        return shapes.columns, shapes.key

    def read(self, applied: Applied | None, seen: SeenCut) -> tuple[SeenCut, Latest | None]:
        (topic,) = self.view.topics
        start = applied.cut.offsets.get(topic, []) if applied else []

        def read(seen: SeenCut) -> tuple[SeenCut, Latest | None]:
            end = own_cut(self.view, seen).offsets.get(topic, [])
            if applied is None and self.target.takes_spooled and not self.with_deletions:
                spooled = self.records.spooled(topic, end)
                if spooled is not None:
                    return seen, spooled
            return seen, self.records.latest(topic, start, end, deletions=self.with_deletions)

        return read_whole(self.view, self.config.kafka, self.cuts.wait, seen, read)

    def whole(self, found: Latest | None, seen: SeenCut, report: Report) -> Content:
        shapes = self._shapes(found, report)
        if found is None:
            fields = [StructField(name, kind) for name, kind in shapes.columns.items()]
            return Content(shapes.columns, self.session.createDataFrame([], StructType(fields)), shapes.key)
        rows = changes(found.rows(self.session), found.facts, shapes)
        return Content(shapes.columns, rows.where(~F.col(DELETED)).drop(DELETED), shapes.key)

    def first(self, found: Latest | None, seen: SeenCut, report: Report) -> Content:
        if found is None or found.spooled is None:
            return self.whole(found, seen, report)
        shapes = self._shapes(found, report)
        nothing = self.session.createDataFrame([], found.spooled.schema)
        return Content(shapes.columns, nothing, shapes.key, spooled=found.spooled)

    def keys_of(self, found: Latest) -> DataFrame:
        """Return the changed rows, and the keys of the deleted ones with NULL in all other columns."""
        rows = changes(found.rows(self.session), found.facts, self._shapes(found, Report()))
        return rows.drop(DELETED)

    def change(self, applied: Applied, found: Latest | None, seen: SeenCut, report: Report) -> Applied:
        if found is not None and found.facts.truncated:
            report.replaced = True
            return self.truncate(applied, found, seen, report)
        shapes = self._shapes(found, report)
        if found is None or found.facts.rows == 0:
            return self.unchanged(applied, seen)
        if found.here is not None or are_few(found.facts.rows, found.rows(self.session)):
            return self.target.merge(applied.generation, self.records.few(found, shapes), shapes.key, self.commit(seen))
        rows = changes(found.rows(self.session), found.facts, shapes)
        return self.target.merge(applied.generation, rows, shapes.key, self.commit(seen))

    def truncate(self, applied: Applied, found: Latest, seen: SeenCut, report: Report) -> Applied:
        """Bring the generation to the cut by changes of which one is a truncate."""
        content = self.whole(found, seen, report)
        return self.target.replace(applied.generation, content.rows, content.key, self.commit(seen))

    def retained(self, generation: int, rows: DataFrame, key: Sequence[str]) -> DataFrame | None:
        """Return the deleted rows that a generation retains, without those that have a key of `rows`."""
        return None

    def check_columns(self, columns: Mapping[str, DataType]) -> None:
        """Raise ConfigError if the view cannot have these columns of its table."""

    def _shapes(self, found: Latest | None, report: Report) -> TableShapes:
        shapes = self.records.shapes(self.view.topics[0], found.facts.schema_ids if found else frozenset())
        check_shapes(self.view, shapes)
        self.check_columns(shapes.columns)
        report.rows = found.facts.rows if found else 0
        return shapes
