"""Messages of pgoutput, field by field, and cut at every byte."""

from __future__ import annotations

import struct

import pytest

from tailrace.cdc.wal import pgoutput
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.relation import ReplicaIdentity
from tailrace.schemas.types import Column

_BEGIN = b"B" + struct.pack(">QqI", 0x16B3748, 1_000_000, 77)
_COMMIT = b"C\0" + struct.pack(">QQq", 0x16B3748, 0x16B3778, 1_000_000)
_RELATION = (
    b"R" + struct.pack(">I", 16385) + b'public\0odd "name"\0f' + struct.pack(">H", 2)
    + b"\1id\0" + struct.pack(">Ii", 23, -1)
    + b"\0n\0" + struct.pack(">Ii", 1700, 655366)
)  # fmt: skip
_TYPE = b"Y" + struct.pack(">I", 16400) + b"public\0mood\0"
_ORIGIN = b"O" + struct.pack(">Q", 5) + b"node\0"
_TRUNCATE = b"T" + struct.pack(">IBII", 2, 3, 16385, 16390)
_MESSAGE = b"M\1" + struct.pack(">Q", 9) + b"tailrace:s\0" + struct.pack(">I", 3) + b"abc"


def test_begin_is_parsed() -> None:
    begin = pgoutput.begin(_BEGIN)
    assert (begin.final_lsn, begin.xid) == (0x16B3748, 77)
    assert begin.commit_us == 946_684_801_000_000


def test_commit_is_parsed() -> None:
    commit = pgoutput.commit(_COMMIT)
    assert (commit.commit_lsn, commit.end_lsn) == (0x16B3748, 0x16B3778)


def test_relation_is_parsed() -> None:
    relation = pgoutput.relation(_RELATION)
    assert (relation.oid, relation.schema, relation.name) == (16385, "public", 'odd "name"')
    assert relation.replica_identity is ReplicaIdentity.FULL
    assert relation.columns == (Column("id", 23, -1, True), Column("n", 1700, 655366, False))


def test_a_relation_of_pg_catalog_has_no_namespace_on_the_wire() -> None:
    assert pgoutput.relation(_RELATION.replace(b"public", b"")).schema == "pg_catalog"


def test_type_is_parsed() -> None:
    assert pgoutput.type_(_TYPE) == pgoutput.Type(16400, "public", "mood")


def test_origin_is_parsed() -> None:
    assert pgoutput.origin(_ORIGIN) == pgoutput.Origin(5, "node")


def test_truncate_is_parsed() -> None:
    assert pgoutput.truncate(_TRUNCATE) == pgoutput.Truncate((16385, 16390), True, True)


def test_message_is_parsed() -> None:
    assert pgoutput.message_(_MESSAGE) == pgoutput.Message(True, 9, "tailrace:s", b"abc")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (pgoutput.begin, _BEGIN),
        (pgoutput.commit, _COMMIT),
        (pgoutput.relation, _RELATION),
        (pgoutput.type_, _TYPE),
        (pgoutput.origin, _ORIGIN),
        (pgoutput.truncate, _TRUNCATE),
        (pgoutput.message_, _MESSAGE),
    ],
)
def test_every_cut_message_is_a_decode_error(read: object, message: bytes) -> None:
    assert callable(read)
    for size in range(1, len(message)):
        with pytest.raises(DecodeError) as error:
            read(message[:size])
        assert 1 <= error.value.offset <= size
