"""Thread that plans tables, reads chunks between its own marks, and inspects the catalog, on request."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString

import orjson
import psycopg
from psycopg import sql

from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import WAL_END, parse_lsn
from tailrace.schemas.records.layout import Layout
from tailrace.schemas.relation import Relation
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.reader import LOCK_BRIEFLY, Lines, read_chunk
from tailrace.snapshot.window import ChunkRead, Look, Outcome, Plan, Seen, VisibleXids, moved

_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn)

_NOT_SELECTABLE = (psycopg.errors.DataError, psycopg.errors.ProgrammingError)
"""Errors that a user's condition may cause."""

_IDLE_S: Final = 0.05
"""An idle thread ends within this time."""

_CLOSE_S: Final = 3.0
_CANCEL_S: Final = 1.0
_AGAIN_S: Final = 0.1
"""Pause between two cancellations: one that comes between two queries has no effect."""

Describe = Callable[[psycopg.Connection, str, str], tuple[Relation, Layout] | None]
"""Returns the published columns and the layout of a table (schema, name); None if it does not exist."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Request to read a chunk of a planned table in the window number `n`; without a chunk, to take its snapshot."""

    n: int
    plan: Plan
    chunk: Chunk | None


@dataclass(frozen=True, slots=True)
class EndRequest:
    """Request to release the snapshot of a table, if there is one; it has no reply."""

    table: str


