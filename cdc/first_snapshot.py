"""The first copy of all tables: the database at the slot's consistent point, every row tagged with it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import psycopg
import structlog

from cdc import slot
from cdc.connect import connect, connect_replication
from cdc.delivery import Delivery
from cdc.layouts import describe
from cdc.progress import Progress
from cdc.publication import nokey_name
from cdc.refusals import RefusedRow
from cdc.shapes import FIRST_RUN, Shapes
from cdc.tables import CapturedTable, Tables
from schemas.config import Config
from schemas.copytext import split_copy
from schemas.encoder import TableEncoder
from schemas.envelope import POSITION_HEADER, SNAPSHOT_HEADER
from schemas.layout import Layout
from schemas.lsn import Position, format_lsn
from schemas.relation import Relation
from schemas.rowcodec import ColumnRefused
from sinks.outbox import Headers
from snapshot.plan import Chunk, plan_chunks
from snapshot.reader import Lines, SnapshotWorkers, lock_tables

log = structlog.get_logger()


class ExportedSnapshot:
    """A new slot, and workers that see the database at its consistent point."""

    def __init__(self, config: Config, version: int, relations: Sequence[Relation]) -> None:
        """ACCESS SHARE is held from before the slot is made until the workers hold theirs, and the connection that
        exports runs nothing until all of them have imported."""
        dsn = config.source.dsn.get_secret_value()
        self.names = {relation.qualified_name for relation in relations}
        self.chunks: list[Chunk] = []
        self.layouts: dict[str, Layout] = {}
        with connect(dsn) as guard:
            guard.execute("BEGIN")
            lock_tables(guard, relations)
            self._plan(guard, config, relations)
            exporter = connect_replication(dsn)
            try:
                created = slot.create(exporter, config.source.slot, version)
                self.consistent_point = created.consistent_point
                self.workers = SnapshotWorkers(
                    lambda: connect(dsn, application_name="tailrace snapshot"),
                    config.snapshot.workers,
                    created.snapshot_name,
                    self.relations,
                    self.chunks,
                )
            finally:
                exporter.finish()

    def _plan(self, guard: psycopg.Connection, config: Config, relations: Sequence[Relation]) -> None:
        """Ask for the tables once more: what was asked before the lock may have been altered since."""
        publications = [config.source.publication, nokey_name(config.source.publication)]
        self.relations: dict[str, Relation] = {}
        for each in relations:
            found = describe(guard, publications, each.schema, each.name)
            if found is not None:
                self.relations[each.qualified_name], self.layouts[each.qualified_name] = found
                self.chunks += plan_chunks(guard, publications, found[0], config.snapshot.chunk_bytes)


class RowSender:
    """Sends rows that were read, as `op` r, with positions that count up from `ordinal` at one commit LSN."""

    def __init__(self, delivery: Delivery, epoch: int, commit_lsn: int, ordinal: int, run: int) -> None:
        self._outbox = delivery.sink.outbox
        self._refusals = delivery.refusals
        self._run = run
        self._header = Position(epoch, commit_lsn, 0).to_bytes()[:12]
        self._commit_lsn = commit_lsn
        self._epoch = epoch
        self._ordinal = ordinal
        self._ready: set[TableEncoder] = set()

    @property
    def position(self) -> Position:
        """Of the last row sent."""
        return Position(self._epoch, self._commit_lsn, self._ordinal - 1)

    def send(self, table: CapturedTable, lines: Lines, without: set[bytes] | None = None) -> list[RefusedRow]:
        """Send lines of COPY's text format, except those with a key in `without`; return what cannot be stored."""
        encoder = table.encoder
        if encoder not in self._ready:
            now_ms = time.time_ns() // 1_000_000
            encoder.begin_snapshot(self._commit_lsn, now_ms, now_ms)
            self._ready.add(encoder)
        run = self._run.to_bytes(4, "big")
        toast = table.toast
        toast_size = toast.size if toast is not None else 0
        refused: list[RefusedRow] = []
        for line in lines:
            fields = split_copy(line)
            value: bytes | None
            try:
                key, value = encoder.snapshot(fields, self._ordinal)
            except ColumnRefused as error:
                row = self._refusals.row(table, error, fields)
                if without and row.key in without:
                    continue
                refused.append(row)
                if self._run == FIRST_RUN or not row.key:
                    continue
                # read again: what the topic holds of the row is not its newest version any more
                key, value = row.key, None
            if without and key in without:
                continue
            position = self._header + self._ordinal.to_bytes(8, "big")
            headers: Headers = [(POSITION_HEADER, position), (SNAPSHOT_HEADER, run)]
            self._outbox.send(table.destination, key, value, headers)
            self._ordinal += 1
            if toast is not None and len(line) >= toast_size:
                toast.row(key, fields)
        return refused

    def divert(self, refused: Sequence[RefusedRow]) -> None:
        """Write the dead letters of rows: with the record that says that their chunk is read, so that each is one.

        The topic may have such a row from before the table was read again, in a form that could be stored.
        """
        for row in refused:
            if row.key:
                position = self._header + self._ordinal.to_bytes(8, "big")
                self._outbox.send(row.table.destination, row.key, None, position)
                self._ordinal += 1
            self._refusals.divert(row, Position(self._epoch, self._commit_lsn, self._ordinal))
            self._ordinal += 1


def send_first_snapshot(
    delivery: Delivery, tables: Tables, shapes: Shapes, progress: Progress, exported: ExportedSnapshot
) -> None:
    """Copy all tables into Kafka. When `delivery` is told to stop it ends early; the rest is read by windows then."""
    point = exported.consistent_point
    log.info(
        "first snapshot begins",
        lsn=format_lsn(point),
        tables=len(exported.relations),
        chunks=len(exported.chunks),
    )
    try:
        for name, relation in exported.relations.items():
            tables.see(relation)
            shapes.first(relation, exported.layouts[name], point)
            if (toast := tables[relation.oid].toast) is not None:
                toast.vouch()
        # a partitioned table may have no partition yet
        progress.incomplete -= exported.names - {chunk.table for chunk in exported.chunks}
        for chunk in exported.chunks:
            shapes.note_chunk(chunk, FIRST_RUN, done=False)
        delivery.commit(progress.newest.here.position, point, 0, None)
        sender = RowSender(delivery, progress.epoch, point - 1, 1, FIRST_RUN)
        left = set(exported.chunks)
        # bounded by the chunks at hand, one for each worker
        refused: defaultdict[Chunk, list[RefusedRow]] = defaultdict(list)
        for chunk, lines in exported.workers:
            if lines is not None:
                refused[chunk] += sender.send(tables[exported.relations[chunk.table].oid], lines)
            else:
                sender.divert(refused.pop(chunk, []))
                left.discard(chunk)
                shapes.note_chunk(chunk, FIRST_RUN, done=True)
                if not any(other.table == chunk.table for other in left):
                    progress.incomplete.discard(chunk.table)
                    log.info("table copied", table=chunk.table)
            if delivery.due() or not left:
                delivery.commit(sender.position, point, 0, None)
            if delivery.stop.is_set():
                break
        delivery.commit(sender.position, point, 0, None)
        delivery.refusals.report(now=True)
    finally:
        exported.workers.close()
