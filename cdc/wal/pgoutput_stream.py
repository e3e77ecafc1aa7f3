"""Decode pgoutput messages for streamed and prepared transactions (protocols 2 to 4); no I/O.

The server sends a transaction larger than `logical_decoding_work_mem` before its commit, in blocks between Stream Start
and Stream Stop. A later Stream Commit, Stream Prepare or Stream Abort gives its outcome.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tailrace.cdc.wal.pgoutput import POSTGRES_EPOCH_US
from tailrace.cdc.wal.reader import Reader
from tailrace.schemas.errors import DecodeError

STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT, STREAM_PREPARE = b"SEcAp"
BEGIN_PREPARE, PREPARE, COMMIT_PREPARED, ROLLBACK_PREPARED = b"bPKr"

_WITH_XID = b"IUDRYTM"
"""Message types with an xid in a streamed block. Origin, perhaps a block's first message, has none."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """End of a block, but not of the transaction."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """Like Commit: `end_lsn` is the LSN after the transaction, `commit_us` is in microseconds since 1970."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_us: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """Abort; `sub_xid` is `xid` for the whole transaction. LSN and time are None without `parallel`."""

    xid: int
    sub_xid: int
    abort_lsn: int | None
    abort_us: int | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Begin Prepare, Prepare or Stream Prepare; `prepare_lsn` and `end_lsn` delimit its WAL record."""

    prepare_lsn: int
    end_lsn: int
    prepare_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """Like Commit, for a prepared transaction with this xid and gid."""

    commit_lsn: int
    end_lsn: int
    commit_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """Rollback of a prepared transaction; `prepare_end_lsn` identifies its Prepare: gids are reused."""

    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_us: int
    rollback_us: int
    xid: int
    gid: str


_XID = struct.Struct(">I")
_START = struct.Struct(">IB")
_ABORT = struct.Struct(">II")
_ABORT_PARALLEL = struct.Struct(">Qq")
_END = struct.Struct(">QQq")
_PREPARED = struct.Struct(">QQqI")
_ROLLBACK = struct.Struct(">QQqqI")


def stream_start(message: bytes) -> StreamStart:
    reader = Reader(message, "Stream Start")
    xid, first = reader.fields(_START)
    reader.end()
    return StreamStart(xid, first == 1)


def stream_stop(message: bytes) -> StreamStop:
    Reader(message, "Stream Stop").end()
    return StreamStop()


def stream_commit(message: bytes) -> StreamCommit:
    reader = Reader(message, "Stream Commit")
    (xid,) = reader.fields(_XID)
    reader.no_flags()
    commit_lsn, end_lsn, commit_us = reader.fields(_END)
    reader.end()
    return StreamCommit(xid, commit_lsn, end_lsn, commit_us + POSTGRES_EPOCH_US)


def stream_abort(message: bytes, *, parallel: bool) -> StreamAbort:
    """Decode a Stream Abort.

    `parallel` says whether protocol 4 with streaming 'parallel' was requested: the message itself does not show it.
    """
    reader = Reader(message, "Stream Abort")
    xid, sub_xid = reader.fields(_ABORT)
    abort_lsn = abort_us = None
    if parallel:
        abort_lsn, since_2000 = reader.fields(_ABORT_PARALLEL)
        abort_us = since_2000 + POSTGRES_EPOCH_US
    reader.end()
    return StreamAbort(xid, sub_xid, abort_lsn, abort_us)


def begin_prepare(message: bytes) -> Prepared:
    return _prepared(Reader(message, "Begin Prepare"))


def prepare(message: bytes) -> Prepared:
    reader = Reader(message, "Prepare")
    reader.no_flags()
    return _prepared(reader)


def stream_prepare(message: bytes) -> Prepared:
    reader = Reader(message, "Stream Prepare")
    reader.no_flags()
    return _prepared(reader)


def _prepared(reader: Reader) -> Prepared:
    prepare_lsn, end_lsn, prepare_us, xid = reader.fields(_PREPARED)
    gid = reader.string()
    reader.end()
    return Prepared(prepare_lsn, end_lsn, prepare_us + POSTGRES_EPOCH_US, xid, gid)


def commit_prepared(message: bytes) -> CommitPrepared:
    reader = Reader(message, "Commit Prepared")
    reader.no_flags()
    commit_lsn, end_lsn, commit_us, xid = reader.fields(_PREPARED)
    gid = reader.string()
    reader.end()
    return CommitPrepared(commit_lsn, end_lsn, commit_us + POSTGRES_EPOCH_US, xid, gid)


def rollback_prepared(message: bytes) -> RollbackPrepared:
    reader = Reader(message, "Rollback Prepared")
    reader.no_flags()
    prepare_end_lsn, rollback_end_lsn, prepare_us, rollback_us, xid = reader.fields(_ROLLBACK)
    gid = reader.string()
    reader.end()
    epoch = POSTGRES_EPOCH_US
    return RollbackPrepared(prepare_end_lsn, rollback_end_lsn, prepare_us + epoch, rollback_us + epoch, xid, gid)


def streamed(message: bytes) -> tuple[int, int]:
    """Return the xid of a message in a streamed block, and the offset of its body.

    The xid is that of the transaction or a subtransaction. The offset is the `pos` of the decoders in
    `cdc.wal.pgoutput`. DecodeError for a message type without an xid in a block.
    """
    if not message or message[0] not in _WITH_XID:
        raise DecodeError(f"message of type {message[:1]!r} in a streamed block", 0, 1, 0)
    if len(message) < 5:
        raise DecodeError("xid of a streamed message", 1, 4, len(message) - 1)
    return int.from_bytes(message[1:5], "big"), 5
