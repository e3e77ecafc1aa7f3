"""Batches of views that retain the past: shapes `history` (all row versions) and `log` (all changes).

They read every record between two cuts, not only the newest of each key, and compaction removes records. So they
continue only while compaction cannot have removed unread records, and a rebuild continues from a copy of the live
generation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import now_ms, read_views
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.spark.one_task import in_one_task
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import (
    DELETED,
    FROM_LSN,
    FROM_ORDINAL,
    TO_LSN,
    VALID_FROM,
    VALID_TO,
    VALIDITY,
    Applied,
    Commit,
    HistoryFrom,
)
from tailrace.spark_jobs.lookup.known_tables import KnownTables, ViewLayout, rows_of_view
from tailrace.spark_jobs.lookup.table_rows import Log, NotKnown
from tailrace.spark_jobs.maintain.batch import FEW_ROWS, Content, Report, ViewBatch, are_few, check_whole, own_cut
from tailrace.spark_jobs.maintain.versions import standing_at, versions
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.events import AT, LSN, OP, ORDINAL, columns_of, complete_from, each_once, events, plain
from tailrace.spark_jobs.topics.records import Every
from tailrace.spark_jobs.topics.shapes import TableShapes, widens
from tailrace.spark_jobs.views import check_shapes

_VERSION: Final[dict[str, DataType]] = {
    name: TimestampType() if name in (VALID_FROM, VALID_TO) else LongType() for name in VALIDITY
}
_LOG: Final[dict[str, DataType]] = {
    "op": StringType(),
    "commit_lsn": LongType(),
    "ordinal": LongType(),
    "committed_at": TimestampType(),
}


@dataclass(slots=True)
class KeepingBatch(ViewBatch[Every | None]):
    """Batches of one `history` or `log` view. They read every record between two cuts."""

    target: IcebergTarget

    own: ClassVar[Mapping[str, DataType]]
    """The columns that the shape adds to those of the table."""

    @abstractmethod
    def key(self, shapes: TableShapes) -> tuple[str, ...]:
        """Return the key columns of the view."""

    @abstractmethod
    def begun(self, found: DataFrame, every: Every, shapes: TableShapes, begins: int) -> DataFrame:
        """Return all rows of a view that begins at the LSN `begins`, from the events of a whole topic."""

    @abstractmethod
    def added(self, applied: Applied, found: DataFrame, every: Every, shapes: TableShapes, seen: SeenCut) -> Applied:
        """Commit the rows that the events of a span add."""

    def layout(self) -> tuple[Mapping[str, DataType], tuple[str, ...]]:
        """Return the columns and key of a rebuild, which retains all columns of a continued generation."""
        shapes = self.records.newest_shapes(self.view.topics[0])
        self._check_shapes(shapes, None)
        columns = {**shapes.columns, **self.own}
        if self._continued() is None:
            return columns, self.key(shapes)
        there = {column.name: column.dataType for column in self.session.table(self.target.table()).schema}
        for name, kind in columns.items():
            old = there.get(name, kind)
            if old.simpleString() != kind.simpleString() and not widens(old, kind):
                raise StateError(
                    "TR-566",
                    f'view "{self.view.name}": column "{name}" was {old.simpleString()} and is {kind.simpleString()}',
                    detail="Its old values cannot be of the new type without a loss, and its history keeps them.",
                    hint="Let this view stand as it is, and declare another one, which begins now.",
                )
        return there | columns, self.key(shapes)

    def continued(self, generation: int, report: Report) -> Applied | None:
        """Copy the live generation at its cut, if it can be continued.

        StateError (TR-560) if the view was not maintained for so long that it may have missed deletes.
        """
        live = self._continued()
        if live is None:
            return None
        kafka = self.config.kafka
        record = read_views(kafka, Topics(kafka.prefix)).get(self.view.name)
        level_ms = record.current_ms if record else live.cut.commit_ts_us // 1000
        if now_ms() - level_ms > kafka.delete_retention_ms:
            raise self._behind(live)
        rows = self.session.sql(f"SELECT * FROM {self.target.table()} VERSION AS OF {live.snapshot_id}")
        shapes = self.records.shapes(self.view.topics[0])
        commit = Commit(live.cut, live.level_since_ms, history_from=live.history_from)
        copied = self.target.replace(generation, rows, self.key(shapes), commit)
        report.stage("copy")
        return copied

    def read(self, applied: Applied | None, seen: SeenCut) -> tuple[SeenCut, Every | None]:
        (topic,), cut = self.view.topics, own_cut(self.view, seen)
        start = applied.cut.offsets.get(topic, []) if applied else []
        return seen, self.records.every(topic, start, cut.offsets.get(topic, []))

    def whole(self, found: Every | None, seen: SeenCut, report: Report) -> Content:
        """Return the rows since the earliest LSN from which the topic still has all versions."""
        shapes = self._shapes(found, report)
        if shapes.keys:
            check_whole(self.view, self.config.kafka, seen)
        columns = {**columns_of(found.facts if found else None, shapes), **self.own}
        if found is None:
            begins = HistoryFrom(self._from(seen.cut.flushed_lsn), seen.cut.commit_ts_us // 1000)
            fields = [StructField(name, kind) for name, kind in columns.items()]
            nothing = self.session.createDataFrame([], StructType(fields))
            return Content(columns, nothing, self.key(shapes), begins)
        span = found.records(self.session)
        least = complete_from(span, now_ms(), self.config.kafka.min_compaction_lag_ms, bool(shapes.keys))
        lsn = self._from(seen.cut.flushed_lsn if least is None else least)
        before = span.where(F.col("lsn") < lsn).agg(F.max("taken_ms")).collect()[0][0]
        rows = self.persist_until_batch_end(self.begun(events(span, found.facts, shapes), found, shapes, lsn))
        return Content(columns, rows, self.key(shapes), HistoryFrom(lsn, before or 0))

    def change(self, applied: Applied, found: Every | None, seen: SeenCut, report: Report) -> Applied:
        """Add what the span holds. StateError if versions would be missing."""
        shapes = self._shapes(found, report)
        if found is None:
            return self.unchanged(applied, seen)
        self._check_lag(applied, found)
        return self.added(applied, events(found.records(self.session), found.facts, shapes), found, shapes, seen)

    def _shapes(self, found: Every | None, report: Report) -> TableShapes:
        ids = found.facts.ids | found.facts.key_ids if found else frozenset[int]()
        shapes = self.records.shapes(self.view.topics[0], ids)
        self._check_shapes(shapes, found)
        report.rows = found.facts.records if found else 0
        return shapes

    def _from(self, least: int) -> int:
        """Return the LSN at which the view begins: the configured one, else the earliest possible, `least`."""
        wanted = self.view.history_from
        if wanted is not None and wanted < least:
            raise ConfigError(
                "TR-565",
                f'view "{self.view.name}" cannot begin at {format_lsn(wanted)}',
                detail=f"Versions from before {format_lsn(least)} may be gone from its topic, or never were on it.",
                hint=f'[views.{self.view.name}] history_from = "{format_lsn(least)}", or leave it out',
            )
        return least if wanted is None else wanted

    def _continued(self) -> Applied | None:
        """Return the live generation if it can be continued: of this shape, not configured to begin later."""
        live = self.target.live()
        if live is None or not self.view.has_rows_of(live.definition) or live.history_from is None:
            return None
        wanted = self.view.history_from
        return None if wanted is not None and wanted > live.history_from.lsn else live

    def _check_lag(self, applied: Applied, every: Every) -> None:
        """Raise StateError (TR-560) if compaction may have removed versions; call it after reading all.

        Compaction drops a version only in favor of one that is older than the compaction lag.
        """
        if self.records.shapes(self.view.topics[0]).keys and (
            now_ms() - every.facts.oldest_ms >= self.config.kafka.min_compaction_lag_ms
        ):
            raise self._behind(applied)

    def _behind(self, applied: Applied) -> StateError:
        view, lag = self.view.name, self.config.kafka.min_compaction_lag_ms
        return StateError(
            "TR-560",
            f'view "{view}" is so far behind that versions may be gone from its topic',
            detail=f"It stands at {format_lsn(applied.cut.flushed_lsn)}; records behind that are older than "
            f"kafka.min_compaction_lag_ms ({lag // 60_000} min), or its last look at them was before deletes went.",
            hint=f"Keep it, and declare another view, which begins now; or give up what it has: [views.{view}] "
            f'history_from = "{format_lsn(applied.cut.flushed_lsn + 1)}" or later, then: tailrace views rebuild {view}',
        )

    def _check_shapes(self, shapes: TableShapes, every: Every | None) -> None:
        check_shapes(self.view, shapes)
        taken = sorted(columns_of(every.facts if every else None, shapes).keys() & self.own.keys())
        if taken:
            raise ConfigError(
                "TR-564",
                f'view "{self.view.name}": its table has a column "{taken[0]}", and so has shape "{self.view.shape}"',
                detail=f"The shape adds: {', '.join(self.own)}.",
                hint='Rename the column, or take shape = "current".',
            )


@dataclass(slots=True)
class HistoryBatch(KeepingBatch):
    """One row for each version of a row, with its validity; the open version has no end."""

    known: KnownTables

    own: ClassVar[Mapping[str, DataType]] = _VERSION

    def key(self, shapes: TableShapes) -> tuple[str, ...]:
        return (*shapes.key, FROM_LSN, FROM_ORDINAL)

    def begun(self, found: DataFrame, every: Every, shapes: TableShapes, begins: int) -> DataFrame:
        return _since(found, every, shapes, begins)

    def added(self, applied: Applied, found: DataFrame, every: Every, shapes: TableShapes, seen: SeenCut) -> Applied:
        changes = found.where(F.col(OP) != "t")
        self.target.shape_as(applied.generation, found.select(*map(quote, plain(found))))
        truncates = found.where(F.col(OP) == "t") if every.facts.truncated else None
        few = truncates is None and every.facts.records <= FEW_ROWS
        with in_one_task(self.session, few=few):
            open_rows = self._looked_up(applied, changes, shapes, seen) if few else None
            if open_rows is None:
                open_rows = self._read(applied, None if truncates is not None else changes, shapes)
            rows = self.persist_until_batch_end(versions(changes, open_rows, truncates, shapes.key))
            count = rows.count()
        if count == 0:
            return self.unchanged(applied, seen)
        changed, commit = rows.withColumn(DELETED, F.lit(False)), self.commit(seen, applied.history_from)
        given = FewRows.of(changed) if are_few(count, rows) else changed
        return self.target.merge(applied.generation, given, self.key(shapes), commit)

    def _read(self, applied: Applied, changes: DataFrame | None, shapes: TableShapes) -> DataFrame:
        """Read the open versions from the view's table, of the keys of `changes` or of all."""
        open_rows = self.session.sql(f"SELECT * FROM {self.target.reached(applied.generation)} WHERE {TO_LSN} IS NULL")
        if changes is None:
            return open_rows
        names = {name: f"key{number}" for number, name in enumerate(shapes.key)}
        keys = changes.select(*(F.col(quote(name)).alias(other) for name, other in names.items())).distinct()
        same = [open_rows[quote(name)] == keys[other] for name, other in names.items()]
        return open_rows.join(keys, same, "left_semi")

    def _looked_up(self, applied: Applied, changes: DataFrame, shapes: TableShapes, seen: SeenCut) -> DataFrame | None:
        """Look up the open versions of the keys of `changes`; None, with a line in the log, if that is impossible."""
        if not self.config.spark.lookups or not self.target.is_live(applied.generation):
            return None
        assert applied.snapshot_id is not None  # it is in the warehouse
        layout, name = ViewLayout(self.target.columns(), self.key(shapes)), self.view.name
        try:
            rows = self.known.of(self.config.warehouse, rows_of_view(self.config.warehouse, name), layout)
            if nested := sorted(layout.columns.keys() - rows.form.columns.keys()):
                raise NotKnown(f'column "{nested[0]}" has a nested type')
            commit, log, by = applied.snapshot_id, Log.of(applied.cut), (*shapes.key, TO_LSN)
            rows.ensure_index(by)
            with rows.renewal:
                self.known.bring_to(commit, name, rows, self.target.batches, log, seen.level_ms)
            keys = changes.select(*map(quote, shapes.key)).distinct().toArrow()
            kinds = rows.form.columns
            values = [keys.column(each).cast(kinds[each]).combine_chunks() for each in shapes.key]
            found = rows.rows((commit,), by, [*values, pa.nulls(keys.num_rows, kinds[TO_LSN])], FEW_ROWS)
        except NotKnown as error:
            self.known.note(name, str(error))
            return None
        kinds_in_spark = StructType([StructField(each, kind) for each, kind in layout.columns.items()])
        return self.session.createDataFrame(rows.form.decode(list(found.values())), kinds_in_spark)


