"""Transactions in progress that have logical messages: which of them there are is not always told before the commit."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cdc.in_progress import InProgress
from cdc.spool import Spool
from schemas.errors import SourceError

_HEAD = struct.pack(">cQQq", b"w", 2000, 3000, 0)


@pytest.fixture
def in_progress(tmp_path: Path) -> InProgress:
    return InProgress(Spool(tmp_path, 1000))


def _keep(in_progress: InProgress) -> None:
    """Let a block of transaction 7 with a message come and end."""
    in_progress.take(b"S" + struct.pack(">IB", 7, 1))
    message = b"M" + struct.pack(">IBQ", 7, 1, 2000) + b"outbox\0" + struct.pack(">I", 2) + b"hi"
    in_progress.keep([_HEAD + message, _HEAD + b"E"], 0)


def _abort(sub_xid: int) -> bytes:
    return b"A" + struct.pack(">II", 7, sub_xid)


def test_a_part_rolled_back(in_progress: InProgress) -> None:
    _keep(in_progress)
    with pytest.raises(SourceError, match="TR-212"):
        in_progress.take(_abort(8))


def test_rolled_back_whole_or_committed(in_progress: InProgress) -> None:
    _keep(in_progress)
    in_progress.take(_abort(7))
    in_progress.take(_abort(8))
    _keep(in_progress)
    in_progress.take(b"c" + struct.pack(">IBQQq", 7, 0, 2000, 2040, 0))
    assert len(in_progress.release(10)) == 3
    in_progress.take(_abort(8))
