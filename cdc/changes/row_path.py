# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Hot path of row changes, from stream to outbox: count, encode, assign the position, send.

Compiled by Cython where possible. Less frequent messages are handled in `cdc.changes.assembler`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from time import time_ns
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.cdc.tables.position import Progress
from tailrace.cdc.tables.shapes import CapturedTable, Tables
from tailrace.cdc.wal.copydata import XLOGDATA
from tailrace.cdc.wal.pgoutput import POSTGRES_EPOCH_US
from tailrace.schemas.encode.encoder import UnchangedToast
from tailrace.schemas.encode.row_codec import ColumnRefused
from tailrace.schemas.envelope import Record
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.lsn import PARTS_PER_CHANGE, Position

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tailrace.schemas.encode.encoder import TableEncoder
    from cython.cimports.tailrace.sinks.kafka.outbox import Destination, Outbox
else:
    from tailrace.schemas.encode.encoder import TableEncoder
    from tailrace.sinks.kafka.outbox import Destination, Outbox

_XLOGDATA = cython.declare(cython.Py_ssize_t, XLOGDATA)
_PARTS = cython.declare(cython.longlong, PARTS_PER_CHANGE)
_INSERT = cython.declare(cython.int, 73)
_UPDATE = cython.declare(cython.int, 85)
_DELETE = cython.declare(cython.int, 68)
_BEGIN = cython.declare(cython.int, 66)
_COMMIT = cython.declare(cython.int, 67)
_ALL = cython.declare(cython.longlong, 2**62)
_NEVER = cython.declare(cython.Py_ssize_t, 2**62)
_lsn_and_oid = struct.Struct(">Q17xI").unpack_from
_EPOCH_US = cython.declare(cython.ulonglong, POSTGRES_EPOCH_US)


