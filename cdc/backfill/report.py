"""Progress of the first snapshot: a bar on a terminal, otherwise log lines."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import psycopg
import structlog

from tailrace.cdc.health.source_state import source_state
from tailrace.schemas.lsn import format_lsn
from tailrace.snapshot.progress import ReadProgress, seconds_left

if TYPE_CHECKING:
    from rich.progress import Progress

log = structlog.get_logger()

_EVERY_S = 10.0
_BAR_EVERY_S = 0.5


class Report:
    """Show the progress in `reads` periodically."""

    def __init__(self, reads: ReadProgress, lsn: int, slot: str, connection: psycopg.Connection) -> None:
        self._reads = reads
        self._lsn = lsn
        self._slot = slot
        self._connection = connection
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task = self._bar.add_task("", total=None, rows=0, rate=0, table="") if self._bar else None
        self._every_s = _BAR_EVERY_S if self._bar else _EVERY_S
        self._shown_at = time.monotonic()
        if self._bar:
            self._bar.start()

    def show(self) -> None:
        """Show the progress if the last display is more than 10 s ago (0.5 s for a bar)."""
        if time.monotonic() - self._shown_at < self._every_s:
            return
        self._shown_at = time.monotonic()
        reads = list(self._reads.values())
        now_ms = time.time_ns() // 1_000_000
        rows, left = sum(each.rows for each in reads), seconds_left(reads, now_ms)
        began = min((each.began_ms for each in reads), default=now_ms)
        rate = round(rows / max((now_ms - began) / 1000, 0.001))
        chunks, done = sum(each.chunks for each in reads), sum(each.chunks_done for each in reads)
        open_now = [each.table for each in reads if not each.done]
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, total=chunks, completed=done, table=", ".join(open_now[:2]), rows=rows, rate=rate
            )
            return
        log.info(
            "first snapshot progress",
            lsn=format_lsn(self._lsn),
            tables=f"{len(reads) - len(open_now)}/{len(reads)}",
            chunks=f"{done}/{chunks}",
            rows=rows,
            rows_per_s=rate,
            copied_bytes=sum(each.copied for each in reads),
            seconds_left=None if left is None else round(left),
            wal_held_bytes=source_state(self._connection, self._slot).retained_bytes,
        )

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Progress:
    # for a terminal only: a service's start would wait for it
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("first snapshot"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("chunks  {task.fields[rows]} rows, {task.fields[rate]}/s  {task.fields[table]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
