"""Incremental snapshots: read tables in watermark windows while streaming.

Used for the rest of a first snapshot or, if so configured, all of it; for a new table; for a table whose rows read
differently; and for a table that a person wants read. The keys that the stream changes during a window are noted; the
other rows are sent at the commit of the high mark. Where marks cannot be written, they are sent after the last record
of the stream. A table without a key is read from one snapshot, and the stream's changes that the snapshot has are
dropped.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import psycopg
import structlog

from tailrace.cdc.backfill.reconcile import Deletes, Reconcile
from tailrace.cdc.backfill.snapshot_rows import RowSender
from tailrace.cdc.changes.assembler import Assembler
from tailrace.cdc.changes.delivery import Delivery
from tailrace.cdc.postgres.connect import cannot_read, connect_to_read
from tailrace.cdc.postgres.layouts import describe, survey
from tailrace.cdc.postgres.rights import Denials, lacking_grants
from tailrace.cdc.postgres.source_catalog import SourceCatalog
from tailrace.cdc.tables.catalog_watch import CatalogWatch
from tailrace.cdc.tables.shapes import CapturedTable, Tables
from tailrace.cdc.wal import pgoutput
from tailrace.schemas.config.model import Config, Snapshot
from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.errors import SourceError, TailraceError
from tailrace.schemas.lsn import PARTS_PER_CHANGE, Position
from tailrace.schemas.records.layout import Asked, TableStatus
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation
from tailrace.snapshot.pace import Pace
from tailrace.snapshot.plan import Chunk, plan_chunks
from tailrace.snapshot.window import ChunkRead, Look, Outcome, Plan, Window
from tailrace.snapshot.window_protocol import WindowProtocol
from tailrace.snapshot.window_reader import WindowReader

log = structlog.get_logger()

_WINDOW_BYTES: Final = 1_048_576
"""Maximum bytes of a table in one window: its rows are sent all at once, while changes wait."""

_AGAIN_S: Final = 0.2
"""Delay before a void chunk is read again: a commit may stay invisible while it awaits a standby."""

_PLAN_AGAIN_S: Final = 1.0
"""Delay before the read of a missing table is planned again."""

_DENIED_AGAIN_S: Final = 10.0
"""Delay before a table that the role may not read is tried again."""

_ASK_S: Final = 0.05
"""Interval of requests to an idle server for its sent LSN, where marks cannot be written."""


class TableRead:
    """A table that is being read; `plan` is None until its read is planned.

    `ready_at` is the earliest monotonic time for the next step, because of the rate limit or after a failed attempt. Of
    a table without a key: `has_snapshot` if the stream has passed the snapshot that its chunks are read from,
    `truncated` if the stream has truncated the table since.
    """

    def __init__(self, relation: Relation, run: int) -> None:
        self.relation = relation
        self.run = run
        self.plan: Plan | None = None
        self.left: list[Chunk] = []
        self.reconcile: Reconcile | None = None
        self.ready_at = 0.0
        self.has_snapshot = False
        self.truncated = False

    @property
    def is_whole(self) -> bool:
        """Whether the table has no key, so that it is read from one snapshot."""
        return self.plan is not None and self.plan.whole


class Windows:
    """Connect the window reader with the stream. `reads` are the tables that are being read, by name."""

    def __init__(
        self,
        config: Config,
        catalog: SourceCatalog,
        delivery: Delivery,
        tables: Tables,
        assembler: Assembler,
        ask_for_wal_end: Callable[[], None],
        watch: CatalogWatch,
    ) -> None:
        """`ask_for_wal_end` makes the server report at once how far it has sent the WAL."""
        self._watch = watch
        self.reads: dict[str, TableRead] = {}
        self._kafka = config.kafka
        self._topics = Topics(config.kafka.prefix)
        self._delivery = delivery
        self._tables = tables
        self._registry = tables.registry
        self._assembler = assembler
        self._ask_for_wal_end = ask_for_wal_end
        self._closed: Window | None = None
        self._opened: Window | None = None
        self._asked_at = 0.0
        self._pace = Pace(config.snapshot.max_bytes_per_s)
        self._denials = Denials()
        dsn = config.source.dsn.get_secret_value()
        chunk_bytes = min(config.snapshot.chunk_bytes, _WINDOW_BYTES)
        publications, capture_set = catalog.publications.names, catalog.capture_set
        self._snapshot = config.snapshot.model_copy(update={"chunk_bytes": chunk_bytes})
        reader = WindowReader(
            lambda: connect_to_read(dsn, application_name="tailrace window"),
            f"tailrace:{config.source.slot}",
            uuid.uuid4().hex,
            lambda connection, schema, name: describe(connection, publications, schema, name),
            lambda connection, relation, where: plan_chunks(
                connection, publications, relation, self._how(relation), where
            ),
            lambda connection: survey(connection, publications, capture_set),
            lacking_grants,
        )
        self._protocol = WindowProtocol(reader)
        assembler.rows.on_commit = self._commit
        tables.is_copied_later = self._is_copied_later

    def resume(self, relation: Relation, chunks: Iterable[Chunk]) -> None:
        """Resume a table's read with its remaining chunks; without a layout the read has not begun."""
        name = relation.qualified_name
        state = self._registry.states[name]
        asked = self._asked(name)
        layout, lsn = (asked.layout, asked.lsn) if asked.whole else (state.layout, state.lsn)
        read = self._begin(relation)
        if layout is not None and state.status is not TableStatus.WANTED:
            read.left = list(chunks)
            read.plan = Plan(name, state.run, relation, layout, lsn, tuple(read.left), asked.where)
            log.info("snapshot resumed in windows", table=name, chunks=len(read.left), paused=asked.paused)
            self._when_copied(read)

    def poll(self) -> None:
        """Process inspections, new reads, plans and reconciliation; schedule the reader's next request.

        Raises the errors of the reader.
        """
        try:
            reply = self._protocol.poll()
        except psycopg.Error as error:
            raise cannot_read(error) from None
        if isinstance(reply, Look):
            self._watch.add(reply)
        for name, relation in self._registry.wanted.items():
            self._registry.begun(name)
            self._begin(relation)
        for name, read in list(self.reads.items()):
            if self._registry.states[name].run != read.run:
                self._done(name)  # the table was renamed, or its read was cancelled
        if isinstance(reply, Plan) and (current := self._current(reply)) is not None:
            self._planned(current, reply)
        if self._assembler.open_xid is None:
            self._between()
            for read in list(self.reads.values()):
                if read.reconcile is not None:
                    self._reconcile(read, read.reconcile)
                elif read.truncated and read.has_snapshot:
                    self._copied(read)  # its other rows have been deleted
        self._next()

    def _begin(self, relation: Relation) -> TableRead:
        name = relation.qualified_name
        if name in self.reads:
            self._done(name)
        read = self.reads[name] = TableRead(relation, self._registry.states[name].run)
        self._assembler.on_message = self._message
        self._assembler.rows.on_key = self._touch
        return read

    def _next(self) -> None:
        """Give the reader the next plan or chunk, in the order in which the tables were added."""
        now = time.monotonic()
        if self._protocol.busy:
            if self._protocol.waits and now - self._asked_at > _ASK_S:
                self._asked_at = now
                self._ask_for_wal_end()
            return
        for name, read in () if self._pace.rest() else self.reads.items():
            asked = self._asked(name)
            if asked.paused or read.ready_at > now:
                continue
            if read.plan is None:
                self._protocol.plan(read.relation, read.run, asked.where)
                return
            if read.is_whole and not read.has_snapshot:
                self._protocol.take_snapshot(read.plan)
                return
            if read.left:
                self._protocol.read(read.plan, read.left[0])
                return
        self._protocol.look_if_due()

    def _how(self, relation: Relation) -> Snapshot:
        """Return the snapshot settings of a table; without conditions if it reconciles, which needs all rows."""
        if self._asked(relation.qualified_name).since is None:
            return self._snapshot
        return self._snapshot.model_copy(update={"where": {}})

    def _asked(self, name: str) -> Asked:
        return self._registry.states[name].asked or Asked()

    def _planned(self, read: TableRead, plan: Plan) -> None:
        if plan.denied:
            self._denied(read, plan.denied)
            return
        if plan.refused is not None:
            self._refused(read, plan.refused)
            return
        if plan.layout is None or not self._registry.is_published(plan.layout):
            # missing, renamed or not wholly published: a catalog inspection finds the LSN
            read.ready_at = time.monotonic() + _PLAN_AGAIN_S
            self._watch.want_look()
            return
        try:
            has_key = self._tables.has_key(plan.relation)
            self._registry.check_hidden(plan.relation, plan.layout)
        except TailraceError as error:
            self._refused(read, error)
            return
        plan = replace(plan, whole=not has_key)
        self._registry.forget_chunks(plan.table)
        for chunk in plan.chunks:
            self._registry.note_chunk(chunk, plan.run, done=False)
        # after the chunks: without Kafka transactions, only the first of these records may exist at the next start
        past = self._tables.past(plan.relation.schema, plan.relation.name)
        assert plan.layout is not None
        self._registry.planned(plan.relation, plan.layout, plan.lsn, past, has_key=has_key)
        log.info("table read started", table=plan.table, run=plan.run, chunks=len(plan.chunks))
        read.plan = plan
        read.left = list(plan.chunks)
        self._when_copied(read)

    def _done(self, table: str) -> None:
        """Remove a table's read; when none is left, stop listening to the stream."""
        read = self.reads.pop(table)
        if read.reconcile is not None:
            read.reconcile.close()
        if read.is_whole:
            self._protocol.end_snapshot(table)
        if not self.reads:
            self._assembler.on_message = None
            self._assembler.rows.on_key = None

    def _current(self, plan: Plan) -> TableRead | None:
        """Return the read that a plan belongs to; None if that read has ended or has been restarted."""
        read = self.reads.get(plan.table)
        return read if read is not None and read.run == plan.run == self._registry.states[plan.table].run else None

    def _message(self, message: pgoutput.Message) -> None:
        """Process a logical message of the stream."""
        try:
            self._closed = self._protocol.mark(message.prefix, message.content) or self._closed
        except psycopg.Error as error:
            raise cannot_read(error) from None
        self._opened = self._protocol.opened

    def _touch(self, table: CapturedTable, key: bytes) -> None:
        read = self.reads.get(table.name)
        reconcile = read.reconcile if read is not None else None
        if read is not None and read.is_whole:
            read.truncated |= key == TRUNCATE_KEY
        elif key == TRUNCATE_KEY:
            self._protocol.truncated(table.name)
            if reconcile is not None:
                reconcile.truncated()
        else:
            self._protocol.touch(table.name, key)
            if reconcile is not None:
                reconcile.touch(key)

    def _commit(self, commit_lsn: int, xid: int) -> None:
        self._protocol.delivered(xid)
        opened, self._opened = self._opened, None
        if opened is not None:
            self._begin_empty(opened, Position(self._delivery.progress.epoch, commit_lsn, PARTS_PER_CHANGE - 1))
        window, self._closed = self._closed, None
        if window is None:
            self._between()
            return
        # the mark itself is the only change of its transaction
        self._close(window, Position(self._delivery.progress.epoch, commit_lsn, PARTS_PER_CHANGE - 1))

    def _between(self) -> None:
        """Open and close windows without marks, between transactions."""
        try:
            window = self._protocol.between(self._assembler.rows.flushed_lsn)
        except psycopg.Error as error:
            raise cannot_read(error) from None
        if window is None and self._protocol.opened is not None:
            self._begin_empty(self._protocol.opened, self._assembler.behind)
        if window is not None:
            self._close(window, self._assembler.position)

    def _close(self, window: Window, position: Position) -> None:
        """Handle the result of a window; its rows get the positions after `position`."""
        read, found = self._current(window.plan), window.read
        assert found is not None  # it is closed
        if read is not None and window.chunk is None:
            read.has_snapshot = found.outcome is Outcome.ROWS
            if read.has_snapshot:
                self._when_copied(read)
            else:
                read.ready_at = time.monotonic() + _AGAIN_S
        elif read is not None:
            if found.outcome is Outcome.DENIED:
                self._denied(read, found.denied)
            elif found.refused is not None:
                self._refused(read, found.refused)
            elif found.outcome is Outcome.FAILED:
                self._failed(window, found.error)
            elif self._has_left(found.relation, found.lsn):
                # renamed to a name that is not captured
                read.ready_at = time.monotonic() + _PLAN_AGAIN_S
                self._watch.want_look()
            elif found.outcome is Outcome.MOVED or self._is_outdated(window, found, read):
                log.info("table altered during its read", table=window.plan.table)
                past = self._tables.past(found.relation.schema, found.relation.name)
                self._registry.altered(found.relation, found.layout, past)
            elif found.outcome is Outcome.VOID:
                read.ready_at = time.monotonic() + _AGAIN_S
            else:
                self.emit(window, found, read, position)
        self._protocol.finish()

    def _begin_empty(self, window: Window, position: Position) -> None:
        """Empty the topic when the first window opens, if the read of the table begins with a truncate.

        Records of the stream up to then may have a form from before the read was planned.
        """
        plan = window.plan
        read = self._current(plan)
        if read is None or not self._registry.begins_empty(plan.table) or self._has_left(plan.relation, plan.lsn):
            return
        if window.is_void:
            return
        seen = self._tables.seen(plan.relation.oid)
        if seen is None or (seen[1] <= plan.lsn and _shape(seen[0]) != _shape(plan.relation)):
            self._tables.see(plan.relation, plan.lsn)
        table = self._tables.for_rows(plan.relation.oid)
        if table is not None and self._current(plan) is not None:
            self._assembler.empty(table, position)
            self._assembler.sent(position)
            self._registry.emptied(plan.table)
            read.truncated = False

    def _is_copied_later(self, name: str) -> bool:
        """Whether the present transaction's changes of a table without a key come with its rows."""
        read, xid = self.reads.get(name), self._assembler.open_xid
        if read is not None and read.has_snapshot:
            return False
        return xid is None or self._protocol.is_in_snapshot(name, xid)

    def _denied(self, read: TableRead, statements: tuple[str, ...]) -> None:
        """Retry a table later that the role may not read; it stays incomplete until it has been read."""
        read.ready_at = time.monotonic() + _DENIED_AGAIN_S
        self._denials.log(read.relation.qualified_name, statements)

    def _refused(self, read: TableRead, error: TailraceError) -> None:
        """Park a table that cannot be captured as it is now. Raises `error` if the daemon is to stop."""
        oid = read.relation.oid
        if self._tables.seen(oid) is None:
            self._tables.see(read.relation)
        if not self._assembler.park(oid, error):
            raise error

    def _failed(self, window: Window, error: str) -> None:
        table = window.plan.table
        # without the condition itself: it may hold values
        limited = window.plan.where is not None
        log.error("table read failed: cannot select rows", table=table, condition=limited, error=error)
        self._registry.cancel(table, "failed")

    def _has_left(self, relation: Relation, lsn: int) -> bool:
        """Whether a table, read as `relation` at `lsn`, has left the capture set or is parked.

        Only a name that the stream has shown after `lsn` counts: an earlier one is outdated, and a rename need not be
        followed by a change.
        """
        seen = self._tables.seen(relation.oid)
        return self._tables.is_ignored(relation.oid) and (seen is None or seen[1] > lsn)

    def _is_outdated(self, window: Window, found: ChunkRead, read: TableRead) -> bool:
        """Whether the stream has shown a shape that differs from the one that was read, and is later.

        An earlier shape does not count: a table may be altered without a change that would bring a Relation message.
        """
        seen = self._tables.seen(found.relation.oid)
        if seen is None or _shape(seen[0]) != _shape(found.relation):
            if seen is not None and seen[1] > found.lsn:
                return True
            seen = found.relation, found.lsn
        elif len(read.left) < len(window.plan.chunks):
            return False
        # adopt it for the first chunk even if it is the same: the topic's action may depend on the publication
        self._tables.see(*seen)
        return False

    def emit(self, window: Window, found: ChunkRead, read: TableRead, position: Position) -> None:
        """Send a window's rows that the stream has not changed meanwhile, after `position`."""
        self._assembler.sent(position)
        # the shape may be new to the topic, and invalidate the rows read so far
        destined = self._tables.for_rows(found.relation.oid)
        if destined is None or self._current(window.plan) is None or window.chunk is None or read.truncated:
            return
        behind = self._assembler.behind
        run = window.plan.run
        sender = RowSender(self._delivery, behind.epoch, behind.commit_lsn, behind.ordinal, run)
        try:
            sender.divert(sender.send(destined, found.lines, window.keys or None))
        except SourceError as error:
            self._assembler.sent(sender.position)
            if not self._assembler.park(found.relation.oid, error):
                raise
            return
        copied = sum(map(len, found.lines))
        self._registry.note_chunk(window.chunk, run, done=True, rows=len(found.lines), copied=copied)
        self._assembler.sent(sender.position)
        self._pace.read(copied)
        read.left.remove(window.chunk)
        rate = self._asked(window.plan.table).rate
        if rate:
            rows = sender.position.ordinal - position.ordinal
            read.ready_at = time.monotonic() + rows / rate
        self._when_copied(read)

    def _when_copied(self, read: TableRead) -> None:
        """Begin to delete missing keys, or finish the table, if no chunk is left.

        A partitioned table without partitions has no chunks at all.
        """
        if read.plan is None or read.left or read.reconcile is not None or (read.is_whole and not read.has_snapshot):
            return
        since = self._asked(read.plan.table).since
        if since is None:
            self._copied(read)
        else:
            topic = self._topics.table(read.relation.schema, read.relation.name)
            read.reconcile = Reconcile(self._kafka, topic, since)

    def _reconcile(self, read: TableRead, reconcile: Reconcile) -> None:
        assert read.plan is not None
        if self._asked(read.plan.table).paused:
            return
        keys = reconcile.step(self._delivery.progress.newest, pending=self._delivery.sink.pending)
        if keys is None:
            self._copied(read)
        elif keys:
            relation = read.plan.relation
            seen = self._tables.seen(relation.oid)
            if seen is None or _shape(seen[0]) != _shape(relation):
                self._tables.see(relation, read.plan.lsn)
            table = self._tables.for_rows(relation.oid)
            if table is not None and self._current(read.plan) is not None:
                deletes = Deletes(self._delivery.sink.outbox, table, self._tables.key_schema(table), read.run)
                self._assembler.sent(deletes.send(keys, self._assembler.behind))

    def _copied(self, read: TableRead) -> None:
        name = read.relation.qualified_name
        if self._registry.must_be_emptied(name) and read.plan is not None:
            # no chunk, so no row whose record would have triggered the truncate
            self._tables.see(read.plan.relation, read.plan.lsn)
            self._tables.for_record(read.plan.relation.oid)
        self._done(name)
        self._registry.copied(name)
        log.info("table copied", table=name, run=read.run)

    def close(self) -> None:
        self._protocol.close()
        for read in self.reads.values():
            if read.reconcile is not None:
                read.reconcile.close()
        self._assembler.on_message = None
        self._assembler.rows.on_key = None
        self._assembler.rows.on_commit = None


def _shape(relation: Relation) -> tuple[str, list[tuple[str, int, int]]]:
    columns = [(column.name, column.type_oid, column.typmod) for column in relation.columns]
    return relation.qualified_name, columns
