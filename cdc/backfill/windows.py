"""Tables that are read while the stream goes on: a first snapshot's rest or, if so configured, all of it; a new table;
one whose rows read differently; one that a person wants read.

In windows over the stream: what it touches goes in, the other rows come out at the high mark's commit. Where marks
cannot be written, they come out behind the last record of the stream.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
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
from tailrace.schemas.errors import SourceError
from tailrace.schemas.lsn import PARTS_PER_CHANGE, Position
from tailrace.schemas.records.layout import Asked, TableStatus
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation
from tailrace.snapshot.pace import Pace
from tailrace.snapshot.plan import Chunk, plan_chunks
from tailrace.snapshot.window import Plan, Window
from tailrace.snapshot.window_reader import WindowReader

log = structlog.get_logger()

_WINDOW_BYTES: Final = 1_048_576
"""The most of a table that one window reads: its rows go into the stream at once, and changes wait meanwhile."""

_AGAIN_S: Final = 0.2
"""Until a void chunk is read again: a commit that is not seen yet may wait long, for a standby."""

_PLAN_AGAIN_S: Final = 1.0
"""Until a table that was not there is planned again."""

_DENIED_AGAIN_S: Final = 10.0
"""Until a table is tried again that the role may not read."""

_ASK_S: Final = 0.05
"""An idle server is asked this often how far it has sent the WAL, where no mark tells it."""


class TableRead:
    """A table that is being read: without a `plan` it is still to be planned. `ready_at`: not before, for its rate."""

    def __init__(self, relation: Relation, run: int) -> None:
        self.relation = relation
        self.run = run
        self.plan: Plan | None = None
        self.left: list[Chunk] = []
        self.reconcile: Reconcile | None = None
        self.ready_at = 0.0


class Windows:
    """Joins the reader of windows to the stream. `reads` are the tables that are being read, by name."""

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
        """`ask_for_wal_end` has the server say at once how far it has sent the WAL."""
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
        self._reader = WindowReader(
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
        assembler.rows.on_commit = self._commit

    def resume(self, relation: Relation, chunks: Iterable[Chunk]) -> None:
        """Go on with the chunks that are left of a table; without a layout nobody has begun to read it."""
        name = relation.qualified_name
        state = self._registry.states[name]
        asked = self._asked(name)
        layout, lsn = (asked.layout, asked.lsn) if asked.whole else (state.layout, state.lsn)
        read = self._begin(relation)
        if layout is not None and state.status is not TableStatus.WANTED:
            read.left = list(chunks)
            read.plan = Plan(name, state.run, relation, layout, lsn, tuple(read.left), asked.where)
            log.info("snapshot goes on in windows", table=name, chunks=len(read.left), paused=asked.paused)
            self._when_copied(read)

    def poll(self) -> None:
        """Take up what is wanted, what was found altered, and what has been planned. Raises what the reader met."""
        if (look := self._reader.looked()) is not None:
            self._watch.add(look)
        for name, relation in self._registry.wanted.items():
            self._registry.begun(name)
            self._begin(relation)
        for name, read in list(self.reads.items()):
            if self._registry.states[name].run != read.run:
                self._done(name)  # it has another name by now, or a person does not want it any more
        try:
            plan = self._reader.planned()
        except psycopg.Error as error:
            raise cannot_read(error) from None
        if plan is not None and (current := self._current(plan)) is not None:
            self._planned(current, plan)
        if self._assembler.open_xid is None:
            self._between()
            for read in list(self.reads.values()):
                if read.reconcile is not None:
                    self._reconcile(read, read.reconcile)
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
        """Give the reader the next plan or chunk; the tables in the order in which they came."""
        now = time.monotonic()
        if self._reader.busy:
            if self._reader.waits and now - self._asked_at > _ASK_S:
                self._asked_at = now
                self._ask_for_wal_end()
            return
        if self._pace.rest():
            return
        for name, read in self.reads.items():
            asked = self._asked(name)
            if asked.paused or read.ready_at > now:
                continue
            if read.plan is None:
                self._reader.plan(read.relation, read.run, asked.where)
                return
            if read.left:
                self._reader.read(read.plan, read.left[0])
                return

    def _how(self, relation: Relation) -> Snapshot:
        """Return how to cut a table into chunks: all of it, if what is not found is to be deleted."""
        if self._asked(relation.qualified_name).since is None:
            return self._snapshot
        return self._snapshot.model_copy(update={"where": {}})

    def _asked(self, name: str) -> Asked:
        return self._registry.states[name].asked or Asked()

    def _planned(self, read: TableRead, plan: Plan) -> None:
        if plan.denied:
            self._denied(read, plan.denied)
            return
        if plan.layout is None:
            # gone, or under another name, at a place of the WAL that a look at the catalog finds
            read.ready_at = time.monotonic() + _PLAN_AGAIN_S
            self._watch.want_look()
            return
        if not self._tables.has_key(plan.relation):
            self._registry.cannot_be_read(plan.table)
            self._done(plan.table)
            return
        self._registry.forget_chunks(plan.table)
        for chunk in plan.chunks:
            self._registry.note_chunk(chunk, plan.run, done=False)
        # behind them: without transactions a part of these records may be all that there is at the next start
        past = self._tables.past(plan.relation.schema, plan.relation.name)
        self._registry.planned(plan.relation, plan.layout, plan.lsn, past)
        log.info("table is read in windows", table=plan.table, run=plan.run, chunks=len(plan.chunks))
        read.plan = plan
        read.left = list(plan.chunks)
        self._when_copied(read)

    def _done(self, table: str) -> None:
        """Nothing is left of a table; with no other left, rows need not be looked at."""
        read = self.reads.pop(table)
        if read.reconcile is not None:
            read.reconcile.close()
        if not self.reads:
            self._assembler.on_message = None
            self._assembler.rows.on_key = None

    def _current(self, plan: Plan) -> TableRead | None:
        """Return the read that a plan is of; None if it is not wanted any more, or is wanted anew since."""
        read = self.reads.get(plan.table)
        return read if read is not None and read.run == plan.run == self._registry.states[plan.table].run else None

    def _message(self, message: pgoutput.Message) -> None:
        """Take a logical message of the stream."""
        self._closed = self._reader.mark(message.prefix, message.content) or self._closed
        self._opened = self._reader.opened

    def _touch(self, table: CapturedTable, key: bytes) -> None:
        read = self.reads.get(table.name)
        reconcile = read.reconcile if read is not None else None
        if key == TRUNCATE_KEY:
            self._reader.truncated(table.name)
            if reconcile is not None:
                reconcile.truncated()
        else:
            self._reader.touch(table.name, key)
            if reconcile is not None:
                reconcile.touch(key)

    def _commit(self, commit_lsn: int, xid: int) -> None:
        self._reader.delivered(xid)
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
        """Between transactions, windows without marks open and close."""
        window = self._reader.between(self._assembler.rows.flushed_lsn)
        if window is None and self._reader.opened is not None:
            self._begin_empty(self._reader.opened, self._assembler.behind)
        if window is not None:
            self._close(window, self._assembler.position)

    def _close(self, window: Window, position: Position) -> None:
        """Deal with what a window has brought; its rows stand behind `position`."""
        read = self._current(window.plan)
        if read is not None:
            if window.denied:
                self._denied(read, window.denied)
            elif window.failed:
                self._failed(window)
            elif self._has_left(window.relation, window.lsn):
                # it has a name by now under which it is not captured
                read.ready_at = time.monotonic() + _PLAN_AGAIN_S
                self._watch.want_look()
            elif window.moved or self._is_outdated(window, read):
                log.info("table was altered while it was read", table=window.chunk.table)
                past = self._tables.past(window.relation.schema, window.relation.name)
                self._registry.altered(window.relation, window.layout, past)
            elif window.void:
                read.ready_at = time.monotonic() + _AGAIN_S
            else:
                self.emit(window, read, position)
        self._reader.finish()

    def _begin_empty(self, window: Window, position: Position) -> None:
        """Where a table is read from an empty topic, have it empty when its first window opens.

        What the stream has brought by then may have the form of before the read was planned.
        """
        plan = window.plan
        read = self._current(plan)
        if read is None or not self._registry.begins_empty(plan.table) or self._has_left(plan.relation, plan.lsn):
            return
        seen = self._tables.seen(plan.relation.oid)
        if seen is None or (seen[1] <= plan.lsn and _shape(seen[0]) != _shape(plan.relation)):
            self._tables.see(plan.relation, plan.lsn)
        table = self._tables.captured(plan.relation.oid)
        if table is not None and self._current(plan) is not None:
            self._assembler.empty(table, position)
            self._assembler.sent(position)
            self._registry.emptied(plan.table)

    def _denied(self, read: TableRead, statements: tuple[str, ...]) -> None:
        """Leave a table that may not be read to itself for a while; it is incomplete until it has been."""
        read.ready_at = time.monotonic() + _DENIED_AGAIN_S
        self._denials.log(read.relation.qualified_name, statements)

    def _failed(self, window: Window) -> None:
        table = window.chunk.table
        log.error("rows cannot be selected, the read ends", table=table, where=window.plan.where, error=window.failed)
        self._registry.cancel(table, "failed")

    def _has_left(self, relation: Relation, lsn: int) -> bool:
        """Whether nothing of a table is sent that was found as `relation` at `lsn`: the stream has shown it since under
        a name outside the capture set. A name from before says nothing, and no change need follow a rename.
        """
        seen = self._tables.seen(relation.oid)
        return self._tables.is_ignored(relation.oid) and (seen is None or seen[1] > lsn)

    def _is_outdated(self, window: Window, read: TableRead) -> bool:
        """Whether the stream has shown another shape than the one that was read, and a later one.

        An earlier one is none: a table may be altered without a change that would bring a Relation message.
        """
        seen = self._tables.seen(window.relation.oid)
        if seen is None or _shape(seen[0]) != _shape(window.relation):
            if seen is not None and seen[1] > window.lsn:
                return True
            seen = window.relation, window.lsn
        elif len(read.left) < len(window.plan.chunks):
            return False
        # the same one, too, for the first chunk: what becomes of the topic may depend on the publication
        self._tables.see(*seen)
        return False

    def emit(self, window: Window, read: TableRead, position: Position) -> None:
        """Send the rows of a window that the stream has not changed meanwhile, behind `position`."""
        self._assembler.sent(position)
        # the shape may be news to the topic, and void what has been read of the table so far
        destined = self._tables.captured(window.relation.oid)
        if destined is None or self._current(window.plan) is None:
            return
        behind = self._assembler.behind
        run = window.plan.run
        sender = RowSender(self._delivery, behind.epoch, behind.commit_lsn, behind.ordinal, run)
        try:
            sender.divert(sender.send(destined, window.lines, window.keys or None))
        except SourceError as error:
            self._assembler.sent(sender.position)
            if not self._assembler.park(window.relation.oid, error):
                raise
            return
        copied = sum(map(len, window.lines))
        self._registry.note_chunk(window.chunk, run, done=True, rows=len(window.lines), copied=copied)
        self._assembler.sent(sender.position)
        self._pace.read(copied)
        read.left.remove(window.chunk)
        rate = self._asked(window.chunk.table).rate
        if rate:
            rows = sender.position.ordinal - position.ordinal
            read.ready_at = time.monotonic() + rows / rate
        self._when_copied(read)

    def _when_copied(self, read: TableRead) -> None:
        """With no chunk left: what is gone is to be deleted, or the table is done.

        A partitioned table without a partition has no chunk to begin with.
        """
        if read.plan is None or read.left or read.reconcile is not None:
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
            table = self._tables.captured(relation.oid)
            if table is not None and self._current(read.plan) is not None:
                deletes = Deletes(self._delivery.sink.outbox, table, self._tables.key_schema(table), read.run)
                self._assembler.sent(deletes.send(keys, self._assembler.behind))

    def _copied(self, read: TableRead) -> None:
        name = read.relation.qualified_name
        if self._registry.must_be_emptied(name) and read.plan is not None:
            # no chunk, so no row that would have come after the truncate
            self._tables.see(read.plan.relation, read.plan.lsn)
            self._tables.for_record(read.plan.relation.oid)
        self._done(name)
        self._registry.copied(name)
        log.info("table copied", table=name, run=read.run)

    def close(self) -> None:
        self._reader.close()
        for read in self.reads.values():
            if read.reconcile is not None:
                read.reconcile.close()
        self._assembler.on_message = None
        self._assembler.rows.on_key = None
        self._assembler.rows.on_commit = None


def _shape(relation: Relation) -> tuple[str, list[tuple[str, int, int]]]:
    columns = [(column.name, column.type_oid, column.typmod) for column in relation.columns]
    return relation.qualified_name, columns
