"""Chunks read while the stream runs, each in a window between two marks in the WAL (DBLog, arXiv:2010.12597).

For each chunk: a low mark, a read, a high mark. Keys that the stream changed between the marks give way to the stream;
the other rows are emitted where the high mark stands. WAL order is not the order in which commits become visible, so
the read also takes `pg_current_snapshot()`: had the stream delivered, before the low mark, a transaction that the
read does not see, the chunk is void and read again. So it is when the table was truncated in its window.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import orjson
import psycopg

from schemas.relation import Relation
from snapshot.plan import Chunk
from snapshot.reader import Lines, read_lines

_XID = 2**32


@dataclass(frozen=True, slots=True)
class VisibleXids:
    """A `pg_snapshot`: what was in progress (`xip`) or not begun (from `xmax` on) is not seen."""

    xmin: int
    xmax: int
    xip: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> VisibleXids:
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in xip.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether a transaction of the stream, committed and with a 32-bit id near `xmin`, is seen."""
        full = self.xmax - ((self.xmax - xid) % _XID if (self.xmax - xid) % _XID < _XID // 2 else 0)
        if full == self.xmax:
            return False
        return full not in self.xip


@dataclass(slots=True)
class Window:
    """A chunk between its marks; `keys` are those that the stream touched."""

    chunk: Chunk
    n: int
    lines: Lines = field(default_factory=list)
    visible: VisibleXids | None = None
    keys: set[bytes] = field(default_factory=set)
    open: bool = False
    void: bool = False


class WindowReader:
    """Reads one chunk after the other in a thread; the stream's thread calls `mark`, `touch` and `finish`.

    Memory: one chunk's rows, the keys changed in one window, and the ids of the transactions since the last read.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        prefix: str,
        run: str,
        relations: Mapping[str, Relation],
        chunks: Sequence[Chunk],
    ) -> None:
        """`prefix` is that of our logical messages, `run` tells these marks from an earlier run's."""
        self._connection = connect()
        self._prefix = prefix
        self._run = run
        self._relations = relations
        self._todo: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        for chunk in chunks:
            self._todo.put(chunk)
        self._left = len(chunks)
        self._window: Window | None = None
        self._read_count = 0
        self._emitted = threading.Event()
        self._delivered: set[int] = set()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="snapshot-window", daemon=True)
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether every chunk has been emitted. Raises what the reading thread met."""
        if self._error:
            raise self._error
        return self._left == 0

    def mark(self, prefix: str, content: bytes) -> Window | None:
        """Take a logical message of the stream; return the window that it closes."""
        if prefix != self._prefix:
            return None
        run, kind, n = orjson.loads(content)
        window = self._window
        if run != self._run or window is None or n != window.n:
            return None
        if kind == "low":
            window.open = True
            return None
        window.open = False
        assert window.visible is not None
        visible = window.visible
        window.void = window.void or not all(visible.sees(xid) for xid in self._delivered)
        self._delivered = {xid for xid in self._delivered if not visible.sees(xid)}
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

    def finish(self, window: Window) -> None:
        """Go on: the window's rows have been sent, or it is void and its chunk is read again."""
        if window.void:
            self._todo.put(window.chunk)
        else:
            self._left -= 1
        self._emitted.set()

    def close(self) -> None:
        self._todo.put(None)
        self._emitted.set()
        self._connection.close()

    def _work(self) -> None:
        try:
            while self._left and (chunk := self._todo.get()) is not None:
                self._read(chunk)
                self._emitted.wait()
                self._emitted.clear()
        except Exception as error:
            self._error = error

    def _read(self, chunk: Chunk) -> None:
        self._read_count += 1
        window = self._window = Window(chunk, self._read_count)
        self._emit("low", window)
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
            assert row is not None
            window.visible = VisibleXids.parse(row[0])
            for lines in read_lines(self._connection, chunk, self._relations[chunk.table]):
                window.lines += lines
        self._emit("high", window)

    def _emit(self, kind: str, window: Window) -> None:
        content = orjson.dumps([self._run, kind, window.n])
        self._connection.execute("SELECT pg_logical_emit_message(true, %s, %s::bytea)", (self._prefix, content))