@cython.cclass
class RowPath:
    """Send the row changes of one transaction after the other.

    `position_lsn` and `position_ordinal` belong to the last record sent. `flushed_lsn` is the end of the last
    transaction that was sent whole, `commit_us` its commit time. `open` says whether a transaction is in progress.
    """

    def __init__(
        self,
        tables: Tables,
        outbox: Outbox,
        progress: Progress,
        fetch: Callable[..., list[Any]],
        refuse: Callable[..., list[Any]],
    ) -> None:
        """`fetch` completes an update with a large value not in the WAL: (table, message, pos, lsn, ordinal).

        `refuse` returns the substitute records for a change that cannot be stored exactly, or raises: (..., error).
        """
        stored = progress.newest
        self._tables = tables
        self._outbox = outbox
        self._fetch = fetch
        self._refuse = refuse
        self._epoch = progress.epoch
        self._stored_lsn = stored.here.flushed_lsn
        self._split_lsn = stored.here.position.commit_lsn if stored.open is not None else 0
        self._split_ordinal = stored.here.position.ordinal
        self._table: Any = None
        self._oid = -1
        self._toast: Any = None
        self._toast_size = _NEVER
        self._encoder: Any = None
        self._destination: Any = None
        self._header = b""
        self._index = 0
        self._skip = -1
        self.open = False
        self.number = 0
        self.final_lsn = self.begin_us = self.xid = self.now_ms = 0
        self.position_lsn = stored.here.position.commit_lsn
        self.position_ordinal = stored.here.position.ordinal
        self.flushed_lsn = progress.flushed_lsn
        self.commit_us = 0
        self.on_key: Callable[[CapturedTable, bytes], None] | None = None
        self.on_commit: Callable[[int, int], None] | None = None

    @cython.ccall
    @cython.exceptval(-1)
    def begin(self, final_lsn: cython.ulonglong, commit_us: cython.longlong, xid: cython.longlong) -> cython.int:
        """Begin a transaction; changes that Kafka already has are only counted."""
        if self.open:
            raise DecodeError("begin inside a transaction", 0, 1, 0)
        self.open = True
        self.number += 1
        self.final_lsn = final_lsn
        self.begin_us = commit_us
        self.xid = xid
        self.now_ms = time_ns() // 1_000_000
        self._header = Position(self._epoch, final_lsn, 0).to_bytes()[:12]
        self._index = 0
        self._oid = -1
        if final_lsn < self._stored_lsn:
            self._skip = _ALL
        else:
            self._skip = self._split_ordinal if final_lsn == self._split_lsn else -1
        return 0

    @cython.ccall
    @cython.exceptval(-1)
    def commit(self, commit_lsn: cython.ulonglong, end_lsn: cython.ulonglong, commit_us: cython.longlong) -> cython.int:
        """End the transaction."""
        if not self.open:
            raise DecodeError("commit outside a transaction", 0, 1, 0)
        self.open = False
        if end_lsn > self.flushed_lsn:
            self.flushed_lsn = end_lsn
        self.commit_us = commit_us
        if self.on_commit is not None:
            self.on_commit(commit_lsn, self.xid)
        return 0

    def end_alone(self) -> None:
        """End a non-transactional message at `final_lsn`: everything before the next byte has been sent."""
        self.open = False
        if self.final_lsn >= self.flushed_lsn:
            self.flushed_lsn = self.final_lsn + 1

    def forget(self) -> None:
        """Look tables up again, after a Relation message or a change of the ignored tables."""
        self._oid = -1

    @cython.ccall
    @cython.exceptval(-2)
    def count(self) -> cython.longlong:
        """Count a change and return its ordinal; −1 if Kafka already has the change."""
        ordinal: cython.longlong = self._index * _PARTS
        self._index += 1
        return ordinal if ordinal > self._skip else -1

    @property
    def changes(self) -> int:
        """The number of this transaction's changes before the present one."""
        return self._index - 1

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def feed(self, messages: list[bytes], start: cython.Py_ssize_t) -> int:
        """Send changes in `messages` from index `start`; return the index of the first other message.

        The messages are XLogData. Raises DecodeError, SourceError, SinkError.
        """
        i: cython.Py_ssize_t = start
        size: cython.Py_ssize_t = len(messages)
        at: cython.Py_ssize_t = _XLOGDATA + 1
        kind: cython.int
        while i < size:
            message: bytes = messages[i]
            if len(message) < at:
                break
            kind = message[_XLOGDATA]
            if kind in (_INSERT, _UPDATE, _DELETE):
                self._row(kind, message)
            elif kind == _BEGIN and len(message) == at + 20:
                self.begin(_number(message, at, 8), _time(message, at + 8), _number(message, at + 16, 4))
            elif kind == _COMMIT and len(message) == at + 25 and message[at] == 0:
                self.commit(_number(message, at + 1, 8), _number(message, at + 9, 8), _time(message, at + 17))
            else:
                break
            i += 1
        return i

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1)
    def _row(self, kind: cython.int, message: bytes) -> cython.int:
        if not self.open:
            raise DecodeError("change outside a transaction", 0, 1, 0)
        ordinal: cython.longlong = self.count()
        if ordinal < 0:
            return 0
        pos: cython.Py_ssize_t = _XLOGDATA + 1
        if len(message) < pos + 5:
            raise DecodeError("change of a row", pos, 5, len(message) - pos)
        lsn: cython.ulonglong
        oid: cython.longlong
        if cython.compiled:
            lsn = _number(message, 1, 8)
            oid = _number(message, pos, 4)
        else:
            lsn, oid = _lsn_and_oid(message, 1)
        if oid != self._oid:
            self._find(oid)
        if self._table is None:
            return 0
        encoder: TableEncoder = self._encoder
        pos += 4
        # the TOAST cache and `on_key` need the key of a row as an object
        direct: cython.bint = self._outbox.direct and self.on_key is None and len(message) < self._toast_size
        try:
            if direct and self._straight(kind, message, pos, lsn, ordinal):
                return 0
            if kind == _INSERT:
                if message[pos] != 78:
                    raise DecodeError("Insert's new tuple", pos, 1, 0)
                records = encoder.insert(message, pos + 1, lsn, ordinal)
            elif kind == _UPDATE:
                records = encoder.change(message, pos, lsn, ordinal)
            else:
                records = encoder.remove(message, pos, lsn, ordinal)
        except UnchangedToast:
            records = self._fetch(self._table, message, pos, lsn, ordinal)
            if self._oid != oid:
                return 0
        except ColumnRefused as error:
            records = self._refuse(self._table, message, pos, lsn, ordinal, error)
            if self._oid != oid:
                return 0  # the table is parked
            if self._toast is not None:
                self._toast.refused(records)
        self._send(records, ordinal)
        if len(message) >= self._toast_size:
            self._toast_size = self._toast.took(message, pos, self.final_lsn, records)
        return 0

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1)
    def _straight(
        self,
        kind: cython.int,
        message: bytes,
        pos: cython.Py_ssize_t,
        lsn: cython.ulonglong,
        ordinal: cython.longlong,
    ) -> cython.bint:
        """Send a one-record change directly from the encoder's buffers; False if the change needs more."""
        encoder: TableEncoder = self._encoder
        if kind == _INSERT and message[pos] == 78:
            encoder.put_insert(message, pos + 1, lsn, ordinal)
        elif kind != _UPDATE or not encoder.put_update(message, pos, lsn, ordinal):
            return False
        self._outbox.send_encoded(self._destination, encoder.key_out, encoder.out, self._header, ordinal, b"")
        self.sent(ordinal)
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def _find(self, oid: cython.longlong) -> cython.int:
        """Look up the table of the next changes; without a table they are dropped."""
        table = self._tables.captured(oid, self.final_lsn)
        self._table = table
        self._oid = oid
        if table is None:
            return 0
        self._encoder = table.encoder
        self._destination = table.destination
        self._toast = table.toast
        self._toast_size = _NEVER if self._toast is None else self._toast.size
        self.prepare(self._encoder)
        return 0

    @cython.ccall
    @cython.exceptval(-1)
    def prepare(self, encoder: TableEncoder) -> cython.int:
        """Prepare an encoder for this transaction."""
        return encoder.begin(self.number, self.final_lsn, self.begin_us // 1000, self.xid, self.now_ms)

    @cython.cfunc
    @cython.exceptval(-1)
    def _send(self, records: list[Record], ordinal: cython.longlong) -> cython.int:
        outbox: Outbox = self._outbox
        to: Destination = self._destination
        part: cython.longlong
        for part, key, value in records:
            outbox.send(to, key, value, self.position(ordinal + part))
            if self.on_key is not None:
                self.on_key(self._table, key)
            self.position_lsn = self.final_lsn
            self.position_ordinal = ordinal + part
        return 0

    @cython.ccall
    @cython.exceptval(-1)
    def sent(self, ordinal: cython.longlong) -> cython.int:
        """Note that a record of this transaction has been sent."""
        self.position_lsn = self.final_lsn
        self.position_ordinal = ordinal
        return 0

    @cython.ccall
    def position(self, ordinal: cython.longlong) -> bytes:
        """Return the position header of a record of this transaction."""
        if cython.compiled:
            i = cython.declare(cython.int)
            raw = cython.declare(cython.char[20])
            memcpy(raw, PyBytes_AS_STRING(self._header), 12)
            for i in range(8):
                raw[12 + i] = (ordinal >> (56 - 8 * i)) & 0xFF
            return PyBytes_FromStringAndSize(raw, 20)
        return self._header + ordinal.to_bytes(8, "big")


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(check=False)
def _number(message: bytes, pos: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.ulonglong:
    """Read a big-endian number; the caller has checked the bounds."""
    i: cython.Py_ssize_t
    value: cython.ulonglong = 0
    if not cython.compiled:
        return int.from_bytes(message[pos : pos + size], "big")
    for i in range(pos, pos + size):
        value = value << 8 | message[i]
    return value


@cython.cfunc
@cython.exceptval(check=False)
def _time(message: bytes, pos: cython.Py_ssize_t) -> cython.longlong:
    """Read a time in microseconds since 2000; return it in microseconds since 1970."""
    # unsigned addition: C defines its overflow
    micros: cython.ulonglong = _number(message, pos, 8) + _EPOCH_US
    if cython.compiled:
        return cython.cast(cython.longlong, micros)
    return (micros + 2**63) % 2**64 - 2**63
