"""The stream of an owned slot: the loop from WAL to Kafka, with windows, requests and catalog checks."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from tailrace.cdc.backfill.requests import SnapshotRequests
from tailrace.cdc.backfill.windows import Windows
from tailrace.cdc.changes.assembler import Assembler
from tailrace.cdc.changes.logical_messages import Messages
from tailrace.cdc.changes.reread import Reread
from tailrace.cdc.changes.toast_completion import Unchanged
from tailrace.cdc.daemon.pipeline import Pipeline
from tailrace.cdc.startup.captured import check_logs
from tailrace.cdc.startup.unfinished import take_up
from tailrace.cdc.tables.catalog_watch import CatalogWatch
from tailrace.cdc.wal.spool import Spool
from tailrace.cdc.wal.streamed import InProgress
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.requests import RequestTail

_IDLE_ADVANCE_S = 10.0
"""Minimum interval between slot advances of an idle source; each one costs a Kafka transaction."""

_SETTLE_S = 0.2
"""Interval of catalog checks on an idle source whose newest cut is no state only for lack of a check."""

_ASK_S = 0.05
"""Minimum interval of requests for the server's WAL position, sent while catalog findings wait for it."""

_STOP_S = 3.0
"""After a stop signal, the time to reach the end of the current source transaction before it is split."""

_READ_MESSAGES = 500
_TICK_S = 0.2
"""Longest wait of the loop for WAL before it does its other tasks."""


class Stream:
    """A pipeline's changes and its remaining table reads. `pipeline.opened` closes its resources."""

    def __init__(self, pipeline: Pipeline) -> None:
        """Set the stream up; nothing is read from the slot yet."""
        config, captured, catalog = pipeline.config, pipeline.captured, pipeline.captured.catalog
        progress, registry, tables = pipeline.progress, pipeline.registry, pipeline.tables
        self._wal, self._sink, self._health, self._stop = pipeline.wal, pipeline.sink, pipeline.health, pipeline.stop
        self._progress, self._delivery = progress, pipeline.delivery
        self._idle_at = self._asked_at = self._looked_at = 0.0
        self._unsettled: frozenset[str] = frozenset()  # as of the last commit
        opened = pipeline.opened
        self._unchanged = Unchanged(Reread(catalog.connection), progress, tables.want)
        opened.callback(self._unchanged.report, now=True)
        spool = Spool(Path(config.source.spool_dir or tempfile.gettempdir()), config.memory.spool_bytes)
        self._in_progress = InProgress(spool, parallel=self._wal.parallel, captures=catalog.capture_set.captures)
        opened.callback(self._in_progress.close)
        self.assembler = Assembler(
            tables,
            self._sink,
            progress,
            self._unchanged,
            self._in_progress,
            Messages(config, catalog.database, tables, self._sink.outbox),
            self._delivery.refusals,
        )
        self._wal.confirm(progress.flushed_lsn)
        self._registry = registry
        self._watch = CatalogWatch(catalog, registry, tables.past, partial(check_logs, captured, config))
        self._windows = Windows(config, catalog, self._delivery, tables, self.assembler, self._wal.ask, self._watch)
        opened.callback(self._windows.close)
        take_up(captured, pipeline.reads, registry, self._windows)
        tail = RequestTail(config.kafka, config.source.slot)
        opened.callback(tail.close)
        answer = partial(self._sink.send_plain, Topics(config.kafka.prefix).requests)
        self._requests = SnapshotRequests(tail, answer, catalog, registry, self.assembler.set_aside)
        # find changes to tables or the publication since the last session
        self._watch.look()

    def run(self) -> None:
        """Read, send, commit and confirm until asked to stop."""
        deadline: float | None = None
        self._health.streaming()
        while True:
            self._health.turned_at = time.monotonic()
            more = self.assembler.release(_READ_MESSAGES) or self._read()
            self._settle(drained=not more)
            if self._sink.pending or self.assembler.open_xid is not None:
                self._health.lag.pending(self.assembler.oldest_us)
            self._commit_when_due(drained=not more)
            self._requests.poll()
            self._windows.poll()
            self._delivery.refusals.report()
            if self._stop.is_set():
                deadline = deadline or time.monotonic() + _STOP_S
                if self.assembler.open_xid is None or time.monotonic() > deadline:
                    self._commit()
                    self._delivery.refusals.report(now=True)
                    return
            if not more:
                self._advance_idle()
                self._wal.wait(self._delivery.rest() if self._uncommitted else _TICK_S)

    def _read(self) -> bool:
        """Send the received messages; return False when none are left for now."""
        messages: list[bytes] = []
        more = self._wal.read(_READ_MESSAGES, messages)
        self.assembler.feed(messages)
        return more or self.assembler.releasing

    def _settle(self, *, drained: bool) -> None:
        """Apply catalog findings up to the stream's position; with `drained`, all received WAL is processed."""
        if not self._watch.waits or self.assembler.open_xid is not None:
            return
        if self._registry.unsettled and self._sink.pending:
            # to know the offsets from which on records are newer than the rows that are read again
            self._commit()
        delivered = self.assembler.rows.flushed_lsn
        self._watch.passed(max(delivered, self._wal.server_wal_end) if drained else delivered)
        now = time.monotonic()
        if self._watch.waits and drained and now - self._asked_at > _ASK_S:
            self._asked_at = now
            self._wal.ask()

    def _commit_when_due(self, *, drained: bool) -> None:
        """Commit once all received changes are sent, at the latest at the configured size or age."""
        rested = drained and self._delivery.rest() == 0
        if self._delivery.full or (self._uncommitted and (rested or self._delivery.due())):
            self._commit()

    @property
    def _uncommitted(self) -> bool:
        """Whether complete source transactions wait for their Kafka commit."""
        return self._sink.pending and self.assembler.open_xid is None

    def _commit(self) -> None:
        assembler = self.assembler
        rows = assembler.rows
        if assembler.open_xid is None:
            self._watch.look()
        self._unsettled = self._registry.unsettled
        self._health.committing_since = time.time()
        rest_s = self._watch.rest_s
        self._delivery.commit(assembler.position, rows.flushed_lsn, rows.commit_us, assembler.open_xid, rest_s)
        self._health.committing_since = None
        assembler.oldest_us = None
        if assembler.open_xid is None:
            self._health.lag.delivered(self._progress.flushed_lsn)
        self._idle_at = 0.0
        self._unchanged.report()

    def _advance_idle(self) -> None:
        """Advance to the server's read position when nothing is in flight: all WAL before it is processed."""
        assembler = self.assembler
        if self._sink.pending or assembler.open_xid is not None:
            return
        level = assembler.rows.flushed_lsn = max(assembler.rows.flushed_lsn, self._wal.server_wal_end)
        self._health.lag.delivered(level)
        self._wal.level(level)
        now = time.monotonic()
        if (self._unsettled or self._watch.wants_look) and now - self._looked_at >= _SETTLE_S:
            # the cut may be a state now, or a table may have been altered
            self._looked_at = now
            self._watch.look()
        wait = _SETTLE_S if self._progress.reread else _IDLE_ADVANCE_S
        advanced = assembler.rows.flushed_lsn > self._progress.flushed_lsn and now - self._idle_at >= wait
        if advanced or self._registry.unsettled != self._unsettled:
            self._commit()
            self._idle_at = now
