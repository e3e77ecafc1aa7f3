"""Compare views with their content computed from the topics, at the views' own cuts. Nothing is brought forward.

    python -m tailrace.spark_jobs.jobs.verify [--config tailrace.toml] [--limit N] VIEW...

A batch could repair, and so hide, what is wrong. Prints one JSON object for each comparison, in the form of
`tailrace verify --json`, and its log as JSON lines on stderr. The comparison runs on the executors: this process
receives only counts and the keys to list.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, StateError, TailraceError, all_of
from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.verify_scope import WHOLE, Scope
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.iceberg.maintenance import verify_pin
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.target.comparison import Counts, Difference
from tailrace.sinks.target.kind import not_made
from tailrace.sinks.target.protocol import FROM_LSN, TO_LSN, Applied
from tailrace.sinks.target.tables import Tables, Values
from tailrace.spark_jobs.jobs.command import opened, parser, run
from tailrace.spark_jobs.jobs.swap import alone, held, staged_of
from tailrace.spark_jobs.log import line, result
from tailrace.spark_jobs.maintain.batch import Content, Report, ViewBatch, check_definition, own_cut
from tailrace.spark_jobs.maintain.certain_matches import certain_matches
from tailrace.spark_jobs.maintain.history_batch import HistoryBatch, KeepingBatch
from tailrace.spark_jobs.maintain.kept_view import LEASE_WAIT_S, KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.percolate import PercolateBatch
from tailrace.spark_jobs.maintain.query_batch import QueryBatch
from tailrace.spark_jobs.maintain.table_batch import TableBatch
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.views import Declared

_SMALL: Final = {
    # What is read several times gives way to sorts and joins, and is read from disk.
    "spark.memory.storageFraction": "0.1",
    # The default of 10,000 rows is the memory of a task that stores rows, whatever their size.
    "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
    # Each query is compiled for one comparison.
    "spark.sql.codegen.cache.maxEntries": "200",
}
"""Settings for a small heap; those of the configuration override them."""

_WHATS: Final = {"only live": (1, 0), "only staged": (0, 1), "different": (1, 1)}
"""Rows on the side of the view and on that of its computed content."""


def main(arguments: Sequence[str]) -> int:
    options = parser("Compare views with their content computed from the topics.")
    options.add_argument("--limit", type=int, default=20, help="differing keys to list for each comparison")
    options.add_argument("--since", type=parse_lsn, help="compare only keys whose newest record is after this LSN")
    options.add_argument("--sample", type=float, help="compare only this share of the keys, from 0 to 1")
    options.add_argument("--staged", action="store_true", help="compare the staged generation")
    options.add_argument("views", nargs="+", metavar="VIEW")
    given = options.parse_args(arguments)
    scope = Scope(given.since, given.sample, given.staged)

    def job(config: Config) -> None:
        spark = config.spark.model_copy(update={"conf": {**_SMALL, **config.spark.conf}})
        with opened(config.model_copy(update={"spark": spark}), given.views) as shared:
            verify_all(
                shared, given.views, given.limit, lambda found: result(orjson.dumps(found, default=str).decode()), scope
            )

    return run(job, given.config)


def verify_all(
    shared: Shared, names: Sequence[str], limit: int, report: Callable[[dict[str, Any]], None], scope: Scope = WHOLE
) -> None:
    """Compare views; `report` is called with each comparison.

    Views that cannot be compared do not stop the others: their errors are raised at the end.
    """
    failed: list[TailraceError] = []
    for name in names:
        try:
            for found in verify(shared, open_view(shared, name), limit, scope):
                report(found)
        except TailraceError as error:
            failed.append(error)
        finally:
            shared.records.release()
    if failed:
        raise all_of(failed)


def verify(
    shared: Shared,
    view: KeptView,
    limit: int,
    scope: Scope = WHOLE,
    hold: Callable[[KeptView], AbstractContextManager[None]] = held,
    say: Callable[..., None] = line,
    wait_s: float = LEASE_WAIT_S,
) -> Iterator[dict[str, Any]]:
    """Yield a comparison for the view and, if it is a query, one for each base table that it reads.

    Each is the JSON form of a result. `hold` takes the view's lease, only until the states to compare are pinned; `say`
    logs progress; `wait_s` is the maximum wait, in seconds, for another comparison of the same matches. Nothing is
    yielded for matches if compaction may have removed queries meanwhile. ConfigError (TR-109) for a view whose content
    cannot be computed a second time, or not in this scope; RebuildError (TR-551) if a state of an input at the view's
    cut is gone; StateError (TR-571) if no generation is staged.
    """
    batch, name = view.batch, view.declared.name
    with ExitStack() as pins:
        pins.callback(batch.release)
        if scope.staged:
            pins.enter_context(alone(shared, view))
        # `follow` waits only until the states to compare are pinned
        with hold(view):
            live, level_ms = _state(view, scope)
            pinned = _pin(shared, batch, live, scope, pins)
        for table, tables in _pairs(shared, view, pinned, SeenCut(live.cut, level_ms), scope, say, wait_s):
            began, what = time.monotonic(), f"the base table of {table}" if table else "the view"
            say(event="progress", view=name, stage=f"comparing {what}")
            if scope.sample is not None:
                tables = tables.sampled(scope.sample)
            if table is None:
                # it is used several times
                tables = replace(tables, staged=batch.persist_until_batch_end(tables.staged))
            counts, found = tables.with_rows(limit)
            yield {
                "view": name,
                "table": table,
                "equal": not counts.total,
                "x": None,
                "generation": live.generation,
                "cut": format_lsn(live.cut.flushed_lsn),
                "scope": scope.to_dict(),
                "seconds": round(time.monotonic() - began, 3),
                # the topics may have lost their state at the cut
                "late": now_ms() - level_ms > shared.config.kafka.min_compaction_lag_ms,
                "columns": tables.common,
                "key": list(tables.key),
                "comparisons": [_comparison("base table" if table else "view", counts, found)],
            }


def _state(view: KeptView, scope: Scope) -> tuple[Applied, int]:
    """Return the generation to compare, and a time (ms) at which it was level with the topics."""
    name = view.declared.name
    live, level_ms = view.load()
    if live is None:
        raise not_made(name)
    if scope.staged:
        live = staged_of(view, view.batch.target.generations(), live)
        level_ms = live.level_since_ms
    check_definition(view.declared, live)
    # an interrupted repair is at one cut
    if live.unfinished is not None and live.unfinished.order != live.cut.order:
        raise _in_mid_batch(name)
    return live, level_ms


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A generation to compare, in `pair` with nothing yet; `rows` of a query are its computed content.

    Of a view that retains the past there is no pair, and `rows` are its own.
    """

    live: Applied
    pair: Tables | None = None
    rows: DataFrame | None = None
    bases: Mapping[str, DataFrame] = field(default_factory=dict)


