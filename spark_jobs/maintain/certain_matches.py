"""The matches of a percolate view that can be computed a second time, from the topics up to the view's cut.

A batch matches its changes with the queries as of its own cut, which the table records only for changes that matched.
So a pair of a change and a query is certain only if the query has not changed since: the position of its newest record
is before that of the change. Then every cut that has the change, also that of its batch, has this version. Compared
are these pairs, in the table and computed, of changes that

* are still on the topic, from the view's current beginning on (matches of an earlier one stay in the table),
* have the newest schemas of key and row, and come after all records with others: an index has the fields of one,

with queries that have the newest schema of their key, which is their name, and that depend on nothing but the change:
not on the time ("now"), chance or other indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tailrace.schemas.envelope import FRAMING_SIZE, TRUNCATE_KEY, framing
from tailrace.sinks.opensearch.stored_queries import StoredQueries
from tailrace.sinks.target.lease import view_lease
from tailrace.sinks.target.protocol import Applied
from tailrace.sinks.target.tables import Tables
from tailrace.spark_jobs.log import line
from tailrace.spark_jobs.maintain.kept_view import LEASE_WAIT_S, held_elsewhere
from tailrace.spark_jobs.maintain.percolate import CHANGES, COLUMNS, ORDER, QUERY, PercolateBatch
from tailrace.spark_jobs.topics.events import EPOCH, KEY, LSN, OP, ORDINAL, events

_UNCERTAIN: Final = r'\bnow\b|"(_?index|indexed_shape|more_like_this|neural|percolate|random_score|wrapper)"|\\u'
"""Texts of queries whose result may depend on the time, chance or other documents; or with code that may hide them."""

_CHANGE: Final = ("commit_lsn", "ordinal")
_COMPARED: Final = (*ORDER, "query_version", "key")


@dataclass(frozen=True, slots=True)
class _Pair(Tables):
    """Matches to compare. The cut of their batch is in the table only: a repaired one has the cut of its repair."""

    cut_lsn: int = 0

    def changes(self) -> DataFrame:
        return Tables.changes(self).withColumn("cut_lsn", F.lit(self.cut_lsn).cast("long"))


@dataclass(frozen=True, slots=True)
class CertainMatches:
    """The certain matches: to compare, and as rows of the table; `rest` are the table's other rows."""

    pair: Tables
    rows: DataFrame
    rest: DataFrame


def certain_matches(
    batch: PercolateBatch,
    rows: DataFrame,
    live: Applied,
    pins: ExitStack,
    *,
    say: Callable[..., None] = line,
    wait_s: float = LEASE_WAIT_S,
) -> CertainMatches:
    """Return the matches that can be compared, of `rows` of the table at the cut of `live`.

    `say` logs how many cannot. The queries are in an index of their own until `pins` closes; if another process has it,
    that is waited for, up to `wait_s` seconds, then StateError (TR-529). Memory is that of Spark's cache, which spills
    to disk.
    """
    name, lsn = batch.view.name, live.cut.flushed_lsn
    changed, queries = _changes(batch, live), _queries(batch, live, say)
    if changed is None or queries is None:
        nothing = rows.limit(0)
        found = there = nothing.select(*COLUMNS)
    else:
        places = queries.select("id", F.struct(EPOCH, LSN, ORDINAL).alias("since"))
        found = batch.persist_until_batch_end(_pairs(_matched(batch, changed, queries, live, pins, wait_s), places))
        found.count()  # while the index is there
        known = changed.select(F.col(LSN).alias("commit_lsn"), F.col(ORDINAL).alias("ordinal"))
        now = rows.where(F.col("epoch") == _epoch(live)).join(known, list(_CHANGE), "left_semi")
        there = batch.persist_until_batch_end(_pairs(now, places).select(*COLUMNS))
    rest = rows.join(there.select(*ORDER).distinct(), list(ORDER), "left_anti")
    if left := rest.count():
        say(event="not compared: matches whose change or query is no longer on the topics", view=name, matches=left)
    cuts = there.groupBy(*ORDER).agg(F.min("cut_lsn").alias("cut_lsn"))
    cut_lsn = F.coalesce("cut_lsn", F.lit(lsn)).cast("long").alias("cut_lsn")
    whole = found.select(*_COMPARED).join(cuts, list(ORDER), "left").select(*_COMPARED, cut_lsn)
    pair = _Pair(there.select(*_COMPARED), found.select(*_COMPARED), ORDER, cut_lsn=lsn)
    return CertainMatches(pair, whole.select(*COLUMNS), rest)


