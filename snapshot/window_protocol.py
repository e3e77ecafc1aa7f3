"""The stream's side of windows: when one opens and closes, and whether its read saw all that the stream delivered."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import Enum
from typing import Final, Protocol

import orjson

from tailrace.schemas.relation import Relation
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.window import ChunkRead, Look, Outcome, Plan, VisibleXids, Window, WindowState
from tailrace.snapshot.window_reader import EndRequest, Inspection, LookRequest, ReadRequest

_LOOK_S: Final = 5.0
_REST: Final = 50
"""With nothing to read, the catalog is inspected every `_LOOK_S`, with at most a fiftieth of the time."""


_SNAPSHOT_S: Final = 10.0
"""Maximum wait of the stream, in seconds, for a snapshot that takes a roundtrip; without it, the window is void."""


class Step(Enum):
    """The request that the reader is processing."""

    IDLE = "idle"
    PLANNING = "planning"
    LOOKING = "looking"
    READING = "reading"  # until the window's rows have been processed


class Reader(Protocol):
    """The interface of `WindowReader`, as far as windows use it."""

    @property
    def read_only(self) -> bool:
        """Whether marks cannot be written."""

    @property
    def prefix(self) -> str:
        """The prefix of our logical messages."""

    @property
    def marks(self) -> str:
        """The id of this process's marks."""

    def request(self, wanted: Plan | ReadRequest | LookRequest | EndRequest) -> None: ...

    def reply(self, wait_s: float = 0.0) -> Plan | ChunkRead | Inspection | None: ...

    def close(self) -> None: ...