@dataclass(slots=True)
class LogBatch(KeepingBatch):
    """One row for each change, preceded by the rows that were valid at the log's start, with op r."""

    own: ClassVar[Mapping[str, DataType]] = _LOG

    def key(self, shapes: TableShapes) -> tuple[str, ...]:
        return ("commit_lsn", "ordinal")

    def begun(self, found: DataFrame, every: Every, shapes: TableShapes, begins: int) -> DataFrame:
        changed = _logged(each_once(found, bool(shapes.keys)))
        if not shapes.keys:
            # Without a key, the rows valid at an LSN are unknown; and such a topic is never compacted.
            return changed
        stood = _since(found, every, shapes, begins).where(standing_at(begins))
        names = {FROM_LSN: "commit_lsn", FROM_ORDINAL: "ordinal", VALID_FROM: "committed_at"}
        base = stood.withColumnsRenamed(names).withColumn("op", F.lit("r"))
        return changed.where(F.col("commit_lsn") >= begins).unionByName(base.select(*map(quote, changed.columns)))

    def added(self, applied: Applied, found: DataFrame, every: Every, shapes: TableShapes, seen: SeenCut) -> Applied:
        rows = self.persist_until_batch_end(_logged(each_once(found, bool(shapes.keys))))
        count = rows.count()
        if count == 0:
            return self.unchanged(applied, seen)
        commit = self.commit(seen, applied.history_from)
        return self.target.append(applied.generation, FewRows.of(rows) if are_few(count, rows) else rows, commit)


def _since(found: DataFrame, every: Every, shapes: TableShapes, begins: int) -> DataFrame:
    """Return the versions that were valid at `begins` and all later ones."""
    truncates = found.where(F.col(OP) == "t") if every.facts.truncated else None
    rows = versions(found.where(F.col(OP) != "t"), None, truncates, shapes.key)
    return rows.where(F.col(TO_LSN).isNull() | (F.col(TO_LSN) >= begins))


def _logged(found: DataFrame) -> DataFrame:
    names = {OP: "op", LSN: "commit_lsn", ORDINAL: "ordinal", AT: "committed_at"}
    return found.select(*(F.col(of).alias(name) for of, name in names.items()), *map(quote, plain(found)))
