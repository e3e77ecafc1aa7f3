"""Batches of views that retain the past: shapes `history` (all row versions) and `log` (all changes).

They read every record between two cuts, not only the newest of each key, and compaction removes records. So they
continue only while compaction cannot have removed unread records, and a rebuild continues from a copy of the live
generation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType, TimestampType

from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import now_ms, read_views
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import (
    DELETED,
    FROM_LSN,
    FROM_ORDINAL,
    TO_LSN,
    VALID_FROM,
    VALID_TO,
    VALIDITY,
    Applied,
    HistoryFrom,
)
from tailrace.spark_jobs.maintain.batch import Report, check_definition, check_whole, fill, own_cut, settled
from tailrace.spark_jobs.maintain.kept_view import Shared
from tailrace.spark_jobs.maintain.versions import standing_at, versions
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.events import AT, LSN, OP, ORDINAL, columns_of, complete_from, each_once, events, plain
from tailrace.spark_jobs.topics.records import Every
from tailrace.spark_jobs.topics.shapes import TableShapes, widens
from tailrace.spark_jobs.views import Declared, check_shapes

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
class KeepingBatch(ABC):
    """Batches of one `history` or `log` view; `session` is the view's own."""

    view: Declared
    target: IcebergTarget
    session: SparkSession
    shared: Shared
    _cached: list[DataFrame] = field(default_factory=list)

    own: ClassVar[Mapping[str, DataType]]
    """The columns that the shape adds to those of the table."""

    @abstractmethod
    def key(self, shapes: TableShapes) -> tuple[str, ...]:
        """Return the key columns of the view."""

    @abstractmethod
    def begun(self, found: DataFrame, every: Every | None, shapes: TableShapes, begins: int) -> DataFrame:
        """Return all rows of a view that begins at the LSN `begins`, from the events of a whole topic."""

    @abstractmethod
    def added(self, applied: Applied, found: DataFrame, every: Every, shapes: TableShapes, cut: Cut) -> Applied:
        """Commit the rows that the events of a span add."""

    def advance(
        self, applied: Applied | None, seen: SeenCut, report: Report, *, generation: int | None = None
    ) -> Applied:
        """Bring a generation from `applied` to the cut; a cut at or before it changes nothing.

        With nothing applied, begin with a copy of the live generation, if there is one that can be continued, else at
        the earliest LSN from which the topic still has all versions. StateError if versions would be missing.
        """
        topic, cut = self.view.topics[0], own_cut(self.view, seen)
        try:
            if applied is None and generation is not None and (live := self._continued()):
                applied = self._copied(live, generation)
                report.stage("copy")
            if applied is not None:
                check_definition(self.view, applied)
                done = settled(self.view, self.target, applied, cut)
                if done is not None:
                    return done
            start = applied.cut.offsets.get(topic, []) if applied else []
            every = self.shared.records.every(topic, start, cut.offsets.get(topic, []))
            report.stage("read")
            shapes = self.shared.records.shapes(topic, every.facts.ids | every.facts.key_ids if every else frozenset())
            self._check_shapes(shapes, every)
            report.rows = every.facts.records if every else 0
            if applied is None:
                report.replaced = True
                if shapes.keys:
                    check_whole(self.view, self.shared.config.kafka, seen)
                return self._begin(every, shapes, cut, generation)
            self.target.history_from = applied.history_from
            if every is None:
                return self.target.unchanged(applied, cut)
            self._check_lag(applied, every)
            found = events(every.records(self.session), every.facts, shapes)
            return self.added(applied, found, every, shapes, cut)
        finally:
            for frame in self._cached:
                frame.unpersist()
            self._cached.clear()
            report.stage("apply")

    def layout(self) -> tuple[Mapping[str, DataType], tuple[str, ...]]:
        """Return the columns and key of a rebuild, which retains all columns of a continued generation."""
        shapes = self.shared.records.newest_shapes(self.view.topics[0])
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

    def _begin(self, every: Every | None, shapes: TableShapes, cut: Cut, generation: int | None) -> Applied:
        columns = {**columns_of(every.facts if every else None, shapes), **self.own}
        if every is None:
            begins = HistoryFrom(self._from(cut.flushed_lsn), cut.commit_ts_us // 1000)
            fields = [StructField(name, kind) for name, kind in columns.items()]
            rows: DataFrame = self.session.createDataFrame([], StructType(fields))
        else:
            span = every.records(self.session)
            least = complete_from(span, now_ms(), self.shared.config.kafka.min_compaction_lag_ms, bool(shapes.keys))
            lsn = self._from(cut.flushed_lsn if least is None else least)
            before = span.where(F.col("lsn") < lsn).agg(F.max("taken_ms")).collect()[0][0]
            begins = HistoryFrom(lsn, before or 0)
            rows = self._keep(self.begun(events(span, every.facts, shapes), every, shapes, lsn))
        self.target.history_from = begins
        return fill(self.target, columns, rows, self.key(shapes), cut, generation)

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
        if live is None or live.definition != self.view.definition or live.history_from is None:
            return None
        wanted = self.view.history_from
        return None if wanted is not None and wanted > live.history_from.lsn else live

    def _copied(self, live: Applied, generation: int) -> Applied:
        """Copy the live generation at its cut.

        StateError (TR-560) if the view was not maintained for so long that it may have missed deletes.
        """
        kafka = self.shared.config.kafka
        record = read_views(kafka, Topics(kafka.prefix)).get(self.view.name)
        level_ms = record.current_ms if record else live.cut.commit_ts_us // 1000
        if now_ms() - level_ms > kafka.delete_retention_ms:
            raise self._behind(live)
        self.target.history_from = live.history_from
        rows = self.session.sql(f"SELECT * FROM {self.target.table()} VERSION AS OF {live.snapshot_id}")
        shapes = self.shared.records.shapes(self.view.topics[0])
        return self.target.replace(generation, rows, self.key(shapes), live.cut)

    def _check_lag(self, applied: Applied, every: Every) -> None:
        """Raise StateError (TR-560) if compaction may have removed versions; call it after reading all.

        Compaction drops a version only in favor of one that is older than the compaction lag.
        """
        if self.shared.records.shapes(self.view.topics[0]).keys and (
            now_ms() - every.facts.oldest_ms >= self.shared.config.kafka.min_compaction_lag_ms
        ):
            raise self._behind(applied)

    def _behind(self, applied: Applied) -> StateError:
        view, lag = self.view.name, self.shared.config.kafka.min_compaction_lag_ms
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

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.persist())
        return frame


