"""Spool of streamed transactions until their commit: in memory, above a limit in unnamed files.

Separate from the Assembler because it does not interpret the messages. Nothing here outlives the process: after a
restart the server sends every unconfirmed transaction again from its first change.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path

from tailrace.schemas.errors import SourceError

_HEAD = struct.Struct(">IQI")
"""Head of a record: the message's size, its LSN, its subtransaction's xid; the message follows."""

_READ_BYTES = 256 * 1024


@dataclass(slots=True)
class _Transaction:
    """A transaction: the oldest `spilled` bytes are in `file`, the rest in `tail`. No record is split."""

    tail: BytesIO = field(default_factory=BytesIO)
    file: FileIO | None = None
    spilled: int = 0
    aborted: array[int] = field(default_factory=lambda: array("I"))
    """Sorted xids of aborted subtransactions.

    An array, because PL/pgSQL loops over blocks with an EXCEPTION clause can abort millions in one transaction.
    """

    @property
    def in_memory(self) -> int:
        return self.tail.getbuffer().nbytes


class Spool:
    """Transactions in progress, by xid. For one thread.

    Memory: `limit_bytes` for all messages together (including 16 bytes each; the buffers take up to an eighth more),
    the message that is being appended or taken, 256 KiB while a transaction is read back, and 4 bytes for each aborted
    subtransaction. The server's `max_connections` bounds the number of transactions, and so of files.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """`folder` is created on first use; its file system should have room for the largest transactions."""
        self._folder = folder
        self._limit = limit_bytes
        self._transactions: dict[int, _Transaction] = {}
        self.memory_bytes = 0
        """Bytes of all heads and messages in memory, waiting or being taken; `disk_bytes` likewise in files."""
        self.disk_bytes = 0

    def append(self, xid: int, sub_xid: int, lsn: int, message: bytes) -> None:
        """Store a change of the transaction `xid`; `sub_xid` is `xid` outside subtransactions.

        SourceError TR-226 if writing to disk fails: then the change stays in memory, above the limit.
        """
        transaction = self._transactions.get(xid)
        if transaction is None:
            transaction = self._transactions[xid] = _Transaction()
        transaction.tail.write(_HEAD.pack(len(message), lsn, sub_xid))
        transaction.tail.write(message)
        self.memory_bytes += _HEAD.size + len(message)
        if self.memory_bytes > self._limit:
            # once is enough: the largest is not smaller than this message, and before it the limit was met
            self._spill(max(self._transactions.values(), key=lambda each: each.in_memory))

    def abort(self, xid: int, sub_xid: int) -> None:
        """Leave out the changes of a subtransaction, or delete the whole transaction if `sub_xid` is `xid`.

        An unknown transaction is no error: the server also streams transactions without published changes.
        """
        if sub_xid == xid:
            dropped = self._transactions.pop(xid, None)
            if dropped:
                self._forget(dropped)
            return
        transaction = self._transactions.get(xid)
        if transaction and not _has(transaction.aborted, sub_xid):
            transaction.aborted.insert(bisect_left(transaction.aborted, sub_xid), sub_xid)

    def take(self, xid: int) -> Iterator[tuple[int, bytes]]:
        """Yield a transaction's (lsn, message) pairs in order; delete it at the end or at an early stop.

        Nothing happens before the first pair is requested. SourceError TR-226 if the file cannot be read.
        """
        transaction = self._transactions.pop(xid, None)
        if transaction is None:
            return
        try:
            if transaction.file:
                transaction.file.seek(0)
                with BufferedReader(transaction.file, _READ_BYTES) as file:
                    yield from self._records(file, transaction.spilled, transaction.aborted)
            transaction.tail.seek(0)
            yield from self._records(transaction.tail, transaction.in_memory, transaction.aborted)
        finally:
            self._forget(transaction)

    def close(self) -> None:
        """Delete all transactions."""
        while self._transactions:
            self._forget(self._transactions.popitem()[1])

    def _records(
        self, stream: BufferedReader[FileIO] | BytesIO, size: int, aborted: array[int]
    ) -> Iterator[tuple[int, bytes]]:
        while size > 0:
            try:
                length, lsn, sub_xid = _HEAD.unpack(self._read(stream, _HEAD.size))
                if aborted and _has(aborted, sub_xid):
                    self._read(stream, length)
                else:
                    # no local variable: it would keep a large message alive until the next one is requested
                    yield lsn, self._read(stream, length)
            except OSError as error:
                raise self._failed("read", error.strerror or str(error)) from None
            size -= _HEAD.size + length

    def _read(self, stream: BufferedReader[FileIO] | BytesIO, length: int) -> bytes:
        found = stream.read(length)
        if len(found) < length:
            raise self._failed("read", "It ends too early.")
        return found

    def _spill(self, transaction: _Transaction) -> None:
        """Move a transaction's records from memory to its file; if that fails, nothing changes."""
        size = transaction.in_memory
        try:
            if transaction.file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                # unnamed from the start where the system supports it (O_TMPFILE), so that a kill -9 leaves no file
                transaction.file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            with transaction.tail.getbuffer() as whole:
                done = 0
                while done < size:
                    with whole[done:] as rest:
                        done += os.pwrite(transaction.file.fileno(), rest, transaction.spilled + done)
        except OSError as error:
            raise self._failed("written", error.strerror or str(error)) from None
        transaction.tail = BytesIO()
        transaction.spilled += size
        self.memory_bytes -= size
        self.disk_bytes += size

    def _forget(self, transaction: _Transaction) -> None:
        self.memory_bytes -= transaction.in_memory
        self.disk_bytes -= transaction.spilled
        transaction.tail.close()
        if transaction.file:
            transaction.file.close()

    def _failed(self, done: str, reason: str) -> SourceError:
        return SourceError(
            "TR-226",
            f'the spool of streamed transactions in "{self._folder}" cannot be {done}',
            detail=f"{reason.removesuffix('.')}. {self.disk_bytes} bytes are on disk, {self.memory_bytes} in memory, "
            f"of {len(self._transactions)} transactions in progress.",
            hint="Nothing is lost: the slot retains the WAL. Free space in that folder, or set source.spool_dir to a "
            "larger one; with a higher logical_decoding_work_mem the server streams less.",
        )


def _has(numbers: array[int], number: int) -> bool:
    i = bisect_left(numbers, number)
    return i < len(numbers) and numbers[i] == number
