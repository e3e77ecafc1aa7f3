"""Repair a view: give the rows that differ from their recomputed content that content, at the view's own cut.

The view, the views below it and their base tables are brought to one cut and held by their leases: `follow` maintains
the other views meanwhile. Each target gets one commit with the cut that it is at, so a repair that is cut short leaves
rows as they were or repaired, and repeating it does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.kind import not_made
from tailrace.sinks.target.protocol import DELETED, Applied, Commit
from tailrace.sinks.target.tables import Tables
from tailrace.spark_jobs.jobs.swap import alone, held
from tailrace.spark_jobs.jobs.verify import is_whole, versions_or_changes
from tailrace.spark_jobs.log import line
from tailrace.spark_jobs.maintain.base_tables import base_name
from tailrace.spark_jobs.maintain.batch import Report, ViewBatch, check_definition
from tailrace.spark_jobs.maintain.certain_matches import certain_matches
from tailrace.spark_jobs.maintain.difference import not_unique
from tailrace.spark_jobs.maintain.history_batch import KeepingBatch
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.percolate import PercolateBatch
from tailrace.spark_jobs.maintain.query_batch import QueryBatch
from tailrace.spark_jobs.maintain.table_batch import TableBatch
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.views.lower import in_order

_ROUNDS: Final = 5
"""Maximum number of batches until a view is level with its inputs; with all of them held, two are enough."""


@dataclass(frozen=True, slots=True)
class Mended:
    """The repair of a view, or of the base table of a table that its query reads."""

    view: str
    table: str | None
    keys: int
    cut: str
    replaced: bool
    """All rows were replaced: some key was there twice."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """The content that a target should have; `rest` are its other rows, which nothing can be compared with."""

    pair: Tables
    rows: DataFrame
    key: tuple[str, ...]
    rest: DataFrame | None = None


def mend(shared: Shared, view: KeptView) -> list[Mended]:
    """Repair a view and, of a query, its base tables; return what was repaired, nothing if all was right.

    ConfigError (TR-703) for a view whose content cannot be computed a second time; StateError (TR-704) if compaction
    may have removed records meanwhile; StateError (TR-549) if several rows of a query have one key.
    """
    batch, name = view.batch, view.declared.name
    if isinstance(batch, PercolateBatch) and not batch.has_captured_queries:
        raise ConfigError(
            "TR-703",
            f'view "{name}" cannot be repaired: its queries are in an index of yours',
            detail="Its matches depend on the queries that were in it when a change arrived; they are on no topic.",
            hint=f"tailrace views rebuild {name}",
        )
    with alone(shared, view), ExitStack() as pins:
        pins.callback(shared.records.release)
        pins.callback(batch.release)
        lower = _lower(shared, view)
        # all processes take leases downwards, and those of base tables last, in one order
        bases = {base.declared.name: base for each in (view, *lower) for base in _bases(each)}
        for each in (view, *lower, *(bases[name] for name in sorted(bases))):
            pins.enter_context(held(each))
        seen = _level(shared, view, [*lower, *bases.values()])
        found: list[Mended] = []
        for table, topic in view.declared.topic_of.items():
            base = bases[base_name(topic, commits=view.declared.commits)]
            found += _mended(shared, view, base, table, _of_table(base, seen, pins), seen)
        found += _mended(shared, view, view, None, _of_view(shared, view, seen, pins), seen)
        view.drop_differences()
        if found and isinstance(batch, QueryBatch):
            batch.doubt_lookups()
        return found


def _lower(shared: Shared, view: KeptView) -> list[KeptView]:
    """Return the views below a view, each before those that it reads itself."""
    below = set[str]()
    waiting = list(view.declared.views)
    while waiting:
        name = waiting.pop()
        below.add(name)
        waiting += shared.views[name].declared.views
    return [shared.views[name] for name in reversed(in_order(shared.config, sorted(below)))]


def _bases(view: KeptView) -> Iterator[KeptView]:
    """Yield the base tables of the tables that a view's query reads itself."""
    if isinstance(view.batch, QueryBatch):
        for topic in view.declared.topics_read:
            yield view.batch.inputs.base(topic)


def _level(shared: Shared, view: KeptView, below: Sequence[KeptView]) -> SeenCut:
    """Bring a view and all below it to the newest cut, and return it."""
    live, _ = view.load()
    if live is None:
        raise not_made(view.declared.name)
    check_definition(view.declared, live)
    seen = shared.cuts.wait(view.declared)
    for _ in range(_ROUNDS):
        applied = view.step(seen, Report())
        assert applied is not None
        states = [each.load()[0] for each in below]
        furthest = max((state.cut.order for state in states if state is not None), default=applied.cut.order)
        if applied.cut.order >= furthest:
            return SeenCut(applied.cut, view.level_ms)
        while seen.cut.order < furthest:
            seen = shared.cuts.newest(view.declared, wait=1.0) or seen
    raise _moved(view)


