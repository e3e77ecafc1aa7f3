"""Evidence of a round, in a form that the checker judges without asking any server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.schemas.records.position import PositionRecord
from tests.support.topics import TopicRecord

Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the journal: one row change of a committed transaction; `lsn` is the WAL's end then."""

    xid: int
    lsn: int
    table: str
    op: str
    old: Key | None
    new: Key | None
    row: Row | None


@dataclass(frozen=True, slots=True)
class SlotSample:
    """`confirmed_flush_lsn`, and the end of the progress topic (committed or not), queried after it."""

    confirmed: int
    progress_end: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the checker needs of a round.

    `records` are those of each table's topic, in the order of each partition; `positions` are the progress topic's
    records with their offsets; `journal` is in the order of writing; `source` has the tables at the end, by key. Bodies
    are replaced by their MD5 everywhere.
    """

    prefix: str
    records: dict[str, list[TopicRecord]]
    positions: list[tuple[int, PositionRecord]]
    journal: list[Change]
    source: dict[str, dict[Key, Row]]
    samples: list[SlotSample]
