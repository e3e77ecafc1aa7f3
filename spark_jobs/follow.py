"""Keep views up to date, all in one Spark session, until SIGTERM; ends at the end of a batch.

    python spark_jobs/follow.py [--config tailrace.toml] [--until-lsn LSN] [VIEW ...]

A plain script for spark-submit, too. Prints one JSON line per batch on stderr.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from schemas.config import Config
from schemas.lsn import Lsn, format_lsn, parse_lsn
from spark_jobs.batch import Report
from spark_jobs.causes import is_jvm_gone
from spark_jobs.command import opened, parser, run, stopping
from spark_jobs.cuts import SeenCut
from spark_jobs.kept import KeptView, Shared
from spark_jobs.lines import line, named
from spark_jobs.open_view import open_view
from spark_jobs.upkeep import Upkeep
from spark_jobs.views.lower import in_order
from spark_jobs.waiting import Waiting, waits_for_tables

_SAME_MOMENT_S: Final = 2.0


def main(arguments: Sequence[str]) -> int:
    options = parser("Keep views up to date until SIGTERM.")
    options.add_argument("--until-lsn", type=parse_lsn, help="end once all views have applied this LSN")
    options.add_argument("views", nargs="*", metavar="VIEW", help="default: all views")
    given = options.parse_args(arguments)
    stop = stopping()

    def job(config: Config) -> None:
        names = in_order(config, given.views or config.views)
        try:
            with opened(config, names) as shared:
                views = [open_view(shared, name) for name in names]
                line(event="following", views=names)
                follow(shared, views, stop, given.until_lsn)
        except Exception as error:
            # A signal to the whole group of processes ends the JVM as well, in mid-batch: what it had not committed
            # the next start does again. It may have come to the JVM a moment before it came to us.
            if not stop.wait(_SAME_MOMENT_S if is_jvm_gone(error) else 0):
                raise
            line(event="ended in mid-batch", level="warning", error=named(error).message)

    return run(job, given.config, service=True)


def follow(shared: Shared, views: Sequence[KeptView], stop: threading.Event, until: Lsn | None) -> None:
    """Apply to each view each new state cut of its tables; with `until`, end once all are at or past it.

    In a round all of them are from one look at the progress topic: views of which no table is incomplete get one cut,
    and what they read of a topic is read once. The others stand still.
    """
    upkeep = Upkeep(shared)
    levels = in_levels(views)
    interval = shared.config.spark.trigger_interval_ms / 1000

    def turn(view: KeptView) -> None:
        if stop.is_set() or view.parked:
            return
        seen = newest[view.declared.name]
        if seen is not None:
            keep(view, seen, stop)
            if view.stands_for(seen.waits_for):
                line(event="waiting", level="warning", view=view.declared.name, tables=seen.waits_for)
        elif tables := shared.cuts.waits_for(view.declared):
            said(view, waits_for_tables(view.declared.name, tables, "No cut is a state of all its tables yet."))

    def place(view: KeptView) -> tuple[object, ...]:
        """Older cuts first: what is done for them is on the way of the others; then those that are quick."""
        seen = newest[view.declared.name]
        # they would wait longer for the others than the others for them
        return seen.cut.order if seen is not None else (), view.took_ms

    # a batch of few changes is planned and committed for longer than it runs: another uses what it leaves idle
    with ThreadPoolExecutor(shared.config.spark.views_at_once, "views") as pool:
        while not stop.is_set():
            began = time.monotonic()
            shared.cuts.look(wait=max(interval, 0.1))
            newest = {view.declared.name: shared.cuts.seen(view.declared) for view in views}
            for level in levels:
                list(pool.map(turn, sorted(level, key=place)))
            if any(newest.values()):
                shared.records.release()
                upkeep.turn(stop)
            if until is not None and all(view.applied and view.applied.cut.flushed_lsn >= until for view in views):
                return
            stop.wait(max(0.0, interval - (time.monotonic() - began)))


def in_levels(views: Sequence[KeptView]) -> list[list[KeptView]]:
    """Return the views, each in a list behind those of the views that it reads; these come first in `views`."""
    at: dict[str, int] = {}
    levels: dict[int, list[KeptView]] = defaultdict(list)
    for view in views:
        name = view.declared.name
        at[name] = max((1 + at[lower] for lower in view.declared.views if lower in at), default=0)
        levels[at[name]].append(view)
    return [levels[number] for number in sorted(levels)]


def keep(view: KeptView, seen: SeenCut, stop: threading.Event | None = None) -> None:
    """Run one batch of a view and say what it did; a failure parks this view, not the others.

    What reads a view that is parked waits for it. With `stop` set, or without a JVM, it is raised: this job ends.
    """
    report, before = Report(), view.applied
    try:
        view.step(seen, report)
    except Waiting as error:
        said(view, error)
        return
    except Exception as error:
        failed = named(error)
        if is_jvm_gone(failed) or (stop is not None and stop.is_set()):
            raise failed from None
        pause = view.park(failed)
        line(event="parked", level="error", view=view.declared.name, error=str(failed), again_in_s=pause)
        return
    applied = view.applied
    if applied is not None and (before is None or before.cut.offsets != applied.cut.offsets or report.replaced):
        line(
            event="batch",
            view=view.declared.name,
            lsn=format_lsn(applied.cut.flushed_lsn),
            generation=applied.generation,
            rows=report.rows,
            replaced=report.replaced,
            **({"late": report.late} if report.late else {}),
            ms=report.milliseconds,
        )


def said(view: KeptView, error: Waiting) -> None:
    """Say, once, what a view waits for."""
    if view.wait(error):
        line(event="waiting", level="warning", view=view.declared.name, error=str(error))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
