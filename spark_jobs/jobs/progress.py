"""Log the progress of a rebuild: a JSON line every few seconds, from Spark's stages or the rows read here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tailrace.spark_jobs.log import line
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.topics.records import Records

EVERY_S: Final = 5.0
_FIRST_S: Final = 1.0
"""First pause, so that a waiting person soon sees progress; then the pauses double, up to `EVERY_S`."""
_TELLING: Final = 0.01
"""Minimum share that must be done for an estimate of the time left."""


@contextmanager
def progress(records: Records, view: str, count: int, report: Report) -> Iterator[None]:
    """Log, while the block runs, how many of `count` records are read, then the share of writing that is done."""
    ended = threading.Event()
    thread = threading.Thread(target=_tell, args=(records, view, count, report, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(records: Records, view: str, count: int, report: Report, ended: threading.Event) -> None:
    stage, began, seen, pause = "", time.monotonic(), 0, min(_FIRST_S, EVERY_S)
    while not ended.wait(pause):
        pause = min(EVERY_S, 2 * pause)
        now = "write" if "read" in report.milliseconds else "read"
        if now != stage:
            stage, began, seen = now, time.monotonic(), 0
        rows, share = _running(records)
        if stage == "read":
            seen = max(seen, rows)
            share = min(1.0, seen / count) if count else 0.0
        line(**progress_event(view, stage, seen if stage == "read" else report.rows, share, time.monotonic() - began))


def progress_event(view: str, stage: str, rows: int, share: float, elapsed_s: float) -> dict[str, Any]:
    """Return the values of a line; the time left is that of the stage, at its average rate so far."""
    share = round(share, 3)
    left = round(elapsed_s * (1 - share) / share) if share >= _TELLING else None
    return {
        "event": "progress",
        "view": view,
        "stage": stage,
        "rows": rows,
        "share": share,
        "seconds_left": left,
    }


def _running(records: Records) -> tuple[int, float]:
    """Return the number of records that are read, and the share of the writing that is done."""
    spooled = records.spooling()
    if spooled is not None:
        return spooled.rows, spooled.given / spooled.rows if spooled.rows else 0.0
    stages = records.session.sparkContext._jsc.sc().statusStore().activeStages()
    found = [stages.apply(number) for number in range(stages.length())]
    tasks = sum(each.numTasks() for each in found)
    done = sum(each.numCompleteTasks() for each in found)
    return sum(each.inputRecords() for each in found), done / tasks if tasks else 0.0
