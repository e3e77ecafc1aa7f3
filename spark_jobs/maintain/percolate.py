"""Batches of a percolate view: match changes with stored queries, for a table and a topic of matches.

A batch matches every change between two cuts (inserts and updates; a row that is read again has not changed) with
the queries as of the later cut, whose LSN each match records. Matches begin at the first cut of the view. They are
committed to the table first, with the cut, then forwarded to the topic (`sinks.control.matches`): the publisher
continues from the table, so neither loses or repeats a match if a process ends between the two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from tailrace.schemas.config.model import Search
from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import Position, format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.matches import Mark, Match, Publisher
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.opensearch.documents import document, key_text
from tailrace.sinks.opensearch.percolator import Queries, match
from tailrace.sinks.opensearch.stored_queries import StoredQueries, UsersQueries
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import Applied, HistoryFrom
from tailrace.spark_jobs.log import line
from tailrace.spark_jobs.maintain.batch import Content, Report, ViewBatch, are_few, check_whole, own_cut
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.events import EPOCH, KEY, LSN, OP, ORDINAL, each_once, events, plain
from tailrace.spark_jobs.topics.records import Every
from tailrace.spark_jobs.topics.shapes import TableShapes
from tailrace.spark_jobs.views import check_shapes

_FOUND: Final[dict[str, DataType]] = {
    "query": StringType(),
    "query_version": StringType(),
    "key": StringType(),
    "commit_lsn": LongType(),
    "ordinal": LongType(),
}
COLUMNS: Final[dict[str, DataType]] = {**_FOUND, "epoch": IntegerType(), "cut_lsn": LongType()}
"""Columns of the table of matches; `query` and `key` are canonical keys, `query_version` is a position."""

QUERY: Final = ("id", "version", "text")
"""What the index stores of a query: its canonical key, the position of its newest record, and its JSON text."""

ORDER: Final = ("epoch", "commit_lsn", "ordinal", "query")
"""The key of the table of matches, in the order in which they are published."""
CHANGES: Final = ("c", "u")
"""The operations that are matched: a row that is read again has not changed."""


@dataclass(slots=True)
class PercolateBatch(ViewBatch[Every | None]):
    """Batches of one percolate view. They read every record between two cuts."""

    target: IcebergTarget
    publisher: Publisher
    search: Search = field(init=False)
    _stored: StoredQueries | UsersQueries = field(init=False)
    _forwarded: bool = field(default=False, init=False)
    """Whether the topic has all matches of the table; not known, so False, after a start."""

    def __post_init__(self) -> None:
        assert self.config.search is not None  # `declare` has checked it
        self.search = self.config.search
        queries = self.view.queries or ""
        if len(self.view.topics) == 1:
            self._stored = UsersQueries(self.search, queries)
        else:
            self._stored = StoredQueries(self.search, self.view.name, f"{self.view.topics[1]}.{queries}")

    @property
    def has_captured_queries(self) -> bool:
        """Whether the queries are a captured column, so that their versions are on a topic."""
        return isinstance(self._stored, StoredQueries)

    def layout(self) -> tuple[Mapping[str, DataType], tuple[str, ...]]:
        return COLUMNS, ORDER

    def read(self, applied: Applied | None, seen: SeenCut) -> tuple[SeenCut, Every | None]:
        """Read the changes between two cuts; with nothing applied none, because matches begin at the cut."""
        if applied is None:
            return seen, None
        topic, cut = self.view.topics[0], own_cut(self.view, seen)
        return seen, self.records.every(topic, applied.cut.offsets.get(topic, []), cut.offsets.get(topic, []))

    def whole(self, found: Every | None, seen: SeenCut, report: Report) -> Content:
        self._keep_queries(own_cut(self.view, seen))
        check_whole(self.view, self.config.kafka, seen)
        return Content(COLUMNS, self._empty(), ORDER, _begins(seen.cut))

    def change(self, applied: Applied, found: Every | None, seen: SeenCut, report: Report) -> Applied:
        """Match the changes. StateError if some may be missing from the topic."""
        shapes = self._keep_queries(own_cut(self.view, seen), found)
        check_whole(self.view, self.config.kafka, seen)
        report.stage("queries")
        if found is None:
            return self.unchanged(applied, seen)
        self._check_lag(applied, found)
        report.rows = found.facts.records
        return self._append(applied, seen, each_once(events(found.records(self.session), found.facts, shapes), True))

    def finish(self, applied: Applied) -> None:
        """Forward the matches that the topic lacks. After a SinkError, the topic's content is unknown."""
        if not self._forwarded:
            self.publisher.forward(self._page, applied.cut.position)
            self._forwarded = True

    def superseded(self) -> None:
        """Close the producer, which that of another process has fenced; the topic may lack matches of the table."""
        self.publisher.close()
        self._forwarded = False

    def add_to_topic(self, changes: DataFrame) -> None:
        """Publish repaired matches, rows of the table, that are before the last forwarded one and not on the topic.

        To be called before they are written to the table: a repair that ends in between is repeated, and finds them
        on the topic. Those after the last forwarded one are forwarded by `finish`, after they are written.
        """
        self._forwarded = False
        self.publisher.add(map(_match_of, changes.orderBy(*ORDER).toLocalIterator()))

    def remove_queries(self) -> None:
        """Drop the index of queries if it is ours; a user's own index stays."""
        if isinstance(self._stored, StoredQueries):
            self._stored.remove()

    def begin_anew(self, applied: Applied, seen: SeenCut) -> Applied:
        """Continue from the cut without the changes before it, with all queries read again; matches stay.

        StateError (TR-592) if the table was built from another definition, or is past the topics.
        """
        cut = own_cut(self.view, seen)
        if applied.definition != self.view.definition or cut.position < applied.cut.position:
            raise StateError(
                "TR-592",
                f'view "{self.view.name}": its table holds something else, or matches from behind the topics\' end',
                detail=f"It stands at {applied.cut.position}, the topics at {cut.position}.",
                hint="Let it stand as it is, and declare another view, which begins now.",
            )
        self.finish(applied)
        self._keep_queries(cut, anew=True)
        return self.target.append(applied.generation, self._empty(), self.commit(seen, _begins(cut)))

    def _append(self, applied: Applied, seen: SeenCut, found: DataFrame) -> Applied:
        # At-least-once delivery may repeat an applied change, with its old position.
        newer = F.col(LSN) > applied.cut.position.commit_lsn
        changed = found.where(F.col(OP).isin(*CHANGES) & newer)
        queries = self._stored.opened()
        try:
            matched = self.matched(changed, queries)
            matches = matched.select(
                *_FOUND,
                F.lit(seen.cut.position.epoch).cast("int").alias("epoch"),
                F.lit(seen.cut.flushed_lsn).cast("long").alias("cut_lsn"),
            ).persist()
            try:
                count = matches.count()
                if not count:
                    return self.unchanged(applied, seen)
                self._forwarded = False
                commit = self.commit(seen, applied.history_from)
                added = FewRows.of(matches) if are_few(count, matches) else matches
                return self.target.append(applied.generation, added, commit)
            finally:
                matches.unpersist()
        finally:
            self._stored.close(queries)

    def matched(self, changed: DataFrame, queries: Queries) -> DataFrame:
        """Return the matches of changes, from `events`, with stored queries, without epoch and cut."""
        key = self.records.shapes(self.view.topics[0]).key
        rows = changed.select(key_text(changed, key), LSN, ORDINAL, document(changed, plain(changed)))
        work = partial(match, search=self.search, queries=queries)
        return self.session.createDataFrame(rows.rdd.mapPartitions(work), _schema(_FOUND))

    def _keep_queries(self, cut: Cut, every: Every | None = None, *, anew: bool = False) -> TableShapes:
        """Bring the index of queries to the cut; return the shapes of the table whose rows are matched."""
        ids = every.facts.ids | every.facts.key_ids if every else frozenset()
        shapes = self.records.shapes(self.view.topics[0], ids)
        check_shapes(self.view, shapes)
        if isinstance(self._stored, UsersQueries):
            return shapes
        topic, columns = self.view.topics[1], {name: kind.simpleString() for name, kind in shapes.columns.items()}
        held = self._stored.open(columns)
        if anew:
            self._stored.clear(columns)
            held = None
        span = self.records.every(topic, held.offsets.get(topic, []) if held else [], cut.offsets.get(topic, []))
        if span is None and held is not None:
            return shapes
        if span is None:
            self._stored.store(self._no_changes(), columns, cut)
            return shapes
        if held is not None and span.facts.truncated:
            self._stored.clear(columns)
        self._stored.store(self.newest_queries(span, cut).select(*QUERY), columns, cut)
        count, first = self._stored.parked(3)
        if count:
            line(
                event="parked queries",
                level="warning",
                view=self.view.name,
                code="TR-590",
                queries=count,
                first=[f"{each.query} {each.version}" for each in first],
                hint=f"tailrace views explain {self.view.name}",
            )
        return shapes

    def newest_queries(self, span: Every, cut: Cut) -> DataFrame:
        """Return `QUERY`, position and key of each query that has changed; a deleted query's text is null."""
        topic = self.view.topics[1]
        shapes = self.records.shapes(topic, span.facts.ids | span.facts.key_ids)
        column = self.view.queries or ""
        if not shapes.keys or column not in shapes.columns:
            missing = f'has no column "{column}"' if shapes.keys else "has no key, so its queries have no name"
            raise ConfigError(
                "TR-594",
                f'view "{self.view.name}": the table of its queries {missing}',
                hint=f'[views.{self.view.name}] queries = "schema.table.column"',
            )
        found = events(span.records(self.session), span.facts, shapes)
        place = F.struct(EPOCH, LSN, ORDINAL)
        if span.facts.truncated:
            last = found.where(F.col(OP) == "t").agg(F.max(place)).collect()[0][0]
            found = found.where(place > _struct(last.asDict()))
        query = F.struct(
            key_text(found, shapes.key).alias("id"),
            _position(cut.position.epoch).alias("version"),
            F.when(F.col(OP) != "d", F.col(quote(column)).cast("string")).alias("text"),
        )
        newest = found.groupBy(KEY).agg(F.max_by(query, place).alias("it"), F.max(place).alias("at"))
        return newest.select("it.*", "at.*", KEY)

    def _no_changes(self) -> DataFrame:
        return self.session.createDataFrame([], "id string, version string, text string")

    def _page(self, mark: Mark | None, most: int) -> Sequence[Match]:
        """Return the first matches of the table after a mark, `most` at most."""
        table = self.session.table(self.target.table())
        if mark is not None:
            at = mark.position
            behind = F.struct(*ORDER) > _struct(
                dict(zip(ORDER, (at.epoch, at.commit_lsn, at.ordinal, mark.query), strict=True))
            )
            # The second condition skips most files, by their statistics.
            table = table.where(behind & ((F.col("epoch") > at.epoch) | (F.col("commit_lsn") >= at.commit_lsn)))
        return [_match_of(row) for row in table.orderBy(*ORDER).limit(most).collect()]

    def _empty(self) -> DataFrame:
        return self.session.createDataFrame([], _schema(COLUMNS))

    def _check_lag(self, applied: Applied, every: Every) -> None:
        """Raise StateError (TR-591) if compaction may have removed changes; call it after reading all.

        Compaction drops a record only in favor of one that is older than the compaction lag.
        """
        lag = self.config.kafka.min_compaction_lag_ms
        if now_ms() - every.facts.oldest_ms < lag:
            return
        raise StateError(
            "TR-591",
            f'view "{self.view.name}" is so far behind that changes may be gone from its topic',
            detail=f"It stands at {format_lsn(applied.cut.flushed_lsn)}; records behind that are older than "
            f"kafka.min_compaction_lag_ms ({lag // 60_000} min).",
            hint=f"tailrace views rebuild {self.view.name}  # goes on from now; what lies between is not matched",
        )


def _begins(cut: Cut) -> HistoryFrom:
    return HistoryFrom(cut.flushed_lsn, cut.commit_ts_us // 1000)


def _match_of(row: Row) -> Match:
    position = Position(row.epoch, row.commit_lsn, row.ordinal)
    return Match(row.query, row.query_version, row.key, position, row.cut_lsn)


def _schema(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def _struct(values: dict[str, int | str]) -> Column:
    """Return a literal to compare with a struct of these columns; all their numbers but epochs are long."""
    kinds = {name: COLUMNS.get(name, LongType()) for name in values}
    return F.struct(*(F.lit(value).cast(kinds[name]).alias(name) for name, value in values.items()))


def _position(epoch: int) -> Column:
    """Return a record's position in the text form of `Position`."""
    high, low = F.shiftrightunsigned(LSN, 32), F.col(LSN).bitwiseAND(F.lit(0xFFFFFFFF))
    lsn = F.concat(F.hex(high), F.lit("/"), F.hex(low))
    return F.concat_ws(":", F.lit(str(epoch)), lsn, F.col(ORDINAL).cast("string"))
