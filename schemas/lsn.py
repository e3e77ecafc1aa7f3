"""WAL addresses, and the identity and order of every record: `Position`."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final, NewType, Self

Lsn = NewType("Lsn", int)
"""A byte address in the WAL, 64 bits; PostgreSQL prints it as two hex numbers, ``0/16B3748``."""

# int() alone would also accept signs, spaces, underscores and digits of other scripts
_LSN: Final = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


def parse_lsn(text: str) -> Lsn:
    """Parse PostgreSQL's form ``XXXXXXXX/XXXXXXXX``; ValueError for anything else."""
    if _LSN.fullmatch(text) is None:
        raise ValueError(f"not an LSN: {text!r}")
    high, _, low = text.partition("/")
    return Lsn(int(high, 16) << 32 | int(low, 16))


def format_lsn(lsn: int) -> str:
    """Return an LSN as PostgreSQL prints it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


WAL_END: Final = (
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text"
)
"""SQL expression of an LSN: everything that an earlier query has seen was committed before it."""

_POSITION = struct.Struct(">IQQ")

PARTS_PER_CHANGE = 4
"""A change may become several records: an insert 1, a delete 2 (event, tombstone), a changed key 3."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The place of a record: epoch, commit LSN of its transaction, 4 × index of its change + part.

    It never uses a change's own LSN, because several changes may share one, and resuming by it loses data.
    """

    epoch: int
    commit_lsn: int
    ordinal: int

    def to_bytes(self) -> bytes:
        """Return 20 bytes, big-endian, so that byte order is position order."""
        return _POSITION.pack(self.epoch, self.commit_lsn, self.ordinal)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        return cls(*_POSITION.unpack(raw))

    def __str__(self) -> str:
        return f"{self.epoch}:{format_lsn(self.commit_lsn)}:{self.ordinal}"