@dataclass(frozen=True, slots=True)
class LookRequest:
    """Request to inspect the catalog."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """The catalog (None if a table is locked), the transactions seen just before, and the duration in seconds."""

    look: Look | None
    seen: Seen
    took_s: float


class WindowReader:
    """A thread that processes one request at a time: plan a table, read a chunk, inspect the catalog.

    It shares no state with its caller: requests and replies are immutable values in queues. Memory: one chunk's rows.
    Each table that is read whole has a connection that holds its snapshot.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        prefix: str,
        marks: str,
        describe: Describe,
        plan_chunks: Callable[[psycopg.Connection, Relation, str | None], list[Chunk]],
        survey: Callable[[psycopg.Connection], Look],
        lacking_grants: Callable[[psycopg.Connection, Relation], tuple[str, ...]],
    ) -> None:
        """Start the thread. `prefix` is that of our logical messages, `marks` identifies this process's marks.

        `lacking_grants` returns the statements without which the role may not read a table.
        """
        self.prefix = prefix
        self.marks = marks
        self._lacking_grants = lacking_grants
        self._survey = survey
        self._describe = describe
        self._plan_chunks = plan_chunks
        self._connect = connect
        self._connection = connect()
        self._snapshots: dict[str, psycopg.Connection] = {}
        (self.read_only,) = self._ask("pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'")
        """Whether marks cannot be written."""
        self._requests: queue.SimpleQueue[Plan | ReadRequest | LookRequest | EndRequest | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Plan | ChunkRead | Inspection | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="snapshot-window", daemon=True)
        self._thread.start()

    def request(self, wanted: Plan | ReadRequest | LookRequest | EndRequest) -> None:
        """Schedule a request; a plan without a layout is one to be made."""
        self._requests.put(wanted)

    def reply(self, wait_s: float = 0.0) -> Plan | ChunkRead | Inspection | None:
        """Return the next reply, None if there is none within `wait_s`. Raises the error that has ended the thread.

        A chunk's reply precedes its high mark in the WAL.
        """
        try:
            found = self._replies.get(timeout=wait_s) if wait_s else self._replies.get_nowait()
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End the thread, also in the middle of a query.

        It closes its connections itself: libpq must not close one that another thread uses. If the server does not
        answer a cancellation either, both stay until it answers or the process ends.
        """
        self._requests.put(None)
        self._thread.join(_IDLE_S)
        until = time.monotonic() + _CLOSE_S
        while self._thread.is_alive() and time.monotonic() < until:
            for connection in (self._connection, *list(self._snapshots.values())):
                with suppress(psycopg.Error):
                    connection.cancel_safe(timeout=_CANCEL_S)
            self._thread.join(_AGAIN_S)

    def _work(self) -> None:
        try:
            self._answer()
        finally:
            for connection in (self._connection, *self._snapshots.values()):
                connection.close()

    def _answer(self) -> None:
        try:
            while (wanted := self._requests.get()) is not None:
                match wanted:
                    case Plan():
                        self._replies.put(self._plan(wanted))
                    case ReadRequest():
                        self._read(wanted)
                    case EndRequest():
                        self._end_snapshot(wanted.table)
                    case LookRequest():
                        began = time.monotonic()
                        seen = self._seen_now()  # first: what it sees, all later reads see
                        look = self._look()
                        self._replies.put(Inspection(look, seen, time.monotonic() - began))
        except Exception as error:
            self._replies.put(error)

    def _look(self) -> Look | None:
        try:
            with self._connection.transaction():
                self._connection.execute(LOCK_BRIEFLY)
                return self._survey(self._connection)
        except psycopg.errors.LockNotAvailable:
            return None

    def _plan(self, wanted: Plan) -> Plan:
        try:
            with self._connection.transaction():
                self._connection.execute(LOCK_BRIEFLY)
                lsn, found = self._locked(wanted.relation)
                if found is None:
                    return wanted
                relation, layout = found
                chunks = tuple(self._plan_chunks(self._connection, relation, wanted.where))
        except (*_GONE, psycopg.errors.LockNotAvailable):
            return wanted
        except TailraceError as error:
            return replace(wanted, refused=error)
        except psycopg.errors.InsufficientPrivilege:
            if not (denied := self._lacking_grants(self._connection, wanted.relation)):
                raise
            return replace(wanted, denied=denied)
        return replace(wanted, relation=relation, layout=layout, lsn=lsn, chunks=chunks)

    def _locked(self, relation: Relation) -> tuple[int, tuple[Relation, Layout] | None]:
        """Lock a table against ALTER TABLE; return an LSN and the table's description, None if missing.

        All alterations before that LSN are visible: the lock precedes the snapshot, and a session that alters the table
        releases its own lock only at its end.
        """
        self._connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(relation.schema, relation.name))
        )
        return self.wal_end(), self._describe(self._connection, relation.schema, relation.name)

    def _read(self, wanted: ReadRequest) -> None:
        if wanted.chunk is None:
            self._end_snapshot(wanted.plan.table)
            self._snapshots[wanted.plan.table] = self._connect()  # before the mark, at which the stream waits
        if not self.read_only:
            self.emit("low", wanted.n)
        found = self.read_rows(wanted) if wanted.chunk is not None else self._take_snapshot(wanted.plan)
        if self.read_only:
            self._replies.put(replace(found, until=self.wal_end()))
        else:
            self._replies.put(found)
            self.emit("high", wanted.n)

    def _take_snapshot(self, plan: Plan) -> ChunkRead:
        connection = self._snapshots[plan.table]
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        return ChunkRead(Outcome.ROWS, plan.relation, plan.layout, plan.lsn, seen=_seen(connection))

    def _end_snapshot(self, table: str) -> None:
        if (connection := self._snapshots.pop(table, None)) is not None:
            connection.close()

    @contextmanager
    def _source(self, plan: Plan) -> Iterator[psycopg.Connection]:
        """Yield the connection to read a chunk from, inside a transaction; it leaves no lock on the table."""
        if not plan.whole:
            yield self._connection
            return
        connection = self._snapshots[plan.table]
        with connection.transaction(force_rollback=True):
            # a session that waits to alter the table waits for our other lock
            connection.execute(LOCK_BRIEFLY)
            yield connection

    def read_rows(self, wanted: ReadRequest) -> ChunkRead:
        """Read a chunk under a lock against ALTER TABLE."""
        plan = wanted.plan
        assert wanted.chunk is not None
        try:
            with self._connection.transaction():
                self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                self._connection.execute(LOCK_BRIEFLY)
                lsn, found = self._locked(plan.relation)
                seen = self._seen_now()
                if found is None:
                    return ChunkRead(Outcome.MOVED, plan.relation, lsn=lsn, seen=seen)
                relation, layout = found
                if moved(plan, relation, layout):
                    return ChunkRead(Outcome.MOVED, plan.relation, layout, lsn, seen=seen)
                lines: Lines = []
                with self._source(plan) as source:
                    for some in read_chunk(source, wanted.chunk, relation):
                        lines += some
                return ChunkRead(Outcome.ROWS, relation, layout, lsn, lines, seen)
        except _GONE:
            return ChunkRead(Outcome.MOVED, plan.relation)
        except TailraceError as error:
            return ChunkRead(Outcome.REFUSED, plan.relation, refused=error)
        except (psycopg.errors.SerializationFailure, psycopg.errors.LockNotAvailable):
            # A standby cancels queries that delay replay for too long.
            return ChunkRead(Outcome.VOID, plan.relation)
        except _NOT_SELECTABLE as error:
            denied: tuple[str, ...] = ()
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                denied = self._lacking_grants(self._connection, plan.relation)
            if denied:
                return ChunkRead(Outcome.DENIED, plan.relation, denied=denied)
            if plan.where is None:
                raise
            message = " ".join(str(error.diag.message_primary or error).split())
            return ChunkRead(Outcome.FAILED, plan.relation, error=message)

    def _ask(self, what: LiteralString) -> Any:
        row = self._connection.execute(f"SELECT {what}").fetchone()
        assert row is not None
        return row

    def wal_end(self) -> int:
        """Return the present end of the WAL."""
        return parse_lsn(self._ask(WAL_END)[0])

    def _seen_now(self) -> Seen:
        return _seen(self._connection)

    def emit(self, kind: str, n: int) -> None:
        """Write a mark of the window number `n` into the WAL; `kind` is "low" or "high"."""
        content = orjson.dumps([self.marks, kind, n])
        self._connection.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (self.prefix, content))


def _seen(connection: psycopg.Connection) -> Seen:
    row = connection.execute("SELECT pg_is_in_recovery(), pg_current_snapshot()::text").fetchone()
    assert row is not None
    standby, visible = row
    return Seen(None if standby else VisibleXids.parse(visible))
