"""Chunks read while the stream runs, each in a window between two marks in the WAL (DBLog, arXiv:2010.12597).

For each chunk: a low mark, a read, a high mark. Keys that the stream changed between the marks give way to the stream;
the other rows are emitted where the high mark stands. WAL order is not the order in which commits become visible, so
the read also takes `pg_current_snapshot()`: had the stream delivered, before the low mark, a transaction that the
read does not see, the chunk is void and read again. So it is when the table was truncated in its window.

Where nothing can be written, a window is open from before the read until the stream has passed the end of the WAL as of
after it. On a standby nothing is streamed before it is seen: what is streamed has been replayed.

A table is first planned: how it lies and which chunks it has, under a lock that no ALTER TABLE gets past. Each chunk is
read under that lock, too, and says when the table does not lie any more as it was planned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.schemas.records.layout import Layout, RowsAtRest
from tailrace.schemas.relation import Relation
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.reader import Lines

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


@dataclass(frozen=True, slots=True)
class Found:
    """A captured table as a look at the catalog finds it."""

    schema: str
    table: str
    columns: tuple[str, ...]
    layout: Layout

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the catalog: all captured tables, with nothing that was committed at or after the LSN `until`.

    `began` is the monotonic time before it was taken.
    """

    began: float
    until: int
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A table as it lay when `run` was planned, with all that was committed before `lsn`; `layout` None: it is gone.

    `where` is what a person wants of it. `denied` are statements that would let the role read it.
    """

    table: str
    run: int
    relation: Relation
    layout: Layout | None = None
    lsn: int = 0
    chunks: tuple[Chunk, ...] = ()
    where: str | None = None
    denied: tuple[str, ...] = ()


@dataclass(slots=True)
class Window:
    """A chunk between its marks; `keys` are those that the stream touched.

    `relation` is the shape of its rows, as of `lsn`, and `layout` how the table lies then; None if it is gone. `inside`
    are the transactions that the stream delivered in it. Without a high mark, it closes when the stream has passed
    `until`. `moved`: the table does not lie as planned; `failed`: why its rows cannot be selected by what a person has
    given; `denied`: statements that would let the role read it. In these cases its read is of no use.
    """

    plan: Plan
    chunk: Chunk
    n: int
    relation: Relation
    layout: Layout | None = None
    lsn: int = 0
    lines: Lines = field(default_factory=list)
    visible: VisibleXids | None = None
    keys: set[bytes] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)
    until: int | None = None
    open: bool = False
    void: bool = False
    moved: bool = False
    failed: str = ""
    denied: tuple[str, ...] = ()


def moved(plan: Plan, relation: Relation, layout: Layout) -> bool:
    """Whether chunks do not cover the table any more, or what was read of it before reads differently now."""
    assert plan.layout is not None
    if plan.relation.oid != relation.oid:
        return True
    if layout.files != plan.layout.files:
        return True
    before = {column.name for column in plan.relation.columns}
    columns = {column.name for column in relation.columns}
    return plan.layout.rows_at_rest(layout, columns, before, before, ()) is not RowsAtRest.SAME
