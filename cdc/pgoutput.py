"""Messages of pgoutput that are not rows: bytes in, values out; no I/O, no state.

Field names are the manual's: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html.
Insert, Update and Delete stay bytes and are read by `schemas.encoder` in one pass; `row_message` finds their tuple.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from schemas.errors import DecodeError
from schemas.relation import Column, Relation, ReplicaIdentity

POSTGRES_EPOCH_US = 946_684_800_000_000
"""Microseconds from 1970-01-01 to 2000-01-01, from which PostgreSQL counts."""

BEGIN, COMMIT, RELATION, TYPE, ORIGIN, TRUNCATE, MESSAGE = b"BCRYOTM"
INSERT, UPDATE, DELETE = b"IUD"


@dataclass(frozen=True, slots=True)
class Begin:
    """`final_lsn` is where the commit record starts; `commit_us` counts from 1970."""

    final_lsn: int
    commit_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn` is the first byte behind the transaction: what may be confirmed once it is safe."""

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
    """From `pg_logical_emit_message`."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class _Reader:
    """A cursor over one message; every read checks the end."""

    def __init__(self, message: bytes, what: str) -> None:
        self._message = message
        self._what = what
        self._pos = 1

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        self._need(layout.size)
        values = layout.unpack_from(self._message, self._pos)
        self._pos += layout.size
        return values

    def string(self) -> str:
        end = self._message.find(b"\0", self._pos)
        if end < 0:
            raise DecodeError(f"{self._what}'s string", self._pos, 1, 0)
        raw = self._message[self._pos : end]
        self._pos = end + 1
        return raw.decode()

    def take(self, size: int) -> bytes:
        self._need(size)
        raw = self._message[self._pos : self._pos + size]
        self._pos += size
        return raw

    def _need(self, size: int) -> None:
        have = len(self._message) - self._pos
        if have < size:
            raise DecodeError(self._what, self._pos, size, have)


_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">BQQq")
_RELATION_TAIL = struct.Struct(">cH")
_COLUMN_HEAD = struct.Struct(">B")
_COLUMN_TAIL = struct.Struct(">Ii")
_OID = struct.Struct(">I")
_TRUNCATE = struct.Struct(">IB")
_MESSAGE = struct.Struct(">BQ")
_ORIGIN = struct.Struct(">Q")


def begin(message: bytes) -> Begin:
    final_lsn, commit_us, xid = _Reader(message, "Begin").fields(_BEGIN)
    return Begin(final_lsn, commit_us + POSTGRES_EPOCH_US, xid)


def commit(message: bytes) -> Commit:
    _flags, commit_lsn, end_lsn, commit_us = _Reader(message, "Commit").fields(_COMMIT)
    return Commit(commit_lsn, end_lsn, commit_us + POSTGRES_EPOCH_US)


def relation(message: bytes) -> Relation:
    """An empty namespace means pg_catalog."""
    reader = _Reader(message, "Relation")
    (oid,) = reader.fields(_OID)
    schema, name = reader.string() or "pg_catalog", reader.string()
    identity, count = reader.fields(_RELATION_TAIL)
    columns = []
    for _ in range(count):
        (flags,) = reader.fields(_COLUMN_HEAD)
        column_name = reader.string()
        type_oid, typmod = reader.fields(_COLUMN_TAIL)
        columns.append(Column(column_name, type_oid, typmod, bool(flags & 1)))
    return Relation(oid, schema, name, ReplicaIdentity(identity.decode()), tuple(columns))  # type: ignore[attr-defined]


def type_(message: bytes) -> Type:
    reader = _Reader(message, "Type")
    (oid,) = reader.fields(_OID)
    return Type(oid, reader.string() or "pg_catalog", reader.string())


def origin(message: bytes) -> Origin:
    reader = _Reader(message, "Origin")
    (commit_lsn,) = reader.fields(_ORIGIN)
    return Origin(commit_lsn, reader.string())


def truncate(message: bytes) -> Truncate:
    reader = _Reader(message, "Truncate")
    count, options = reader.fields(_TRUNCATE)
    oids = tuple(reader.fields(_OID)[0] for _ in range(count))
    return Truncate(oids, bool(options & 1), bool(options & 2))


def message_(message: bytes) -> Message:
    reader = _Reader(message, "Message")
    flags, lsn = reader.fields(_MESSAGE)
    prefix = reader.string()
    (size,) = reader.fields(_OID)
    return Message(bool(flags & 1), lsn, prefix, reader.take(size))


def row_message(message: bytes) -> tuple[int, int]:
    """Return the relation's oid and the offset of the first tuple's mark of an Insert, Update or Delete."""
    if len(message) < 6:
        raise DecodeError("row message", 1, 5, len(message) - 1)
    return int.from_bytes(message[1:5], "big"), 5