def _of_table(table: KeptView, seen: SeenCut, pins: ExitStack) -> _Whole:
    """Return the content of a view of one table, or of a base table."""
    (topic,) = table.declared.topics
    pins.callback(table.batch.release)
    batch = table.batch
    content = batch.whole(batch.records.latest(topic, [], seen.cut.offsets.get(topic, [])), seen, Report())
    found = _paired(batch, content.rows, tuple(content.key), pins)
    live = batch.target.live()
    if isinstance(batch, TableBatch) and live is not None:
        return replace(found, rest=batch.retained(live.generation, found.rows, found.key))
    return found


def _of_view(shared: Shared, view: KeptView, seen: SeenCut, pins: ExitStack) -> _Whole:
    batch = view.batch
    if isinstance(batch, QueryBatch):
        batch.inputs.take_as_they_are()
        query, rows = batch.computed(seen.cut)
        return _paired(batch, rows, tuple(query.key), pins)
    if not isinstance(batch, KeepingBatch | PercolateBatch):
        return _of_table(view, seen, pins)
    live, _ = view.load()
    assert live is not None
    there = batch.target.rows(live.generation)
    if isinstance(batch, PercolateBatch):
        matches = certain_matches(batch, there, live, pins)
        return _Whole(matches.pair, matches.rows, tuple(matches.pair.key), matches.rest)
    pair, rest = versions_or_changes(batch, there, live, seen)
    return _Whole(pair, pair.staged, tuple(pair.key), rest)


def _paired(batch: ViewBatch[Any], rows: DataFrame, key: tuple[str, ...], pins: ExitStack) -> _Whole:
    rows = batch.persist_until_batch_end(rows)  # it is used several times
    live = batch.target.live()
    assert live is not None
    return _Whole(batch.target.pair_with(live.generation, rows, key, pins), rows, key)


def _mended(
    shared: Shared, view: KeptView, target: KeptView, table: str | None, whole: _Whole, seen: SeenCut
) -> Iterator[Mended]:
    """Write the differing rows of a view or base table; yield nothing if there is none."""
    counts, _ = whole.pair.compare(shared.session, 0)
    if not counts.total:
        return
    live, level_ms = target.load()
    assert live is not None
    _check_age(shared, view, seen)
    commit = Commit(live.cut, live.level_since_ms, live.inputs, live.history_from)
    what = f"the base table of {table}" if table else "the view"
    line(event="progress", view=view.declared.name, stage=f"repairing {what}")
    if isinstance(target.batch, PercolateBatch):
        target.batch.add_to_topic(whole.pair.changes().where(f"NOT {DELETED}"))
    done = _written(target, live, whole, commit, twice=counts.repeated > 0)
    target.batch.finish(done)
    target.publish(done, level_ms)
    target.forget()
    lsn = format_lsn(live.cut.flushed_lsn)
    line(event="rows repaired", view=view.declared.name, table=table, keys=counts.total, lsn=lsn)
    yield Mended(view.declared.name, table, counts.total, lsn, counts.repeated > 0)


def _written(target: KeptView, live: Applied, whole: _Whole, commit: Commit, *, twice: bool) -> Applied:
    if not twice:
        return target.batch.target.mend(live.generation, whole.pair, whole.rows, whole.key, commit)
    of_key = whole.rows.groupBy(*map(quote, whole.key)).agg(F.count("*").alias("times"))
    if not of_key.where("times > 1").isEmpty():
        raise not_unique(whole.key, target.declared.name)
    # MERGE cannot delete one of two rows of a key
    rows = whole.rows if whole.rest is None else whole.rest.unionByName(whole.rows, allowMissingColumns=True)
    return target.batch.target.replace(live.generation, rows, whole.key, commit)


def _check_age(shared: Shared, view: KeptView, seen: SeenCut) -> None:
    """Raise StateError (TR-704) if compaction may have removed records of the cut while they were read."""
    if not is_whole(shared, view, seen):
        raise _moved(view)


def _moved(view: KeptView) -> StateError:
    return StateError(
        "TR-704",
        f'view "{view.declared.name}" was not repaired: its content took too long to compute',
        detail="Compaction may have removed records from the topics meanwhile. Its rows are as they were.",
        hint=f"tailrace views rebuild {view.declared.name}",
    )
