"""The thread that plans and reads: under a lock that no ALTER TABLE gets past, between marks that it writes itself."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import orjson
import psycopg
from psycopg import sql

from schemas.layout import Layout
from schemas.lsn import parse_lsn
from schemas.relation import Relation
from snapshot.plan import Chunk
from snapshot.reader import read_chunk
from snapshot.window import Found, Plan, VisibleXids, Window, moved

_IDLE_S = 5.0
_REST = 50
"""With nothing to read, the catalog is looked at every `_IDLE_S`, and at most a fiftieth of the time is spent on it."""

_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn)

Describe = Callable[[psycopg.Connection, str, str], tuple[Relation, Layout] | None]
"""What is published of a table (schema, name) and how it lies; None if it is gone."""


class WindowReader:
    """Plans tables and reads one chunk after the other in a thread; its methods are called by the stream's thread.

    Memory: one chunk's rows, the keys changed in one window, and the ids of the transactions since the last read; when
    there is nothing to read, since the last `_IDLE_S`.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        prefix: str,
        marks: str,
        describe: Describe,
        plan_chunks: Callable[[psycopg.Connection, Relation], list[Chunk]],
        survey: Callable[[psycopg.Connection], list[Found]],
    ) -> None:
        """`prefix` is that of our logical messages, `marks` tells these marks from those of an earlier process."""
        self._survey = survey
        self._surveys: queue.SimpleQueue[list[Found]] = queue.SimpleQueue()
        self._connection = connect()
        self._prefix = prefix
        self._marks = marks
        self._describe = describe
        self._plan_chunks = plan_chunks
        self._tasks: queue.SimpleQueue[tuple[Plan, Chunk | None] | None] = queue.SimpleQueue()
        self._plans: queue.SimpleQueue[Plan] = queue.SimpleQueue()
        self._runs: dict[str, int] = {}
        self._window: Window | None = None
        self._read_count = 0
        self._emitted = threading.Event()
        self._delivered: set[int] = set()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="snapshot-window", daemon=True)
        self._thread.start()

    def plan(self, relation: Relation, run: int) -> None:
        """Have a table planned; whatever is left of an earlier run of it is not read any more."""
        self._runs[relation.qualified_name] = run
        self._tasks.put((Plan(relation.qualified_name, run, relation), None))

    def read(self, plan: Plan, chunk: Chunk) -> None:
        """Have a chunk of a planned table read."""
        self._runs[plan.table] = plan.run
        self._tasks.put((plan, chunk))

    def drop(self, table: str) -> None:
        """Read no more of a table."""
        self._runs.pop(table, None)

    def planned(self) -> Plan | None:
        """Return the next plan that is made, None if there is none yet. Raises what the reading thread met."""
        if self._error:
            raise self._error
        try:
            return self._plans.get_nowait()
        except queue.Empty:
            return None

    def found(self) -> list[Found]:
        """Return what the last look at the catalog has found: one is taken now and then while there is nothing to read.

        A table can be altered, or published, without a change of a row that would tell the stream.
        """
        try:
            return self._surveys.get_nowait()
        except queue.Empty:
            return []

    def mark(self, prefix: str, content: bytes) -> Window | None:
        """Take a logical message of the stream; return the window that it closes."""
        if prefix != self._prefix:
            return None
        marks, kind, n = orjson.loads(content)
        window = self._window
        if marks != self._marks or window is None or n != window.n:
            return None
        if kind == "low":
            window.open = True
            return None
        window.open = False
        visible = window.visible
        if visible is None:
            return window
        window.void = window.void or not all(visible.sees(xid) for xid in self._delivered)
        self._forget(visible)
        return window

    def delivered(self, xid: int) -> None:
        """Note a transaction that the stream has delivered whole; those inside a window are sorted out by key."""
        window = self._window
        if window is not None and (window.open or (window.visible and window.visible.sees(xid))):
            return
        self._delivered.add(xid)

    def touch(self, table: str, key: bytes) -> None:
        """Note a key that the stream has changed."""
        window = self._window
        if window is not None and window.open and window.chunk.table == table:
            window.keys.add(key)

    def truncated(self, table: str) -> None:
        """Note that the stream has emptied the table."""
        window = self._window
        if window is not None and window.open and window.chunk.table == table:
            window.void = True

    def finish(self) -> None:
        """Go on: what the window has brought has been dealt with."""
        self._window = None
        self._emitted.set()

    def close(self) -> None:
        self._tasks.put(None)
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
                    self._forget(self._visible_now())
                    self._surveys.put(self._survey(self._connection))
                    idle_s = max(_IDLE_S, (time.monotonic() - began) * _REST)
                    continue
                if task is None:
                    return
                plan, chunk = task
                if self._runs.get(plan.table) != plan.run:
                    continue
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
                chunks = tuple(self._plan_chunks(self._connection, relation))
        except _GONE:
            return wanted
        return Plan(wanted.table, wanted.run, relation, layout, lsn, chunks)

    def _locked(self, relation: Relation) -> tuple[int, tuple[Relation, Layout] | None]:
        """Lock a table against being altered; return an LSN before which all alterations are seen, and what it is.

        The lock comes before the snapshot: who altered the table has let go of it, so that is seen.
        """
        self._connection.execute(
            sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(relation.schema, relation.name))
        )
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0]), self._describe(self._connection, relation.schema, relation.name)

    def _read(self, plan: Plan, chunk: Chunk) -> None:
        self._read_count += 1
        window = self._window = Window(plan, chunk, self._read_count, plan.relation)
        self._emit("low", window)
        try:
            with self._connection.transaction():
                self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                window.lsn, found = self._locked(plan.relation)
                window.visible = self._visible_now()
                if found is None or moved(plan, *found):
                    window.moved = True
                else:
                    window.relation = found[0]
                    for lines in read_chunk(self._connection, chunk, window.relation):
                        window.lines += lines
        except _GONE:
            window.moved = True
        self._emit("high", window)

    def _visible_now(self) -> VisibleXids:
        row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        return VisibleXids.parse(row[0])

    def _forget(self, visible: VisibleXids) -> None:
        """What was seen once is seen by every later read. In place, for both threads use the set."""
        self._delivered.difference_update({xid for xid in self._delivered.copy() if visible.sees(xid)})

    def _emit(self, kind: str, window: Window) -> None:
        content = orjson.dumps([self._marks, kind, window.n])
        self._connection.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (self._prefix, content))
