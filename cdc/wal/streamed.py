"""Spool transactions that are streamed before their commit; release them as protocol 1 does.

Streaming needs protocol 2 or later. The output is XLogData of Begin, changes and Commit in commit order, so that later
stages need not handle streaming.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import chain, islice

from tailrace.cdc.postgres.connect import DECODING_FAILED
from tailrace.cdc.wal import pgoutput
from tailrace.cdc.wal import pgoutput_stream as stream
from tailrace.cdc.wal.copydata import XLOGDATA
from tailrace.cdc.wal.spool import Spool
from tailrace.schemas.errors import SourceError

_BATCH_BYTES = 1_048_576
_ROWS = frozenset(b"IUD")
_STUB = 6
"""Size in bytes of a row message's kind, oid and first tuple mark: enough to count the row."""

_head = struct.Struct(">cQQq").pack
_begin = struct.Struct(">cQqI").pack
_commit = struct.Struct(">cBQQq").pack


class InProgress:
    """The streamed transactions in progress. Memory is bounded like the spool's, and by their number.

    Raises SourceError with DECODING_FAILED if a transaction's content can only be known from its unstreamed form.
    """

    def __init__(
        self, spool: Spool, *, parallel: bool = False, captures: Callable[[str, str], bool] = lambda *_: True
    ) -> None:
        """`parallel` says whether streaming 'parallel' was requested.

        Rows of tables (schema, name) outside `captures` are not stored.
        """
        self._spool = spool
        self._captures = captures
        self._outside: dict[int, set[int]] = {}
        self._parallel = parallel
        self._block: int | None = None
        self._released: Iterator[bytes] | None = None
        self._with_messages: set[int] = set()

    @property
    def in_block(self) -> bool:
        """Whether the next message belongs to a transaction in progress."""
        return self._block is not None

    def keep(self, messages: list[bytes], start: int) -> int:
        """Spool messages up to the end of the block; return the index of the first message after it."""
        assert self._block is not None
        for i in range(start, len(messages)):
            raw = messages[i]
            message = raw[XLOGDATA:]
            if message[:1] == b"E":
                stream.stream_stop(message)
                self._block = None
                return i + 1
            # Origin has no xid in a block, and is not used
            if message[:1] != b"O":
                sub_xid, body = stream.streamed(message)
                if message[:1] == b"M":
                    self._with_messages.add(self._block)
                kept = self._without_outside(self._block, message[:1] + message[body:])
                self._spool.append(self._block, sub_xid, int.from_bytes(raw[1:9], "big"), kept)
        return len(messages)

    def _without_outside(self, xid: int, message: bytes) -> bytes:
        """Return a message; a row of a table outside the capture set is cut to its kind, oid and mark.

        A transaction in progress has its own Relation messages, each before the first row with that shape.
        """
        kind = message[0]
        if kind == pgoutput.RELATION:
            relation = pgoutput.relation(message)
            if not self._captures(relation.schema, relation.name):
                self._outside.setdefault(xid, set()).add(relation.oid)
            elif xid in self._outside:
                self._outside[xid].discard(relation.oid)
        elif kind in _ROWS and xid in self._outside and int.from_bytes(message[1:5], "big") in self._outside[xid]:
            return message[:_STUB]
        return message

    def take(self, message: bytes) -> bool:
        """Process a message of the streaming protocol; False if it is another message."""
        kind = message[0] if message else 0
        if kind == stream.STREAM_START:
            self._block = stream.stream_start(message).xid
        elif kind == stream.STREAM_COMMIT:
            commit = stream.stream_commit(message)
            self._with_messages.discard(commit.xid)
            self._outside.pop(commit.xid, None)
            self._released = self._whole(commit)
        elif kind == stream.STREAM_ABORT:
            # PostgreSQL 18 sends it for rolled-back subtransactions even if streaming was not requested
            abort = stream.stream_abort(message, parallel=self._parallel)
            self._check_messages(abort)
            if abort.xid == abort.sub_xid:
                self._outside.pop(abort.xid, None)
            self._spool.abort(abort.xid, abort.sub_xid)
        else:
            return False
        return True

    def _check_messages(self, abort: stream.StreamAbort) -> None:
        """Raise SourceError if a subtransaction of a transaction with logical messages was rolled back.

        A logical message names its transaction, not its subtransaction. So only the same transaction, sent whole at its
        commit, shows which of its messages remain.
        """
        if abort.xid in self._with_messages:
            self._with_messages.discard(abort.xid)
            if abort.sub_xid != abort.xid:
                raise SourceError(
                    DECODING_FAILED,
                    "a part of a transaction in progress that has logical messages was rolled back",
                    detail="PostgreSQL does not report whether the messages were in that part.",
                    hint="Nothing is lost: the whole transaction is read at its commit.",
                )

    def release(self, limit: int) -> list[bytes]:
        """Return up to `limit` messages of a committed transaction; empty if none are left.

        The message that reaches a total of 1 MiB also ends the batch.
        """
        if self._released is None:
            return []
        messages: list[bytes] = []
        size = 0
        for message in islice(self._released, limit):
            messages.append(message)
            size += len(message)
            if size >= _BATCH_BYTES:
                break
        if not messages:
            self._released = None
        return messages

    @property
    def releasing(self) -> bool:
        """Whether a committed transaction must be released before the stream continues."""
        return self._released is not None

    def _whole(self, commit: stream.StreamCommit) -> Iterator[bytes]:
        us = commit.commit_us - pgoutput.POSTGRES_EPOCH_US
        begin = _begin(b"B", commit.commit_lsn, us, commit.xid)
        end = _commit(b"C", 0, commit.commit_lsn, commit.end_lsn, us)
        lsn = commit.commit_lsn
        changes = self._spool.take(commit.xid)
        for at, message in chain([(lsn, begin)], changes, [(lsn, end)]):
            raw = _head(b"w", at, 0, 0) + message
            # it may be large: free it before the consumer runs, so that there is only one copy
            del message
            yield raw
            del raw

    def close(self) -> None:
        """Delete all transactions, also one being released: after a restart the server sends them again."""
        self._released = None
        self._spool.close()
