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
from cdc.progress import Progress
from cdc.publication import nokey_name
from cdc.refusals import RefusedRow
from cdc.tables import Tables
from schemas.config import Config
from schemas.copytext import split_copy
from schemas.encoder import TableEncoder
from schemas.envelope import POSITION_HEADER, SNAPSHOT_HEADER
from schemas.lsn import Position, format_lsn
from schemas.progress import chunk_key
from schemas.relation import Relation
from schemas.rowcodec import ColumnRefused
from sinks.outbox import Headers
from snapshot.plan import Chunk, plan_chunks
from snapshot.reader import Lines, SnapshotWorkers, lock_tables

log = structlog.get_logger()

FIRST_RUN = 1
"""The number of a table's first snapshot run."""


class ExportedSnapshot:
    """A new slot, and workers that see the database at its consistent point."""

    def __init__(
        self, config: Config, connection: psycopg.Connection, version: int, relations: Sequence[Relation]
    ) -> None:
        """ACCESS SHARE is held from before the slot is made until the workers hold theirs, and the connection that
        exports runs nothing until all of them have imported."""
        dsn = config.source.dsn.get_secret_value()
        self.relations = {relation.qualified_name: relation for relation in relations}
        self.chunks = plan_all(config, connection, relations)
        with connect(dsn) as guard:
            guard.execute("BEGIN")
            lock_tables(guard, relations)
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


def plan_all(config: Config, connection: psycopg.Connection, relations: Sequence[Relation]) -> list[Chunk]:
    """Return the chunks of all tables, in the order of the tables."""
    publications = [config.source.publication, nokey_name(config.source.publication)]
    return [
        chunk
        for relation in relations
        for chunk in plan_chunks(connection, publications, relation, config.snapshot.chunk_bytes)
    ]


def record_chunks(delivery: Delivery, chunks: Sequence[Chunk]) -> None:
    """Write down which chunks there are to read, so that a snapshot that is cut short is not begun again."""
    for chunk in chunks:
        delivery.sink.send_progress(_key(delivery.slot, chunk), chunk.to_json(done=False))


def chunk_done(delivery: Delivery, progress: Progress, chunk: Chunk, left: set[Chunk]) -> None:
    """Write down, with the rows themselves, that a chunk is read; `left` are all chunks that are not."""
    left.discard(chunk)
    delivery.sink.send_progress(_key(delivery.slot, chunk), chunk.to_json(done=True))
    if not any(other.table == chunk.table for other in left):
        progress.incomplete.discard(chunk.table)
        log.info("table copied", table=chunk.table)


def _key(slot_name: str, chunk: Chunk) -> bytes:
    return chunk_key(slot_name, chunk.table, FIRST_RUN, chunk.n)


class RowSender:
    """Sends rows that were read, as `op` r, with positions that count up from `ordinal` at one commit LSN."""

    def __init__(self, delivery: Delivery, tables: Tables, epoch: int, commit_lsn: int, ordinal: int) -> None:
        self._outbox = delivery.sink.outbox
        self._tables = tables
        self._refusals = delivery.refusals
        self._header = Position(epoch, commit_lsn, 0).to_bytes()[:12]
        self._commit_lsn = commit_lsn
        self._epoch = epoch
        self._ordinal = ordinal
        self._ready: set[TableEncoder] = set()

    @property
    def position(self) -> Position:
        """Of the last row sent."""
        return Position(self._epoch, self._commit_lsn, self._ordinal - 1)

    def send(self, oid: int, lines: Lines, without: set[bytes] | None = None) -> list[RefusedRow]:
        """Send lines of COPY's text format, except those with a key in `without`; return what cannot be stored."""
        table = self._tables[oid]
        encoder = table.encoder
        if encoder not in self._ready:
            now_ms = time.time_ns() // 1_000_000
            encoder.begin_snapshot(self._commit_lsn, now_ms, now_ms)
            self._ready.add(encoder)
        run = FIRST_RUN.to_bytes(4, "big")
        toast = table.toast
        toast_size = toast.size if toast is not None else 0
        refused: list[RefusedRow] = []
        for line in lines:
            fields = split_copy(line)
            try:
                key, value = encoder.snapshot(fields, self._ordinal)
            except ColumnRefused as error:
                row = self._refusals.row(table, error, fields)
                if not (without and row.key in without):
                    refused.append(row)
                continue
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


def send_first_snapshot(delivery: Delivery, tables: Tables, progress: Progress, exported: ExportedSnapshot) -> None:
    """Copy all tables into Kafka. When `delivery` is told to stop it ends early; the rest is read by windows then."""
    point = exported.consistent_point
    log.info(
        "first snapshot begins",
        lsn=format_lsn(point),
        tables=len(exported.relations),
        chunks=len(exported.chunks),
    )
    try:
        for relation in exported.relations.values():
            table = tables.see(relation)
            if table.toast is not None:
                table.toast.vouch()
        record_chunks(delivery, exported.chunks)
        delivery.commit(progress.newest.here.position, point, 0, None)
        sender = RowSender(delivery, tables, progress.epoch, point - 1, 1)
        left = set(exported.chunks)
        # bounded by the chunks at hand, one for each worker
        refused: defaultdict[Chunk, list[RefusedRow]] = defaultdict(list)
        for chunk, lines in exported.workers:
            if lines is not None:
                refused[chunk] += sender.send(exported.relations[chunk.table].oid, lines)
            else:
                sender.divert(refused.pop(chunk, []))
                chunk_done(delivery, progress, chunk, left)
            if delivery.due() or not left:
                delivery.commit(sender.position, point, 0, None)
            if delivery.stop.is_set():
                break
        delivery.commit(sender.position, point, 0, None)
        delivery.refusals.report(now=True)
    finally:
        exported.workers.close()