def _matched(
    batch: PercolateBatch, changed: DataFrame, queries: DataFrame, live: Applied, pins: ExitStack, wait_s: float
) -> DataFrame:
    """Return the matches of changes with queries, by an index of these queries."""
    columns = batch.records.shapes(batch.view.topics[0]).columns
    types = {column: kind.simpleString() for column, kind in columns.items()}
    index = pins.enter_context(_index(batch, f"{batch.view.name}-verify", wait_s))
    index.clear(types)
    index.store(queries.select(*QUERY), types, live.cut)
    opened = index.opened()
    pins.callback(index.close, opened)
    return batch.matched(changed, opened).withColumn("epoch", _epoch(live)).dropDuplicates(list(ORDER))


def _changes(batch: PercolateBatch, live: Applied) -> DataFrame | None:
    """Return the changes on the topic that the view has certainly matched with the fields that its index has now."""
    topic = batch.view.topics[0]
    every = batch.records.every(topic, [], live.cut.offsets.get(topic, []))
    if every is None or live.history_from is None:
        return None
    shapes = batch.records.newest_shapes(topic)
    newest = next(reversed(shapes.rows))
    span = every.records(batch.session).where((F.col("epoch") == _epoch(live)) & F.col("value").isNotNull())
    mine = _has_schema("value", newest) & _has_schema("key", next(reversed(shapes.keys)))
    truncate = F.col("key") == F.lit(bytearray(TRUNCATE_KEY))
    last = span.where(~mine & ~truncate).agg(F.max("lsn")).collect()[0][0] or 0
    since = max(live.history_from.lsn, last)
    facts = replace(every.facts, ids=frozenset({newest}), key_ids=frozenset(), truncated=False)
    found = events(span.where(mine & ~truncate & (F.col("lsn") > since)), facts, shapes)
    return batch.persist_until_batch_end(found.where(F.col(OP).isin(*CHANGES)).dropDuplicates([LSN, ORDINAL]))


def _queries(batch: PercolateBatch, live: Applied, say: Callable[..., None]) -> DataFrame | None:
    """Return the queries as of the cut whose matches depend on nothing but the change, from `newest_queries`."""
    topic = batch.view.topics[1]
    span = batch.records.every(topic, [], live.cut.offsets.get(topic, []))
    if span is None:
        return None
    key = next(reversed(batch.records.newest_shapes(topic).keys))
    present = F.col("text").isNotNull() & _has_schema(KEY, key)
    newest = batch.persist_until_batch_end(batch.newest_queries(span, live.cut).where(present))
    depends = F.col("text").rlike(_UNCERTAIN)
    if count := newest.where(depends).count():
        what = "not compared: queries that depend on the time, chance or other indexes"
        say(event=what, view=batch.view.name, queries=count)
    return newest.where(~depends)


def _pairs(matches: DataFrame, places: DataFrame) -> DataFrame:
    """Return the matches whose query has had its present version since before the change."""
    place = F.struct(F.col("epoch").cast("long"), *_CHANGE)
    return matches.join(places, matches["query"] == places["id"]).where(place > F.col("since"))


def _has_schema(column: str, number: int) -> Column:
    return F.substring(column, 1, FRAMING_SIZE) == F.lit(bytearray(framing(number)))


def _epoch(live: Applied) -> Column:
    return F.lit(live.cut.position.epoch).cast("int")


@contextmanager
def _index(batch: PercolateBatch, name: str, wait_s: float) -> Iterator[StoredQueries]:
    """Yield an index of queries for this comparison alone, which is dropped after it."""
    index = StoredQueries(batch.search, name, name)
    with view_lease(batch.config, name).held(wait_s) as mine:
        if not mine:
            raise held_elsewhere(name, wait_s)
        try:
            yield index
        finally:
            index.remove()
