"""Transactions in progress: their logical messages, and rows of tables that are not captured."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tailrace.cdc.wal.spool import Spool
from tailrace.cdc.wal.streamed import InProgress
from tailrace.schemas.errors import SourceError

_HEAD = struct.pack(">cQQq", b"w", 2000, 3000, 0)


@pytest.fixture
def in_progress(tmp_path: Path) -> InProgress:
    return InProgress(Spool(tmp_path, 1000))


def _keep(in_progress: InProgress) -> None:
    """Feed a block of transaction 7 that has a logical message."""
    in_progress.take(b"S" + struct.pack(">IB", 7, 1))
    message = b"M" + struct.pack(">IBQ", 7, 1, 2000) + b"outbox\0" + struct.pack(">I", 2) + b"hi"
    in_progress.keep([_HEAD + message, _HEAD + b"E"], 0)


def _abort(sub_xid: int) -> bytes:
    return b"A" + struct.pack(">II", 7, sub_xid)


def test_a_rollback_of_a_part_after_a_logical_message_is_refused(in_progress: InProgress) -> None:
    _keep(in_progress)
    with pytest.raises(SourceError, match="TR-212"):
        in_progress.take(_abort(8))


def test_a_rollback_of_the_whole_or_a_commit_is_accepted(in_progress: InProgress) -> None:
    _keep(in_progress)
    in_progress.take(_abort(7))
    in_progress.take(_abort(8))
    _keep(in_progress)
    in_progress.take(b"c" + struct.pack(">IBQQq", 7, 0, 2000, 2040, 0))
    assert len(in_progress.release(10)) == 3
    in_progress.take(_abort(8))


def _relation(name: str) -> bytes:
    body = struct.pack(">I", 5) + b"shop\0" + name.encode() + b"\0d" + struct.pack(">H", 0)
    return b"R" + struct.pack(">I", 7) + body


def test_rows_of_tables_that_are_not_captured_are_not_stored(tmp_path: Path) -> None:
    """Neither in memory nor on disk, only counted; the transaction's own Relation message names the table."""
    spool = Spool(tmp_path, 1_000_000)
    in_progress = InProgress(spool, captures=lambda schema, name: name != "hidden")
    row = b"I" + struct.pack(">II", 7, 5) + b"N" + struct.pack(">H", 1) + b"t" + struct.pack(">I", 4) + b"s3cr"
    in_progress.take(b"S" + struct.pack(">IB", 7, 1))
    messages = [_relation("hidden"), row, _relation("shown"), row, b"E"]
    in_progress.keep([_HEAD + message for message in messages], 0)
    assert spool.memory_bytes < 4 * 16 + 2 * 30 + 6 + 40
    in_progress.take(b"c" + struct.pack(">IBQQq", 7, 0, 2000, 2040, 0))
    _, _, hidden, _, shown, _ = (message[25:] for message in in_progress.release(10))
    assert hidden == b"I" + struct.pack(">I", 5) + b"N"
    assert shown == row[:1] + row[5:]
