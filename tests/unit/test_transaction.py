"""The assembler's handling of messages other than rows; rows are tested with servers."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.cdc.changes.assembler import Assembler
from tailrace.cdc.tables.position import Progress, new_origin
from tailrace.cdc.wal.spool import Spool
from tailrace.cdc.wal.streamed import InProgress
from tailrace.schemas.errors import DecodeError
from tailrace.sinks.kafka.outbox import Outbox
from tailrace.sinks.kafka.producer import KafkaSink
from tests.golden.describe import FOLDER, load


class _Sink:
    """A sink to which nothing may be sent."""

    def __init__(self) -> None:
        self.outbox = Outbox(SimpleNamespace(produce=_unexpected), *[_unexpected] * 4)


def _unexpected(*_: Any) -> None:
    raise AssertionError("nothing should be sent")


@pytest.fixture
def assembler(tmp_path: Path) -> Assembler:
    progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), []))
    in_progress = InProgress(Spool(tmp_path, 1000))
    nobody = cast("Any", None)
    tables = cast("Any", SimpleNamespace())
    return Assembler(tables, cast("KafkaSink", _Sink()), progress, nobody, in_progress, nobody, nobody)


def _xlogdata(message: bytes) -> bytes:
    return struct.pack(">cQQq", b"w", 2000, 3000, 0) + message


def test_an_unrequested_stream_abort_is_ignored(assembler: Assembler) -> None:
    """PostgreSQL 18 sends it under protocol 1, too, for rolled-back parts of large transactions."""
    begin = b"B" + struct.pack(">QqI", 2000, 0, 77)
    assembler.feed([_xlogdata(b"A" + struct.pack(">II", 77, 78)), _xlogdata(begin)])
    assert assembler.open_xid == 77


def test_an_unknown_message_is_refused(assembler: Assembler) -> None:
    with pytest.raises(DecodeError, match="unknown type 90"):
        assembler.feed([_xlogdata(b"Z")])


@pytest.mark.parametrize("message", [b"I\0\0\0\1N\0\0", b"T\0\0\0\1\0\0\0\0\1", b"C\0" + bytes(24)])
def test_a_message_outside_a_transaction_is_refused(assembler: Assembler, message: bytes) -> None:
    with pytest.raises(DecodeError, match="outside a transaction"):
        assembler.feed([_xlogdata(message)])


def test_commit_ends_the_transaction(assembler: Assembler) -> None:
    begin, commit = struct.pack(">QqI", 2000, 5, 77), struct.pack(">BQQq", 0, 2000, 2040, 5)
    assembler.feed([_xlogdata(b"B" + begin), _xlogdata(b"C" + commit)])
    assert (assembler.open_xid, assembler.rows.flushed_lsn) == (None, 2040)
    assert assembler.rows.commit_us == 946_684_800_000_005


def test_two_phase_messages_are_refused(assembler: Assembler) -> None:
    """Our slots have two_phase off, so they are unexpected; ignoring them would lose changes."""
    recording = load(FOLDER / "pg18_protocol4.json")
    by_kind = {message[:1]: message for _, message in recording.messages}
    for kind in (b"b", b"P", b"K", b"r", b"p"):
        with pytest.raises(DecodeError, match=f"unknown type {kind[0]} "):
            assembler.feed([_xlogdata(by_kind[kind])])