def _pin(shared: Shared, batch: ViewBatch[Any], live: Applied, scope: Scope, pins: ExitStack) -> _Pinned:
    """Pin the states to compare, without reading them: the caller holds the lease."""
    target, name = batch.target, batch.view.name
    if isinstance(target, IcebergTarget) and not scope.staged:
        pins.enter_context(target.tagged(verify_pin(name)))
    if isinstance(batch, QueryBatch):
        if scope.since is not None and not batch.view.topic_of:
            raise _not_since(name)
        batch.inputs.take_as_they_are()
        pins.enter_context(batch.inputs.pinned(live.cut))
        # found now: expiry spares what is pinned, but not the snapshots by which a cut leads to it
        tables = {table: batch.inputs.at(table, live.cut) for table in batch.view.topic_of}
        bases = {table: batch.session.sql(f"SELECT * FROM {there}") for table, there in tables.items()}
        if scope.since is not None:
            return _Pinned(live, bases=bases)
        query, rows = batch.computed(live.cut)
        # documents are computed at once, so only after the lease is released
        nothing = batch.session.createDataFrame([], rows.schema)
        return _Pinned(live, target.pair_with(live.generation, nothing, query.key, pins), rows, bases)
    if isinstance(batch, KeepingBatch) or (isinstance(batch, PercolateBatch) and batch.has_captured_queries):
        return _Pinned(live, rows=batch.target.rows(live.generation))
    if isinstance(batch, TableBatch):
        shared.records.newest_shapes(*batch.view.topics)
        content = batch.whole(None, SeenCut(live.cut, 0), Report())
        return _Pinned(live, target.pair_with(live.generation, content.rows, content.key, pins))
    raise _not_comparable(name)


def _pairs(
    shared: Shared,
    view: KeptView,
    pinned: _Pinned,
    seen: SeenCut,
    scope: Scope,
    say: Callable[..., None],
    wait_s: float,
) -> Iterator[tuple[str | None, Tables]]:
    """Yield the base tables and the view, each with its content: computed when it is its turn."""
    batch = view.batch
    if isinstance(batch, QueryBatch):
        for table, topic in batch.view.topic_of.items():
            base = batch.inputs.base(topic).batch
            content, keys = _on_topic(base, seen, scope)
            yield table, _of_keys(Tables(pinned.bases[table], content.rows, content.key), keys)
        if scope.since is not None:
            say(event="not compared with --since: the rows of the query, only its base tables", level="warning")
        else:
            assert pinned.pair is not None
            assert pinned.rows is not None
            yield None, pinned.pair.against(pinned.rows)
    elif isinstance(batch, KeepingBatch):
        assert pinned.rows is not None
        yield None, _recent(batch, versions_or_changes(batch, pinned.rows, pinned.live, seen, say)[0], scope)
    elif isinstance(batch, PercolateBatch):
        assert pinned.rows is not None
        with ExitStack() as used:
            matches = certain_matches(batch, pinned.rows, pinned.live, used, say=say, wait_s=wait_s)
            if is_whole(shared, view, seen):
                yield None, _recent(batch, matches.pair, scope)
            else:
                say(event="not compared: compaction may have removed queries meanwhile", view=batch.view.name)
    else:
        assert pinned.pair is not None
        content, keys = _on_topic(batch, seen, scope)
        yield None, _of_keys(pinned.pair.against(content.rows), keys)


