"""Maintain views, all in one Spark session, until SIGTERM; the job ends at the end of a batch.

    python -m tailrace.spark_jobs.jobs.follow [--config tailrace.toml] [--until-lsn LSN] [VIEW ...]

spark-submit accepts this file, too. Prints one JSON line per batch on stderr.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import Lsn, format_lsn, parse_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.target.follower import following
from tailrace.sinks.tracing.traces import Traces
from tailrace.spark_jobs.causes import is_jvm_gone
from tailrace.spark_jobs.health.backlog import Reached
from tailrace.spark_jobs.health.health import JobHealth, ViewHealth
from tailrace.spark_jobs.health.http import serving
from tailrace.spark_jobs.health.watch import watching
from tailrace.spark_jobs.jobs.command import opened, parser, run, stopping
from tailrace.spark_jobs.jobs.verifying import Verifying
from tailrace.spark_jobs.log import line, named
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.lanes import Lanes, Turn
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.upkeep import Upkeep, UpkeepThread
from tailrace.spark_jobs.maintain.waiting import Waiting, waits_for_tables
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.records import MANY_RECORDS
from tailrace.spark_jobs.topics.source import records_between
from tailrace.spark_jobs.views.lower import in_order

_SAME_MOMENT_S: Final = 2.0

_NEWS_S: Final = 1.0
"""Time in seconds to wait for a new cut, after which views that waited or were parked are tried again."""

_SLICE_S: Final = 0.1
"""Polling interval, in seconds, for batches that have ended, views that no longer wait, and signals."""


def main(arguments: Sequence[str]) -> int:
    options = parser("Maintain views until SIGTERM.")
    options.add_argument("--until-lsn", type=parse_lsn, help="end once all views have applied this LSN")
    options.add_argument("views", nargs="*", metavar="VIEW", help="default: all views")
    given = options.parse_args(arguments)
    stop = stopping()

    def job(config: Config) -> None:
        names = in_order(config, given.views or config.views)
        with following(config, names):
            try:
                maintain(config, names)
            except Exception as error:
                # A signal to the process group ends the JVM as well, in mid-batch: the next start repeats uncommitted
                # work. The signal may have reached the JVM a moment before it reaches us.
                if not stop.wait(_SAME_MOMENT_S if is_jvm_gone(error) else 0):
                    raise
                line(event="views job stopped during a batch", level="warning", error=named(error).message)

    def maintain(config: Config, names: Sequence[str]) -> None:
        health = JobHealth()
        with serving(config, health), opened(config, names) as shared, watching(config, health):
            views = [open_view(shared, name) for name in names]
            health.begin(known(shared, views, health))
            line(event="views job started", views=names, **({"health": health.url} if health.url else {}))
            follow(shared, views, stop, given.until_lsn, health)

    return run(job, given.config, service=True)


def known(shared: Shared, views: Sequence[KeptView], health: JobHealth) -> dict[str, ViewHealth]:
    """Return the health of views before their first batch: what they had reached according to the views topic."""
    kafka, found = shared.config.kafka, {}
    records = read_views(kafka, Topics(kafka.prefix))
    for view in views:
        record = records.get(view.declared.name)
        reached = Reached(record.cut, record.current_ms) if record is not None and record.cut is not None else None
        health_of = found[view.declared.name] = ViewHealth(
            view.declared.name, view.declared.topics, reached, view.stop_limits, health.seconds
        )
        health_of.verified = record.verified if record is not None else None
    return found


def follow(
    shared: Shared,
    views: Sequence[KeptView],
    stop: threading.Event,
    until: Lsn | None,
    health: JobHealth | None = None,
) -> None:
    """Apply to each view each new state cut of its tables; with `until`, end once all are at or past it.

    All cuts of a round are from one look at the progress topic: views without an incomplete table get the same cut,
    and share the records that they read. The others do not advance. A view is in no round while its batch of an
    earlier one still runs: `spark_jobs.maintain.lanes` describes how long the others wait for it.
    """
    interval = shared.config.spark.trigger_interval_ms / 1000
    views = [view for level in in_levels(views) for view in level]
    # Planning and committing a small batch takes longer than running it: other batches use the idle cores.
    health, traces = health or JobHealth(), Traces(shared.config, "tailrace-views", _not_sent)
    at_once = shared.config.spark.views_at_once
    lanes = Lanes(shared.records, at_once, lambda turn: take(shared, turn, stop, health, traces))
    with (
        traces,
        lanes,
        UpkeepThread(Upkeep(shared), shared.session) as upkeep,
        Verifying(shared, views, health) as verifying,
    ):
        while not stop.is_set():
            began = time.monotonic()
            health.turned()
            shared.cuts.look(wait=_NEWS_S if lanes.idle else _SLICE_S)
            turns = [Turn(view, shared.cuts.seen(view.declared)) for view in lanes.ready(views)]
            lanes.begin(sorted(turns, key=_place))
            while not stop.is_set() and not lanes.ready(views):
                health.turned()
                lanes.wait(_SLICE_S)
            if any(turn.seen for turn in turns):
                upkeep.begin(stop)
            verifying.begin()
            if until is not None and all(view.applied and view.applied.cut.flushed_lsn >= until for view in views):
                break
            while not stop.is_set() and (left := began + interval - time.monotonic()) > 0:
                lanes.wait(min(left, _SLICE_S))
        health.stop()
        verifying.close()
        lanes.end()


def _place(turn: Turn) -> tuple[object, ...]:
    """Return the sort key of a turn: older cuts first, as newer ones need their work; then quick ones."""
    # Quick ones would wait longer for the others than the others for them.
    view, seen = turn.view, turn.seen
    if seen is None:
        return (), 0, view.took_ms
    known = view.applied.cut.offsets if view.applied else {}
    news = sum(records_between(known.get(t, []), seen.cut.offsets.get(t, [])) for t in view.declared.topics)
    return seen.cut.order, news // MANY_RECORDS, view.took_ms


def take(shared: Shared, turn: Turn, stop: threading.Event, job: JobHealth, traces: Traces) -> bool:
    """Run one batch of a view, or log what it waits for; return whether there was work to do."""
    view, seen = turn.view, turn.seen
    health = job.views.get(view.declared.name)
    if stop.is_set() or view.parked:
        return False
    if seen is not None:
        worked = keep(view, seen, stop, health or ViewHealth(view.declared.name, view.declared.topics), traces)
        if view.stands_for(seen.waits_for):
            line(event="view waiting", level="warning", view=view.declared.name, tables=seen.waits_for)
        return worked
    if tables := shared.cuts.waits_for(view.declared):
        said(view, waits_for_tables(view.declared.name, tables, "No cut is a state of all its tables yet."), health)
    return False


def in_levels(views: Sequence[KeptView]) -> list[list[KeptView]]:
    """Return the views by level, each after those that it reads; `views` must be in such an order."""
    at: dict[str, int] = {}
    levels: dict[int, list[KeptView]] = defaultdict(list)
    for view in views:
        name = view.declared.name
        at[name] = max((1 + at[lower] for lower in view.declared.views if lower in at), default=0)
        levels[at[name]].append(view)
    return [levels[number] for number in sorted(levels)]


def keep(view: KeptView, seen: SeenCut, stop: threading.Event, health: ViewHealth, traces: Traces) -> bool:
    """Run one batch of a view, log and trace it; return whether it did anything. A failure parks this view alone.

    Views that read a parked view wait for it. If `stop` is set or the JVM has ended, the failure is raised instead,
    and the job ends.
    """
    began_ns, report, before = time.time_ns(), Report(), view.applied
    try:
        view.step(seen, report)
    except Waiting as error:
        said(view, error, health)
        return False
    except Exception as error:
        failed = named(error)
        if is_jvm_gone(failed) or stop.is_set():
            raise failed from None
        pause = view.park(failed)
        health.park(failed, pause)
        line(event="view parked", level="error", view=view.declared.name, error=str(failed), again_in_s=pause)
        return False
    applied = view.applied
    if applied is None:
        return False  # another process holds the lease
    health.advanced(Reached(applied.cut, view.level_ms), view.stop_limits)
    health.verified = view.verified
    worked = before is None or before.cut.offsets != applied.cut.offsets or report.replaced
    if worked:
        health.worked(report.rows, report.late, report.milliseconds)
        line(
            event="batch applied",
            view=view.declared.name,
            lsn=format_lsn(applied.cut.flushed_lsn),
            generation=applied.generation,
            rows=report.rows,
            replaced=report.replaced,
            **({"late": report.late} if report.late else {}),
            ms=report.milliseconds,
        )
        values = {"view": view.declared.name, "generation": applied.generation, "rows": report.rows}
        traces.applied(applied.cut, values, began_ns, report.milliseconds)
    return worked


def said(view: KeptView, error: Waiting, health: ViewHealth | None) -> None:
    """Log once what a view waits for."""
    if health is not None:
        health.wait(error)
    if view.wait(error):
        line(event="view waiting", level="warning", view=view.declared.name, error=str(error))


def _not_sent(why: str) -> None:
    line(event="traces not sent", level="warning", error=why)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
