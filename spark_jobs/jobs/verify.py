"""Compare views with their content computed from the topics, at the views' own cuts. Nothing is brought forward.

    python -m tailrace.spark_jobs.jobs.verify [--config tailrace.toml] [--limit N] VIEW...

A batch could repair, and so hide, what is wrong. Prints one JSON object for each comparison, in the form of
`tailrace verify --json`, and its log as JSON lines on stderr. The comparison runs on the executors: this process
receives only counts and the keys to list.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, StateError, TailraceError, all_of
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.target.comparison import Counts, Difference
from tailrace.sinks.target.kind import not_made
from tailrace.sinks.target.protocol import TO_LSN, Applied
from tailrace.sinks.target.tables import Tables, Values
from tailrace.spark_jobs.jobs.command import opened, parser, run
from tailrace.spark_jobs.jobs.swap import held
from tailrace.spark_jobs.log import line, result
from tailrace.spark_jobs.maintain.batch import Report, check_definition, own_cut
from tailrace.spark_jobs.maintain.certain_matches import certain_matches
from tailrace.spark_jobs.maintain.history_batch import HistoryBatch, KeepingBatch
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.percolate import PercolateBatch
from tailrace.spark_jobs.maintain.query_batch import QueryBatch
from tailrace.spark_jobs.topics.cuts import SeenCut

_WHATS: Final = {"only live": (1, 0), "only staged": (0, 1), "different": (1, 1)}
"""Rows on the side of the view and on that of its computed content."""


def main(arguments: Sequence[str]) -> int:
    options = parser("Compare views with their content computed from the topics.")
    options.add_argument("--limit", type=int, default=20, help="differing keys to list for each comparison")
    options.add_argument("views", nargs="+", metavar="VIEW")
    given = options.parse_args(arguments)

    def job(config: Config) -> None:
        with opened(config, given.views) as shared:
            verify_all(
                shared, given.views, given.limit, lambda found: result(orjson.dumps(found, default=str).decode())
            )

    return run(job, given.config)


def verify_all(shared: Shared, names: Sequence[str], limit: int, say: Callable[[dict[str, Any]], None]) -> None:
    """Compare views; `say` is called with each comparison.

    Views that cannot be compared do not stop the others: their errors are raised at the end.
    """
    failed: list[TailraceError] = []
    for name in names:
        try:
            for found in verify(shared, open_view(shared, name), limit):
                say(found)
        except TailraceError as error:
            failed.append(error)
        finally:
            shared.records.release()
    if failed:
        raise all_of(failed)


def verify(shared: Shared, view: KeptView, limit: int) -> Iterator[dict[str, Any]]:
    """Yield a comparison for the view and, if it is a query, one for each base table that it reads.

    Each is the JSON form of a result. ConfigError (TR-109) for a view whose content cannot be computed a second time;
    RebuildError (TR-551) if a state of an input at the view's cut is gone.
    """
    batch, name = view.batch, view.declared.name
    pairs: list[tuple[str | None, Tables]]
    with ExitStack() as pins:
        pins.callback(batch.release)
        # `follow` waits only until the states to compare are pinned
        with held(view):
            live, level_ms = view.load()
            if live is None:
                raise not_made(name)
            check_definition(view.declared, live)
            # an interrupted repair is at one cut
            if live.unfinished is not None and live.unfinished.order != live.cut.order:
                raise _in_mid_batch(name)
            if isinstance(batch, QueryBatch):
                batch.inputs.take_as_they_are()
                pins.enter_context(batch.inputs.pinned(live.cut))
                query, rows = batch.computed(live.cut)
                rows = batch.persist_until_batch_end(rows)  # it is used several times
                pair = batch.target.pair_with(live.generation, rows, query.key, pins)
            elif isinstance(batch, KeepingBatch) or (isinstance(batch, PercolateBatch) and batch.has_captured_queries):
                view_rows = batch.target.rows(live.generation)
            else:
                raise _not_comparable(name)
        seen = SeenCut(live.cut, level_ms)
        if isinstance(batch, QueryBatch):
            pairs = [*_bases(shared, batch, seen), (None, pair)]
        elif isinstance(batch, PercolateBatch):
            matches = certain_matches(batch, view_rows, live, pins)
            if is_whole(shared, view, seen):
                pairs = [(None, matches.pair)]
            else:
                line(event="not compared: compaction may have removed queries meanwhile", view=name)
                pairs = []
        else:
            pairs = [(None, versions_or_changes(batch, view_rows, live, seen)[0])]
        for table, pair in pairs:
            began, what = time.monotonic(), f"the base table of {table}" if table else "the view"
            line(event="progress", view=name, stage=f"comparing {what}")
            counts, found = pair.with_rows(limit)
            yield {
                "view": name,
                "table": table,
                "equal": not counts.total,
                "x": None,
                "cut": format_lsn(live.cut.flushed_lsn),
                "seconds": round(time.monotonic() - began, 3),
                # the topics may have lost their state at the cut
                "late": now_ms() - level_ms > shared.config.kafka.min_compaction_lag_ms,
                "columns": pair.common,
                "key": list(pair.key),
                "comparisons": [_comparison("base table" if table else "view", counts, found)],
            }


def _bases(shared: Shared, batch: QueryBatch, seen: SeenCut) -> Iterator[tuple[str, Tables]]:
    """Yield each captured table with its base table at the cut and its rows there according to its topic."""
    for table, topic in batch.view.topic_of.items():
        found = shared.records.latest(topic, [], seen.cut.offsets.get(topic, []))
        content = batch.inputs.base(topic).batch.whole(found, seen, Report())
        there = batch.session.sql(f"SELECT * FROM {batch.inputs.at(table, seen.cut)}")
        yield table, Tables(there, content.rows, content.key)


def is_whole(shared: Shared, view: KeptView, seen: SeenCut) -> bool:
    """Whether what was read up to the cut is whole; if not, compaction may have removed records of it."""
    if now_ms() - seen.level_ms < shared.config.kafka.min_compaction_lag_ms:
        return True
    newest = shared.cuts.wait(view.declared)
    return newest.is_end and own_cut(view.declared, newest).offsets == own_cut(view.declared, seen).offsets


def versions_or_changes(
    batch: KeepingBatch, view_rows: DataFrame, live: Applied, seen: SeenCut
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
        line(event="not compared: older versions are no longer on the topic", before=format_lsn(since))
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
        detail="Only queries, histories, logs, and matches of queries that are a captured column are.",
        hint=f"tailrace verify {name}  # says what can be done instead",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