def _on_topic(batch: ViewBatch[Any], seen: SeenCut, scope: Scope) -> tuple[Content, DataFrame | None]:
    """Return the rows of a table at the cut according to its topic, and rows with the keys to compare; None: all."""
    assert isinstance(batch, TableBatch)
    (topic,) = batch.view.topics
    end = seen.cut.offsets.get(topic, [])
    if scope.since is None:
        return batch.whole(batch.records.latest(topic, [], end), seen, Report()), None
    found = batch.records.latest_after(topic, end, scope.since)
    content = batch.whole(found, seen, Report())
    if found is None:
        return content, content.rows
    # after a truncate, all rows are newer than it
    return content, None if found.facts.truncated else batch.keys_of(found)


def _of_keys(pair: Tables, keys: DataFrame | None) -> Tables:
    return pair if keys is None else pair.of_keys(keys)


def _recent(batch: KeepingBatch | PercolateBatch, pair: Tables, scope: Scope) -> Tables:
    """Return the versions that began or ended, or the changes that were made, after `scope.since`."""
    if scope.since is None:
        return pair
    recent = F.col(FROM_LSN if isinstance(batch, HistoryBatch) else "commit_lsn") > scope.since
    if isinstance(batch, HistoryBatch):
        recent = recent | F.coalesce(F.col(TO_LSN) > scope.since, F.lit(False))
    return replace(pair, live=pair.live.where(recent), staged=pair.staged.where(recent))


def is_comparable(declared: Declared) -> bool:
    """Whether `verify` can compare a view: not matches of queries in a user's index, which no topic has."""
    return declared.shape != "percolate" or len(declared.topics) > 1


def is_whole(shared: Shared, view: KeptView, seen: SeenCut) -> bool:
    """Whether what was read up to the cut is whole; if not, compaction may have removed records of it."""
    if now_ms() - seen.level_ms < shared.config.kafka.min_compaction_lag_ms:
        return True
    newest = shared.cuts.wait(view.declared)
    return newest.is_end and own_cut(view.declared, newest).offsets == own_cut(view.declared, seen).offsets


def versions_or_changes(
    batch: KeepingBatch, view_rows: DataFrame, live: Applied, seen: SeenCut, say: Callable[..., None] = line
) -> tuple[Tables, DataFrame]:
    """Return the view's versions or changes and the topic's, both since the LSN from which both have all of them.

    The second value are the view's other rows: those that cannot be compared.
    """
    (topic,) = batch.view.topics
    content = batch.whole(batch.records.every(topic, [], seen.cut.offsets.get(topic, [])), seen, Report())
    begins = live.history_from.lsn if live.history_from else 0
    since = max(begins, content.history_from.lsn if content.history_from else 0)
    if isinstance(batch, HistoryBatch):
        comparable = F.col(TO_LSN).isNull() | (F.col(TO_LSN) >= since)
    else:
        # the rows that were valid when the log began are no changes
        comparable = (F.col("op") != "r") & (F.col("commit_lsn") >= since)
    if since > begins:
        say(event="not compared: older versions are no longer on the topic", before=format_lsn(since))
    pair = Tables(view_rows.where(comparable), content.rows.where(comparable), content.key)
    return pair, view_rows.where(~F.coalesce(comparable, F.lit(False)))


def _comparison(
    side: str, counts: Counts, found: Sequence[tuple[Difference, Values | None, Values | None]]
) -> dict[str, Any]:
    """Return the JSON form of a comparison; left is what was computed."""
    return {
        "compared": f"{'topic' if side == 'base table' else 'content'} and {side} at C",
        "left_rows": counts.staged,
        "right_rows": counts.live,
        "differing": counts.total,
        "differences": [
            {
                "key": list(each.key.values()),
                "left": computed,
                "right": there,
                "left_copies": _WHATS[each.what][1],
                "right_copies": _WHATS[each.what][0],
            }
            for each, there, computed in found
        ],
    }


def _in_mid_batch(name: str) -> StateError:
    return StateError(
        "TR-574",
        f'view "{name}" cannot be compared now: a batch was interrupted',
        detail="Its documents are those of two cuts.",
        hint="tailrace views follow  # completes the batch",
    )


def _not_comparable(name: str) -> ConfigError:
    return ConfigError(
        "TR-109",
        f'view "{name}" cannot be compared with its recomputed content',
        detail="Only tables, queries, histories, logs, and matches of queries that are a captured column are.",
        hint=f"tailrace verify {name}  # says what can be done instead",
    )


def _not_since(name: str) -> ConfigError:
    return ConfigError(
        "TR-109",
        f'view "{name}" cannot be compared with --since',
        detail="It reads only views, so it has no base tables, whose newest records have an LSN.",
        hint=f"tailrace verify {name}  # compares all of its rows",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