class WindowProtocol:
    """One window at a time, between the reader's thread and the stream's, which alone calls the methods.

    Memory: one chunk's rows, the keys changed in one window, and the ids of the transactions delivered since the last
    read or catalog inspection.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._step = Step.IDLE
        self._window: Window | None = None
        self._windows = 0
        self._delivered: set[int] = set()
        self._look_at = time.monotonic() + _LOOK_S

    @property
    def busy(self) -> bool:
        """Whether the reader has a request; then none may be added."""
        return self._step is not Step.IDLE

    @property
    def opened(self) -> Window | None:
        """The open window, if any."""
        return self._window if self._window is not None and self._window.state is WindowState.OPEN else None

    @property
    def waits(self) -> bool:
        """Whether a window without marks waits for the stream to pass its end."""
        window = self._window
        return window is not None and window.read is not None and window.read.until is not None

    def plan(self, relation: Relation, run: int, where: str | None = None) -> None:
        """Request the plan of a table; `poll` returns it."""
        self._step = Step.PLANNING
        self._reader.request(Plan(relation.qualified_name, run, relation, where=where))

    def take_snapshot(self, plan: Plan) -> None:
        """Request the snapshot of a table that is read whole; the window lasts until `finish`."""
        self._begin(plan, None)

    def end_snapshot(self, table: str) -> None:
        """Release the snapshot of a table, if there is one."""
        self._reader.request(EndRequest(table))

    def read(self, plan: Plan, chunk: Chunk) -> None:
        """Request a chunk of a planned table; the window lasts until `finish`."""
        self._begin(plan, chunk)

    def _begin(self, plan: Plan, chunk: Chunk | None) -> None:
        self._step = Step.READING
        self._windows += 1
        self._window = Window(plan, chunk, self._windows)
        if not self._reader.read_only:
            self._request(self._window)

    def look_if_due(self) -> None:
        """Request an inspection of the catalog; `poll` returns it.

        A table can be altered or published without a row change that would inform the stream.
        """
        if time.monotonic() >= self._look_at:
            self._step = Step.LOOKING
            self._reader.request(LookRequest())

    def poll(self) -> Plan | Look | None:
        """Take the reader's reply; return a plan or an inspection. Raises the error that has ended the reader."""
        reply = self._reader.reply()
        match reply:
            case ChunkRead():
                assert self._window is not None
                self._window.read = reply
            case Plan():
                self._rest()
                return reply
            case Inspection():
                self._rest(reply.took_s)
                if reply.seen.visible is not None:
                    self._forget(reply.seen.visible)
                return reply.look
        return None

    def mark(self, prefix: str, content: bytes) -> Window | None:
        """Process a logical message of the stream; return the window that it closes, if any."""
        if prefix != self._reader.prefix:
            return None
        marks, kind, n = orjson.loads(content)
        window = self._window
        if marks != self._reader.marks or window is None or n != window.n:
            return None
        if kind == "low":
            self._open(window)
            return None
        return self._close(window)

    def between(self, flushed_lsn: int) -> Window | None:
        """Report that the stream is between transactions and has delivered all changes before `flushed_lsn`.

        Without marks, this opens a window, or closes and returns it.
        """
        window = self._window
        if not self._reader.read_only or window is None:
            return None
        if window.state is WindowState.SCHEDULED:
            self._request(window)
            self._open(window)
            return None
        if window.read is None or window.read.until is None or flushed_lsn < window.read.until:
            return None
        return self._close(window)

    def delivered(self, xid: int) -> None:
        """Record a completely delivered transaction; changes inside a window are resolved by key."""
        window = self._window
        if window is not None and window.state is WindowState.OPEN:
            window.inside.add(xid)
        else:
            self._delivered.add(xid)

    def touch(self, table: str, key: bytes) -> None:
        """Record a key that the stream has changed."""
        window = self.opened
        if window is not None and window.plan.table == table:
            window.keys.add(key)

    def truncated(self, table: str) -> None:
        """Record that the stream has truncated the table; this voids its open window."""
        window = self.opened
        if window is not None and window.plan.table == table:
            window.truncated = True

    def is_in_snapshot(self, table: str, xid: int) -> bool:
        """Whether the rows of a transaction in the stream are in the snapshot that a table is read from.

        The caller asks until the window in which the snapshot is taken is closed; later transactions are not in it.
        """
        window = self.opened
        if window is None or window.chunk is not None or window.plan.table != table:
            return True
        visible = _visible(window.read)
        if visible is None:
            # a standby does not say which transactions a snapshot sees
            window.is_void = True
        return window.is_void or visible is None or visible.sees(xid)

    def finish(self) -> None:
        """End the window: its rows have been processed, so the next request may follow."""
        self._window = None
        self._rest()

    def close(self) -> None:
        """End the reader."""
        self._reader.close()

    def _open(self, window: Window) -> None:
        window.state = WindowState.OPEN
        if window.chunk is not None:
            return
        if window.read is None:
            reply = self._reader.reply(_SNAPSHOT_S)
            assert reply is None or isinstance(reply, ChunkRead)
            window.read = reply
        window.is_void = window.read is None or self._lacks_delivered(_visible(window.read))

    def _lacks_delivered(self, visible: VisibleXids | None) -> bool:
        """Whether a read lacks a transaction that the stream had delivered before its window."""
        return visible is not None and not all(visible.sees(xid) for xid in self._delivered)

    def _request(self, window: Window) -> None:
        window.before = frozenset(self._delivered)
        self._reader.request(ReadRequest(window.n, window.plan, window.chunk))

    def _rest(self, looked_s: float = 0.0) -> None:
        self._step = Step.IDLE
        self._look_at = time.monotonic() + max(_LOOK_S, looked_s * _REST)

    def _close(self, window: Window) -> Window:
        """Close a window; its read is void if it lacks a transaction that the stream delivered before the window."""
        if window.read is None:
            self.poll()  # the reply precedes the mark
        read = window.read
        assert read is not None
        window.state = WindowState.CLOSED
        visible = _visible(read)
        # what the snapshot of a table does not see, the stream has sent or sends
        is_copied = window.plan.whole and window.chunk is not None
        void = window.is_void or window.truncated or self._lacks_delivered(visible)
        if read.outcome is Outcome.ROWS and void and not is_copied:
            window.read = replace(read, outcome=Outcome.VOID, lines=[])
        if visible is not None:
            self._forget(visible)
        elif read.seen is not None:
            # On a standby, what was streamed before the read was visible to it, and so it is to later reads.
            self._delivered -= window.before
        # Their keys are recorded in this window, but the next one may be read before they are visible.
        self._delivered.update(window.inside if visible is None else {x for x in window.inside if not visible.sees(x)})
        return window

    def _forget(self, visible: VisibleXids) -> None:
        """Remove visible transactions: later reads see them, too."""
        self._delivered = {xid for xid in self._delivered if not visible.sees(xid)}


def _visible(read: ChunkRead | None) -> VisibleXids | None:
    return read.seen.visible if read is not None and read.seen is not None else None
