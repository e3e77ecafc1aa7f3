"""Decode pgoutput messages other than rows: bytes in, values out; no I/O, no state.

Field names are the manual's: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html.
Insert, Update and Delete stay bytes; `schemas.encode.encoder` reads them in one pass, `row_message` finds their tuple.
`pos` is the offset of the body: after the type, and in a streamed block after an xid (`cdc.wal.pgoutput_stream`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tailrace.cdc.wal.reader import Reader
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column

POSTGRES_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970-01-01 to 2000-01-01, PostgreSQL's epoch."""

BEGIN, COMMIT, RELATION, TYPE, ORIGIN, TRUNCATE, MESSAGE = b"BCRYOTM"
INSERT, UPDATE, DELETE = b"IUD"


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a transaction.

    `final_lsn` is the LSN of its commit record, `commit_us` is in microseconds since 1970.
    """

    final_lsn: int
    commit_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """End of a transaction; `end_lsn` is the LSN after it, to be confirmed once the changes are safe."""

    commit_lsn: int
    end_lsn: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class Type:
    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """A logical message from `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">QQq")
_RELATION_TAIL = struct.Struct(">BH")
_COLUMN_HEAD = struct.Struct(">B")
_COLUMN_TAIL = struct.Struct(">Ii")
_OID = struct.Struct(">I")
_TRUNCATE = struct.Struct(">IB")
_MESSAGE = struct.Struct(">BQ")
_ORIGIN = struct.Struct(">Q")


def begin(message: bytes) -> Begin:
    reader = Reader(message, "Begin")
    final_lsn, commit_us, xid = reader.fields(_BEGIN)
    reader.end()
    return Begin(final_lsn, commit_us + POSTGRES_EPOCH_US, xid)


def commit(message: bytes) -> Commit:
    reader = Reader(message, "Commit")
    reader.no_flags()
    commit_lsn, end_lsn, commit_us = reader.fields(_COMMIT)
    reader.end()
    return Commit(commit_lsn, end_lsn, commit_us + POSTGRES_EPOCH_US)


def relation(message: bytes, pos: int = 1) -> Relation:
    """Decode a Relation message. An empty namespace means pg_catalog."""
    reader = Reader(message, "Relation", pos)
    (oid,) = reader.fields(_OID)
    schema, name = reader.string() or "pg_catalog", reader.string()
    identity, count = reader.fields(_RELATION_TAIL)
    try:
        replica_identity = ReplicaIdentity(chr(identity))
    except ValueError:
        raise DecodeError("Relation's replica identity", reader.pos - _RELATION_TAIL.size, 1, 0) from None
    columns = []
    for _ in range(count):
        (flags,) = reader.fields(_COLUMN_HEAD)
        column_name = reader.string()
        type_oid, typmod = reader.fields(_COLUMN_TAIL)
        columns.append(Column(column_name, type_oid, typmod, bool(flags & 1)))
    reader.end()
    return Relation(oid, schema, name, replica_identity, tuple(columns))


def type_(message: bytes, pos: int = 1) -> Type:
    reader = Reader(message, "Type", pos)
    (oid,) = reader.fields(_OID)
    made = Type(oid, reader.string() or "pg_catalog", reader.string())
    reader.end()
    return made


def origin(message: bytes) -> Origin:
    reader = Reader(message, "Origin")
    (commit_lsn,) = reader.fields(_ORIGIN)
    made = Origin(commit_lsn, reader.string())
    reader.end()
    return made


def truncate(message: bytes, pos: int = 1) -> Truncate:
    reader = Reader(message, "Truncate", pos)
    count, options = reader.fields(_TRUNCATE)
    oids = tuple(reader.fields(_OID)[0] for _ in range(count))
    reader.end()
    return Truncate(oids, bool(options & 1), bool(options & 2))


def message_(message: bytes, pos: int = 1) -> Message:
    reader = Reader(message, "Message", pos)
    flags, lsn = reader.fields(_MESSAGE)
    prefix = reader.string()
    (size,) = reader.fields(_OID)
    content = reader.take(size)
    reader.end()
    return Message(bool(flags & 1), lsn, prefix, content)


def row_message(message: bytes, pos: int = 1) -> tuple[int, int]:
    """Return the relation's oid and the offset of the first tuple's mark of an Insert, Update or Delete."""
    end = pos + 4
    if len(message) <= end:
        raise DecodeError("row message", pos, 5, max(len(message) - pos, 0))
    return int.from_bytes(message[pos:end], "big"), end
