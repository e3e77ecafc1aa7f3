"""Incremental snapshots: chunks are read in windows between two WAL marks (DBLog, arXiv:2010.12597).

For each chunk: a low mark, a read, a high mark. For keys that the stream changed between the marks, the stream's rows
are used; the other rows are emitted at the high mark. WAL order is not the order in which commits become visible, so
the read also gets `pg_current_snapshot()`. If the stream delivered a transaction before the low mark that the read does
not see, the chunk is void and read again. The same applies if the table was truncated in the window.

On a read-only server, a window is open from before the read until the stream has passed the end of the WAL as of after
the read. A standby streams only replayed WAL, so no change is streamed before it is visible.

A table without a key is read whole: between two marks of its own the reader takes a snapshot, from which all chunks are
then read. The stream waits at the low mark until it knows the snapshot, and drops the table's changes of transactions
that the snapshot sees, because the chunks have their rows. So each row is sent once: by a chunk or by the stream.

A table is first planned: its layout and its chunks are determined under a lock that blocks ALTER TABLE. Each chunk is
read under such a lock, too, and reports if the table's layout is no longer the planned one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tailrace.schemas.errors import TailraceError
from tailrace.schemas.records.layout import Layout, RowsAtRest
from tailrace.schemas.relation import Relation
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.reader import Lines

_XID = 2**32


@dataclass(frozen=True, slots=True)
class VisibleXids:
    """A `pg_snapshot`: transactions in progress (`xip`) or not begun (`xmax` and later) are invisible."""

    xmin: int
    xmax: int
    xip: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> VisibleXids:
        xmin, xmax, xip = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) for xid in xip.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether a committed transaction of the stream is visible; `xid` is 32-bit and near `xmin`."""
        full = self.xmax - ((self.xmax - xid) % _XID if (self.xmax - xid) % _XID < _XID // 2 else 0)
        if full == self.xmax:
            return False
        return full not in self.xip


@dataclass(frozen=True, slots=True)
class Found:
    """A captured table in the catalog."""

    schema: str
    table: str
    columns: tuple[str, ...]
    layout: Layout

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Look:
    """A catalog check: all captured tables, without any change committed at or after the LSN `until`.

    `began` is the monotonic time (s) before the check. `unpublished` are the names of tables that match the patterns
    and are in no publication, partitions and unlogged tables included.
    """

    began: float
    until: int
    found: tuple[Found, ...]
    unpublished: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Seen:
    """The transactions that a read saw; `visible` is None on a standby, where all streamed ones are visible."""

    visible: VisibleXids | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A table's plan for `run`, with all changes committed before `lsn`; `layout` None: it does not exist.

    `where` is the condition that a user has requested. `denied` are statements that would let the role read the table,
    `refused` is the error of a table that cannot be captured as it is. `whole`: its chunks are read from one snapshot.
    """

    table: str
    run: int
    relation: Relation
    layout: Layout | None = None
    lsn: int = 0
    chunks: tuple[Chunk, ...] = ()
    where: str | None = None
    denied: tuple[str, ...] = ()
    refused: TailraceError | None = None
    whole: bool = False


class Outcome(Enum):
    """The result of reading a chunk."""

    ROWS = "rows"
    VOID = "void"  # the read lacks changes that the stream has delivered: it is repeated
    MOVED = "moved"  # the table's layout is not the planned one
    FAILED = "failed"  # the user's condition has an error
    DENIED = "denied"  # the role may not read the table
    REFUSED = "refused"  # the table cannot be captured as it is


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """A chunk as the reader's thread has read it.

    `relation` is the shape of its rows and `layout` the table's layout, as of `lsn`; `layout` is None if the table does
    not exist. Without a high mark, the window closes when the stream has passed `until`. `error` is that of the user's
    condition, `denied` are statements that would let the role read the table, `refused` is the error of a table that
    cannot be captured as it is.
    """

    outcome: Outcome
    relation: Relation
    layout: Layout | None = None
    lsn: int = 0
    lines: Lines = field(default_factory=list)
    seen: Seen | None = None
    until: int | None = None
    error: str = ""
    denied: tuple[str, ...] = ()
    refused: TailraceError | None = None


class WindowState(Enum):
    """The state of a window in the stream."""

    SCHEDULED = "scheduled"  # the stream has not come to its begin
    OPEN = "open"  # keys that the stream changes are recorded
    CLOSED = "closed"  # its rows can be sent


@dataclass(slots=True)
class Window:
    """A chunk between its marks, owned by the stream's thread.

    Without a `chunk`, the snapshot of a table that is read whole is taken in it; `is_void` if it cannot be used.
    `keys` are those that the stream changed in it, `inside` the transactions that it delivered in it, and `before`
    those that it had delivered when the read was requested. `truncated`: the stream has truncated the table in it.
    """

    plan: Plan
    chunk: Chunk | None
    n: int
    before: frozenset[int] = frozenset()
    state: WindowState = WindowState.SCHEDULED
    keys: set[bytes] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    truncated: bool = False
    is_void: bool = False
    read: ChunkRead | None = None


def moved(plan: Plan, relation: Relation, layout: Layout) -> bool:
    """Whether the chunks no longer cover the table, or rows that were read before would read differently."""
    assert plan.layout is not None
    if plan.relation.oid != relation.oid:
        return True
    if layout.files != plan.layout.files:
        return True
    before = {column.name for column in plan.relation.columns}
    columns = {column.name for column in relation.columns}
    return plan.layout.rows_at_rest(layout, columns, before, before, ()) is not RowsAtRest.SAME
