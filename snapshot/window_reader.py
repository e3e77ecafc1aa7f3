"""Thread that plans tables and reads chunks, under a lock against ALTER TABLE, between its own marks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, LiteralString

import orjson
import psycopg
from psycopg import sql

from tailrace.schemas.lsn import WAL_END, parse_lsn
from tailrace.schemas.records.layout import Layout
from tailrace.schemas.relation import Relation
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.reader import read_chunk
from tailrace.snapshot.window import Look, Plan, VisibleXids, Window, moved

_IDLE_S = 5.0
_REST = 50
"""With nothing to read, the catalog is checked every `_IDLE_S`, with at most a fiftieth of the time."""

_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn)

_NOT_SELECTABLE = (psycopg.errors.DataError, psycopg.errors.ProgrammingError)
"""Errors that a user's condition may cause."""

Describe = Callable[[psycopg.Connection, str, str], tuple[Relation, Layout] | None]
"""Returns the published columns and the layout of a table (schema, name); None if it does not exist."""


class WindowReader:
    """Plans a table or reads a chunk, one at a time, in a thread; the stream's thread calls the methods.

    Memory: one chunk's rows, the keys changed in one window, and the ids of the transactions since the last read or,
    with nothing to read, since the last catalog check.
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
        self._lacking_grants = lacking_grants
        self._survey = survey
        self._surveys: queue.SimpleQueue[Look] = queue.SimpleQueue()
        self._connection = connect()
        (self._read_only,) = self._ask("pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'")
        self._prefix = prefix
        self._marks = marks
        self._describe = describe
        self._plan_chunks = plan_chunks
        self._tasks: queue.SimpleQueue[tuple[Plan, Chunk | None] | None] = queue.SimpleQueue()
        self._plans: queue.SimpleQueue[Plan] = queue.SimpleQueue()
        self._window: Window | None = None
        self._read_count = 0
        self._opened = threading.Event()
        self._emitted = threading.Event()
        self._delivered: set[int] = set()
        self._error: Exception | None = None
        self.busy = False
        self._thread = threading.Thread(target=self._work, name="snapshot-window", daemon=True)
        self._thread.start()

    def plan(self, relation: Relation, run: int, where: str | None = None) -> None:
        """Schedule the planning of a table; `busy` until `planned` has returned the plan."""
        self.busy = True
        self._tasks.put((Plan(relation.qualified_name, run, relation, where=where), None))

    def read(self, plan: Plan, chunk: Chunk) -> None:
        """Schedule the read of a chunk of a planned table; `busy` until `finish`."""
        self.busy = True
        self._tasks.put((plan, chunk))

    def planned(self) -> Plan | None:
        """Return the finished plan, None if there is none yet. Raises the reading thread's error, if any."""
        if self._error:
            raise self._error
        try:
            plan = self._plans.get_nowait()
        except queue.Empty:
            return None
        self.busy = False
        return plan

    def looked(self) -> Look | None:
        """Return each periodic catalog check once, else None; checks run while there is nothing to read.

        A table can be altered or published without a row change that would inform the stream.
        """
        try:
            return self._surveys.get_nowait()
        except queue.Empty:
            return None

    def mark(self, prefix: str, content: bytes) -> Window | None:
        """Process a logical message of the stream; return the window that it closes, if any."""
        if prefix != self._prefix:
            return None
        marks, kind, n = orjson.loads(content)
        window = self._window
        if marks != self._marks or window is None or n != window.n:
            return None
        if kind == "low":
            window.open = True
            return None
        return self._closed(window)

    @property
    def opened(self) -> Window | None:
        """The open window, if any."""
        return self._window if self._window is not None and self._window.open else None

    @property
    def waits(self) -> bool:
        """Whether a window without marks waits for the stream to pass `until`."""
        return self._window is not None and self._window.until is not None

    def between(self, flushed_lsn: int) -> Window | None:
        """Report that the stream is between transactions and has delivered all changes before `flushed_lsn`.

        Without marks, this opens a window, or closes and returns it.
        """
        window = self._window
        if not self._read_only or window is None:
            return None
        if not self._opened.is_set():
            window.open = True
            self._opened.set()
        if window.until is None or flushed_lsn < window.until:
            return None
        return self._closed(window)

    def _closed(self, window: Window) -> Window:
        window.open = False
        visible = window.visible
        if visible is not None:
            window.void = window.void or not self._sees_all(visible)
            self._forget(visible)
        # their keys are recorded in this window, but the next one may be read before they are visible
        self._delivered.update(window.inside if visible is None else {x for x in window.inside if not visible.sees(x)})
        return window

    def _sees_all(self, visible: VisibleXids) -> bool:
        return all(visible.sees(xid) for xid in self._delivered.copy())

    def delivered(self, xid: int) -> None:
        """Record a completely delivered transaction; changes inside a window are resolved by key."""
        window = self._window
        if window is not None and window.open:
            window.inside.add(xid)
        elif window is None or window.visible is None or not window.visible.sees(xid):
            self._delivered.add(xid)

    def touch(self, table: str, key: bytes) -> None:
        """Record a key that the stream has changed."""
        window = self._window
        if window is not None and window.open and window.chunk.table == table:
            window.keys.add(key)

    def truncated(self, table: str) -> None:
        """Record that the stream has truncated the table; this voids its open window."""
        window = self._window
        if window is not None and window.open and window.chunk.table == table:
            window.void = True

    def finish(self) -> None:
        """End the window: its rows have been processed, so the next task may start."""
        self._window = None
        self.busy = False
        self._emitted.set()

    def close(self) -> None:
        self._tasks.put(None)
        self._opened.set()
        self._emitted.set()
        self._connection.close()

    def _work(self) -> None:
        idle_s = _IDLE_S
        try:
            while True:
                try:
                    task = self._tasks.get(timeout=idle_s)
                except queue.Empty:
                    began = time.monotonic()
                    if (visible := self._visible_now()) is not None:
                        self._forget(visible)
                    self._surveys.put(self._survey(self._connection))
                    idle_s = max(_IDLE_S, (time.monotonic() - began) * _REST)
                    continue
                if task is None:
                    return
                plan, chunk = task
                if chunk is None:
                    self._plans.put(self._plan(plan))
                else:
                    self._read(plan, chunk)
                    self._emitted.wait()
                    self._emitted.clear()
        except Exception as error:
            self._error = error

    def _plan(self, wanted: Plan) -> Plan:
        try:
            with self._connection.transaction():
                lsn, found = self._locked(wanted.relation)
                if found is None:
                    return wanted
                relation, layout = found
                chunks = tuple(self._plan_chunks(self._connection, relation, wanted.where))
        except _GONE:
            return wanted
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

    def _read(self, plan: Plan, chunk: Chunk) -> None:
        self._read_count += 1
        window = Window(plan, chunk, self._read_count, plan.relation)
        self._opened.clear()
        self._window = window
        if self._read_only:
            self._opened.wait()
        else:
            self.emit("low", window)
        try:
            with self._connection.transaction():
                self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                self.read_rows(window)
        except _GONE:
            window.moved = True
        except psycopg.errors.SerializationFailure:
            window.void = True  # a standby cancels queries that delay replay for too long
        except _NOT_SELECTABLE as error:
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                window.denied = self._lacking_grants(self._connection, plan.relation)
            if not window.denied and plan.where is None:
                raise
            window.failed = " ".join(str(error.diag.message_primary or error).split())
        if self._read_only:
            window.until = self.wal_end()
        else:
            self.emit("high", window)

    def read_rows(self, window: Window) -> None:
        """Read the window's chunk; set `moved` if the table has changed, `void` if not all rows are visible."""
        plan = window.plan
        window.lsn, found = self._locked(plan.relation)
        window.visible = self._visible_now()
        if found is not None:
            window.layout = found[1]
        if found is None or moved(plan, *found):
            window.moved = True
        elif window.visible is not None and not self._sees_all(window.visible):
            window.void = True
        else:
            window.relation = found[0]
            for lines in read_chunk(self._connection, window.chunk, window.relation):
                window.lines += lines

    def _ask(self, what: LiteralString) -> Any:
        row = self._connection.execute(f"SELECT {what}").fetchone()
        assert row is not None
        return row

    def wal_end(self) -> int:
        """Return the present end of the WAL."""
        return parse_lsn(self._ask(WAL_END)[0])

    def _visible_now(self) -> VisibleXids | None:
        """Return the visible transactions; None on a standby, where all streamed ones are visible."""
        streamed = self._delivered.copy()
        standby, visible = self._ask("pg_is_in_recovery(), pg_current_snapshot()::text")
        if standby:
            self._delivered.difference_update(streamed)
        return None if standby else VisibleXids.parse(visible)

    def _forget(self, visible: VisibleXids) -> None:
        """Remove visible transactions: later reads see them, too. In place, because both threads use the set."""
        self._delivered.difference_update({xid for xid in self._delivered.copy() if visible.sees(xid)})

    def emit(self, kind: str, window: Window) -> None:
        """Write a mark of the window into the WAL; `kind` is "low" or "high"."""
        content = orjson.dumps([self._marks, kind, window.n])
        self._connection.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (self._prefix, content))
