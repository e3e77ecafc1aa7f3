"""Messages of streamed and of prepared transactions, field by field; the xid inside a streamed block."""

from __future__ import annotations

import struct

import pytest

from tailrace.cdc.wal import pgoutput, pgoutput_stream
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.relation import ReplicaIdentity

_LSN, _END_LSN, _SECOND, _SECOND_AS_UNIX_US = 0x16B3748, 0x16B3778, 1_000_000, 946_684_801_000_000
_GID = "a gid, ünquoted"
_PREPARED = struct.pack(">QQqI", _LSN, _END_LSN, _SECOND, 77) + _GID.encode() + b"\0"


@pytest.mark.parametrize("first", [True, False])
def test_stream_start_is_parsed(first: bool) -> None:
    message = b"S" + struct.pack(">IB", 77, first)
    assert pgoutput_stream.stream_start(message) == pgoutput_stream.StreamStart(77, first)


def test_stream_stop_is_parsed() -> None:
    assert pgoutput_stream.stream_stop(b"E") == pgoutput_stream.StreamStop()


def test_stream_commit_is_parsed() -> None:
    message = b"c" + struct.pack(">IBQQq", 77, 0, _LSN, _END_LSN, _SECOND)
    expected = pgoutput_stream.StreamCommit(77, _LSN, _END_LSN, _SECOND_AS_UNIX_US)
    assert pgoutput_stream.stream_commit(message) == expected


def test_stream_abort_has_lsn_and_time_only_in_parallel_mode() -> None:
    short = b"A" + struct.pack(">II", 77, 78)
    long = short + struct.pack(">Qq", _LSN, _SECOND)
    read = pgoutput_stream.stream_abort
    assert read(short, parallel=False) == pgoutput_stream.StreamAbort(77, 78, None, None)
    assert read(long, parallel=True) == pgoutput_stream.StreamAbort(77, 78, _LSN, _SECOND_AS_UNIX_US)
    with pytest.raises(DecodeError, match="at offset 9"):
        read(short, parallel=True)
    with pytest.raises(DecodeError, match="at offset 9"):
        read(long, parallel=False)


def test_the_three_prepare_messages_are_parsed() -> None:
    expected = pgoutput_stream.Prepared(_LSN, _END_LSN, _SECOND_AS_UNIX_US, 77, _GID)
    assert pgoutput_stream.begin_prepare(b"b" + _PREPARED) == expected
    assert pgoutput_stream.prepare(b"P\0" + _PREPARED) == expected
    assert pgoutput_stream.stream_prepare(b"p\0" + _PREPARED) == expected


def test_commit_prepared_is_parsed() -> None:
    expected = pgoutput_stream.CommitPrepared(_LSN, _END_LSN, _SECOND_AS_UNIX_US, 77, _GID)
    assert pgoutput_stream.commit_prepared(b"K\0" + _PREPARED) == expected


def test_rollback_prepared_is_parsed() -> None:
    message = b"r\0" + struct.pack(">QQqqI", _LSN, _END_LSN, _SECOND, _SECOND + 5, 77) + b"g\0"
    expected = pgoutput_stream.RollbackPrepared(
        _LSN, _END_LSN, _SECOND_AS_UNIX_US, _SECOND_AS_UNIX_US + 5, 77, "g"
    )  # fmt: skip
    assert pgoutput_stream.rollback_prepared(message) == expected


def test_undefined_flags_are_refused() -> None:
    for read, kind in [
        (pgoutput_stream.prepare, b"P"),
        (pgoutput_stream.stream_prepare, b"p"),
        (pgoutput_stream.commit_prepared, b"K"),
    ]:
        with pytest.raises(DecodeError, match="flags at offset 1"):
            read(kind + b"\1" + _PREPARED)
    with pytest.raises(DecodeError, match="flags at offset 5"):
        pgoutput_stream.stream_commit(b"c" + struct.pack(">IBQQq", 77, 1, _LSN, _END_LSN, _SECOND))


def test_the_body_of_a_streamed_message_is_parsed_after_its_xid() -> None:
    def inside(message: bytes) -> bytes:
        return message[:1] + struct.pack(">I", 78) + message[1:]

    relation = b"R" + struct.pack(">I", 9) + b"s\0t\0i\0\1\1id\0" + struct.pack(">Ii", 23, -1)
    truncate = b"T" + struct.pack(">IBI", 1, 2, 9)
    message = b"M\1" + struct.pack(">Q", 5) + b"p\0" + struct.pack(">I", 2) + b"hi"
    row = b"I" + struct.pack(">I", 9) + b"N\0\1n"
    for plain in (relation, b"Y\0\0\0\7s\0mood\0", truncate, message, row, b"U" + row[1:], b"D" + row[1:]):
        assert pgoutput_stream.streamed(inside(plain)) == (78, 5)
    assert pgoutput.relation(inside(relation), 5) == pgoutput.relation(relation)
    assert pgoutput.relation(relation).replica_identity is ReplicaIdentity.INDEX
    assert pgoutput.type_(inside(b"Y\0\0\0\7s\0mood\0"), 5) == pgoutput.Type(7, "s", "mood")
    assert pgoutput.truncate(inside(truncate), 5) == pgoutput.Truncate((9,), False, True)
    assert pgoutput.message_(inside(message), 5) == pgoutput.Message(True, 5, "p", b"hi")
    assert pgoutput.row_message(inside(row), 5) == (9, 9)
    assert inside(row)[9:10] == b"N"


@pytest.mark.parametrize("message", [b"", b"E", b"O\0\0\0\0\0", b"B\0\0\0\0\0", b"c\0\0\0\0\0"])
def test_a_message_without_an_xid_in_a_streamed_block_is_refused(message: bytes) -> None:
    with pytest.raises(DecodeError) as error:
        pgoutput_stream.streamed(message)
    assert error.value.offset == 0


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_cut_xid_is_refused(size: int) -> None:
    with pytest.raises(DecodeError) as error:
        pgoutput_stream.streamed(b"I\0\0\0\1"[:size])
    assert error.value.offset == 1
