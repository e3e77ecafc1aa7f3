"""First snapshot: copy all tables as of the slot's consistent point, the position of all its rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg
import structlog

from tailrace.cdc.backfill.exported_snapshot import ExportedSnapshot
from tailrace.cdc.backfill.report import Report
from tailrace.cdc.backfill.snapshot_rows import RowSender
from tailrace.cdc.changes.dead_letters import RefusedRow
from tailrace.cdc.changes.delivery import Delivery
from tailrace.cdc.tables.registry import FIRST_RUN
from tailrace.cdc.tables.shapes import CapturedTable, Tables
from tailrace.schemas.errors import SourceError
from tailrace.schemas.lsn import format_lsn
from tailrace.snapshot.pace import Pace
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.reader import Lines

log = structlog.get_logger()

_WAIT_S = 0.2
"""Maximum wait for rows, in seconds, before the loop does its other work."""


@dataclass(slots=True)
class _Open:
    """Rows and bytes received of an open chunk; `refused` is bounded by the size of the chunk."""

    rows: int = 0
    copied: int = 0
    refused: list[RefusedRow] = field(default_factory=list)


class FirstSnapshot:
    """Send the rows that the workers read. `left` are the unread chunks by table."""

    def __init__(self, delivery: Delivery, tables: Tables, exported: ExportedSnapshot) -> None:
        self._delivery = delivery
        self._tables = tables
        self._registry = tables.registry
        self._exported = exported
        self._point = exported.consistent_point
        self._sender = RowSender(delivery, delivery.progress.epoch, self._point - 1, 1, FIRST_RUN)
        self._open: dict[Chunk, _Open] = {}
        self.left = {plan.relation.qualified_name: set(plan.chunks) for plan in exported.plans}

    def send(self, pace: Pace, report: Report) -> None:
        """Copy all tables to Kafka; when `delivery` is stopped, the rest is left for windows.

        SourceError if the server refuses a read, or if a connection is lost, and with it its snapshot. The rows read by
        then are in Kafka, and the next start continues with the rest.
        """
        exported, delivery, workers = self._exported, self._delivery, self._exported.workers
        log.info(
            "first snapshot started",
            lsn=format_lsn(self._point),
            tables=len(exported.relations),
            chunks=len(exported.chunks),
        )
        try:
            self._begin()
            self._read(pace, report)
        except psycopg.Error as error:
            raise exported.cannot_read(error) from None
        finally:
            workers.close()
            report.close()
        self._commit()
        delivery.refusals.report(now=True)

    def _read(self, pace: Pace, report: Report) -> None:
        workers, delivery = self._exported.workers, self._delivery
        try:
            workers.read(self._exported.chunks, self._exported.relations)
            while workers.busy and not delivery.stop.is_set():
                if rest := pace.rest():
                    delivery.stop.wait(min(rest, _WAIT_S))
                else:
                    for chunk, lines in workers.poll(_WAIT_S):
                        pace.read(self._take(chunk, lines))
                        if delivery.due():
                            self._commit()
                if delivery.due():
                    self._commit()
                report.show()
        except psycopg.Error:
            self._commit()
            raise

    def _begin(self) -> None:
        """Store the chunks and layouts of all tables in one Kafka transaction, before any row is read."""
        # before the tables: without Kafka transactions, only the first of these records may exist at the next start
        for chunk in self._exported.chunks:
            self._registry.note_chunk(chunk, FIRST_RUN, done=False)
        for name, relation in self._exported.relations.items():
            self._tables.see(relation)
            self._registry.first(relation, self._exported.layouts[name], self._point)
            if (toast := self._tables.for_record(relation.oid).toast) is not None:
                toast.vouch()
        # a partitioned table without partitions has no chunks
        for name in self._exported.relations.keys() - {chunk.table for chunk in self._exported.chunks}:
            self._registry.copied(name)
        for name in self._exported.names - self._exported.relations.keys():
            self._registry.gone(name)
        self._delivery.commit(self._delivery.progress.newest.here.position, self._point, 0, None)

    def _take(self, chunk: Chunk, lines: Lines | None) -> int:
        """Send rows of a chunk, or note its end; return the number of bytes received."""
        relation = self._exported.relations[chunk.table]
        if self._registry.is_parked(relation):
            return 0
        if lines is None:
            self._done(chunk, self._open.pop(chunk, _Open()))
            return 0
        there = self._open.setdefault(chunk, _Open())
        try:
            there.refused += self._sender.send(self._table(chunk), lines)
        except SourceError as error:
            if not self._tables.park(relation.oid, error, self._point):
                raise
            self.left.pop(chunk.table)
            return 0
        size = sum(map(len, lines))
        there.rows += len(lines)
        there.copied += size
        return size

    def _done(self, chunk: Chunk, read: _Open) -> None:
        self._sender.divert(read.refused)
        self._registry.note_chunk(chunk, FIRST_RUN, done=True, rows=read.rows, copied=read.copied)
        left = self.left[chunk.table]
        left.discard(chunk)
        if not left:
            self._registry.copied(chunk.table)
            log.info("table copied", table=chunk.table, rows=self._registry.reads[chunk.table].rows)

    def _table(self, chunk: Chunk) -> CapturedTable:
        return self._tables.for_record(self._exported.relations[chunk.table].oid)

    def _commit(self) -> None:
        self._delivery.commit(self._sender.position, self._point, 0, None)
