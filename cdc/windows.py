"""Tables that are read while the stream goes on: a first snapshot's rest, a new table, one whose rows read differently.

In windows over the stream: what it touches goes in, the other rows come out at the high mark's commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

import psycopg
import structlog

from cdc import pgoutput
from cdc.connect import cannot_read, connect
from cdc.delivery import Delivery
from cdc.layouts import describe, survey
from cdc.progress import Progress
from cdc.shapes import Shapes
from cdc.snapshot_rows import RowSender
from cdc.tables import CapturedTable, Tables
from cdc.transaction import Assembler
from schemas.config import Config
from schemas.envelope import TRUNCATE_KEY
from schemas.lsn import PARTS_PER_CHANGE
from schemas.relation import Relation
from snapshot.plan import Chunk, plan_chunks
from snapshot.window import Plan, Window
from snapshot.window_reader import WindowReader

log = structlog.get_logger()


class Windows:
    """Joins the reader of windows to the stream. `left` are the chunks of each table that is being read."""

    def __init__(
        self,
        config: Config,
        publications: Sequence[str],
        delivery: Delivery,
        tables: Tables,
        shapes: Shapes,
        progress: Progress,
        assembler: Assembler,
    ) -> None:
        self._delivery = delivery
        self._tables = tables
        self._shapes = shapes
        self._progress = progress
        self._assembler = assembler
        self._left: dict[str, set[Chunk]] = {}
        self._closed: Window | None = None
        dsn = config.source.dsn.get_secret_value()
        self._reader = WindowReader(
            lambda: connect(dsn, application_name="tailrace window"),
            f"tailrace:{config.source.slot}",
            uuid.uuid4().hex,
            lambda connection, schema, name: describe(connection, publications, schema, name),
            lambda connection, relation: plan_chunks(connection, publications, relation, config.snapshot),
            lambda connection: survey(connection, publications),
        )
        assembler.rows.on_commit = self._commit

    def resume(self, relation: Relation, chunks: Iterable[Chunk]) -> None:
        """Go on with the chunks that are left of a table; without a layout nobody has begun to read it."""
        name = relation.qualified_name
        state = self._shapes.states[name]
        if state.layout is None:
            self._begin(relation, state.run)
            return
        plan = Plan(name, state.run, relation, state.layout, state.lsn, tuple(chunks))
        if plan.chunks:
            log.info("snapshot goes on in windows", table=name, chunks=len(plan.chunks))
        self._read(plan)

    def poll(self) -> None:
        """Take up what is wanted, what was found altered, and what has been planned. Raises what the reader met."""
        for found in self._reader.found():
            self._shapes.look(found, self._tables.columns_ever(found.schema, found.table))
        while self._shapes.wanted:
            name, relation = self._shapes.wanted.popitem()
            self._begin(relation, self._shapes.states[name].run)
        for name in self._left.keys() - self._progress.incomplete:
            self._done(name)  # it has another name by now
        try:
            plan = self._reader.planned()
        except psycopg.Error as error:
            raise cannot_read(error) from None
        if plan is not None and self._is_current(plan):
            self._planned(plan)

    def _begin(self, relation: Relation, run: int) -> None:
        self._listen(relation.qualified_name, set())
        self._reader.plan(relation, run)

    def _planned(self, plan: Plan) -> None:
        if plan.layout is None:
            self._shapes.gone(plan.table)
            self._done(plan.table)
            return
        if not self._tables.has_key(plan.relation):
            self._shapes.cannot_be_read(plan.table)
            self._done(plan.table)
            return
        self._shapes.planned(plan.relation, plan.layout, plan.lsn)
        for chunk in plan.chunks:
            self._shapes.note_chunk(chunk, plan.run, done=False)
        log.info("table is read in windows", table=plan.table, run=plan.run, chunks=len(plan.chunks))
        self._read(plan)

    def _read(self, plan: Plan) -> None:
        self._listen(plan.table, set(plan.chunks))
        for chunk in plan.chunks:
            self._reader.read(plan, chunk)
        if not plan.chunks:
            self._copied(plan)

    def _listen(self, table: str, left: set[Chunk]) -> None:
        self._left[table] = left
        self._assembler.on_message = self._message
        self._assembler.rows.on_key = self._touch

    def _done(self, table: str) -> None:
        """Nothing is left of a table; with no other left, rows need not be looked at."""
        del self._left[table]
        self._reader.drop(table)
        if not self._left:
            self._assembler.on_message = None
            self._assembler.rows.on_key = None

    def _is_current(self, plan: Plan) -> bool:
        """Whether a table is not wanted anew since."""
        return plan.table in self._left and self._shapes.states[plan.table].run == plan.run

    def _message(self, message: pgoutput.Message) -> None:
        """Take a logical message of the stream."""
        self._closed = self._reader.mark(message.prefix, message.content) or self._closed

    def _touch(self, table: CapturedTable, key: bytes) -> None:
        if key == TRUNCATE_KEY:
            self._reader.truncated(table.name)
        else:
            self._reader.touch(table.name, key)

    def _commit(self, commit_lsn: int, xid: int) -> None:
        self._reader.delivered(xid)
        window, self._closed = self._closed, None
        if window is None:
            return
        table = window.chunk.table
        if self._is_current(window.plan):
            if window.moved or self._is_outdated(window):
                log.info("table was altered while it was read", table=table)
                self._shapes.want(window.relation)
            elif window.void:
                self._reader.read(window.plan, window.chunk)
            else:
                self._emit(window, commit_lsn)
        self._reader.finish()

    def _is_outdated(self, window: Window) -> bool:
        """Whether the stream has shown another shape than the one that was read, and a later one.

        An earlier one is none: a table may be altered without a change that would bring a Relation message.
        """
        seen = self._tables.seen(window.relation.oid)
        if seen is None or _columns(seen[0]) != _columns(window.relation):
            if seen is not None and seen[1] > window.lsn:
                return True
            seen = window.relation, window.lsn
        elif len(self._left[window.chunk.table]) < len(window.plan.chunks):
            return False
        # the same one, too, for the first chunk: what becomes of the topic may depend on the publication
        self._tables.see(*seen)
        return False

    def _emit(self, window: Window, commit_lsn: int) -> None:
        """Send the rows, behind the mark itself, which is the only change of its transaction."""
        table = window.chunk.table
        oid = window.relation.oid
        # the shape may be news to the topic, and void what has been read of the table so far
        destined = self._tables[oid]
        if not self._is_current(window.plan):
            return
        sender = RowSender(self._delivery, self._progress.epoch, commit_lsn, PARTS_PER_CHANGE, window.plan.run)
        sender.divert(sender.send(destined, window.lines, window.keys))
        self._shapes.note_chunk(window.chunk, window.plan.run, done=True)
        self._assembler.sent(sender.position)
        left = self._left[table]
        left.discard(window.chunk)
        if not left:
            self._copied(window.plan)

    def _copied(self, plan: Plan) -> None:
        """Take note that no chunk is left; a partitioned table without a partition has none to begin with."""
        self._done(plan.table)
        self._progress.incomplete.discard(plan.table)
        log.info("table copied", table=plan.table, run=plan.run)

    def close(self) -> None:
        self._reader.close()
        self._assembler.on_message = None
        self._assembler.rows.on_key = None
        self._assembler.rows.on_commit = None


def _columns(relation: Relation) -> list[tuple[str, int, int]]:
    return [(column.name, column.type_oid, column.typmod) for column in relation.columns]