@dataclass(slots=True)
class HistoryBatch(KeepingBatch):
    """One row for each version of a row, with its validity; the open version has no end."""

    own: ClassVar[Mapping[str, DataType]] = _VERSION

    def key(self, shapes: TableShapes) -> tuple[str, ...]:
        return (*shapes.key, FROM_LSN, FROM_ORDINAL)

    def begun(self, found: DataFrame, every: Every | None, shapes: TableShapes, begins: int) -> DataFrame:
        return _since(found, every, shapes, begins)

    def added(self, applied: Applied, found: DataFrame, every: Every, shapes: TableShapes, cut: Cut) -> Applied:
        changes = found.where(F.col(OP) != "t")
        self.target.shape_as(applied.generation, found.select(*map(quote, plain(found))))
        open_rows = self.session.sql(f"SELECT * FROM {self.target.reached(applied.generation)} WHERE {TO_LSN} IS NULL")
        truncates = None
        if every.facts.truncated:
            truncates = found.where(F.col(OP) == "t")
        else:
            names = {name: f"key{number}" for number, name in enumerate(shapes.key)}
            keys = changes.select(*(F.col(quote(name)).alias(other) for name, other in names.items())).distinct()
            same = [open_rows[quote(name)] == keys[other] for name, other in names.items()]
            open_rows = open_rows.join(keys, same, "left_semi")
        rows = self._keep(versions(changes, open_rows, truncates, shapes.key, shapes.columns))
        if rows.count() == 0:
            return self.target.unchanged(applied, cut)
        return self.target.merge(applied.generation, rows.withColumn(DELETED, F.lit(False)), self.key(shapes), cut)


@dataclass(slots=True)
class LogBatch(KeepingBatch):
    """One row for each change, preceded by the rows that were valid at the log's start, with op r."""

    own: ClassVar[Mapping[str, DataType]] = _LOG

    def key(self, shapes: TableShapes) -> tuple[str, ...]:
        return ("commit_lsn", "ordinal")

    def begun(self, found: DataFrame, every: Every | None, shapes: TableShapes, begins: int) -> DataFrame:
        changed = _logged(each_once(found, bool(shapes.keys)))
        if not shapes.keys:
            # Without a key, the rows valid at an LSN are unknown; and such a topic is never compacted.
            return changed
        stood = _since(found, every, shapes, begins).where(standing_at(begins))
        names = {FROM_LSN: "commit_lsn", FROM_ORDINAL: "ordinal", VALID_FROM: "committed_at"}
        base = stood.withColumnsRenamed(names).withColumn("op", F.lit("r"))
        return changed.where(F.col("commit_lsn") >= begins).unionByName(base.select(*map(quote, changed.columns)))

    def added(self, applied: Applied, found: DataFrame, every: Every, shapes: TableShapes, cut: Cut) -> Applied:
        rows = self._keep(_logged(each_once(found, bool(shapes.keys))))
        if rows.count() == 0:
            return self.target.unchanged(applied, cut)
        return self.target.append(applied.generation, rows, cut)


def _since(found: DataFrame, every: Every | None, shapes: TableShapes, begins: int) -> DataFrame:
    """Return the versions that were valid at `begins` and all later ones."""
    truncated = every is not None and every.facts.truncated
    truncates = found.where(F.col(OP) == "t") if truncated else None
    rows = versions(found.where(F.col(OP) != "t"), None, truncates, shapes.key, shapes.columns)
    return rows.where(F.col(TO_LSN).isNull() | (F.col(TO_LSN) >= begins))


def _logged(found: DataFrame) -> DataFrame:
    names = {OP: "op", LSN: "commit_lsn", ORDINAL: "ordinal", AT: "committed_at"}
    return found.select(*(F.col(of).alias(name) for of, name in names.items()), *map(quote, plain(found)))
