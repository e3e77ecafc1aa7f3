# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""The way of a row change, from the stream's bytes into the outbox: counted, encoded, given its position, sent.

Compiled by Cython where possible: what millions of changes pass through is here, all else is in `cdc.transaction`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from schemas import cython_shim as cython

from cdc.copydata import XLOGDATA
from cdc.tables import CapturedTable, Tables
from schemas.encoder import Record, UnchangedToast
from schemas.envelope import POSITION_HEADER
from schemas.errors import DecodeError
from schemas.lsn import PARTS_PER_CHANGE
from schemas.rowcodec import ColumnRefused

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.schemas.encoder import TableEncoder
    from cython.cimports.sinks.outbox import Destination, Outbox
else:
    from schemas.encoder import TableEncoder
    from sinks.outbox import Destination, Outbox

_XLOGDATA = cython.declare(cython.Py_ssize_t, XLOGDATA)
_PARTS = cython.declare(cython.longlong, PARTS_PER_CHANGE)
_INSERT = cython.declare(cython.int, 73)
_UPDATE = cython.declare(cython.int, 85)
_DELETE = cython.declare(cython.int, 68)


@cython.cclass
class RowPath:
    """Sends the row changes of one transaction after the other.

    `ordinal` is that of the last record sent, −1 before a transaction's first. `fetch` completes an update whose
    large value is not in the WAL: (table, message, pos, lsn, ordinal) → records.
    """

    def __init__(self, tables: Tables, outbox: Outbox, fetch: Callable[..., list[Any]]) -> None:
        self._tables = tables
        self._outbox = outbox
        self._fetch = fetch
        self._transaction: Any = None
        self._table: Any = None
        self._oid = 0
        self.on_key: Callable[[CapturedTable, bytes], None] | None = None
        self.ordinal = -1

    def begin(self, transaction: Any, header: bytes, skip: int, now_ms: int) -> None:
        """Begin a transaction (a `pgoutput.Begin`); changes up to ordinal `skip` are only counted.

        `header` is what the positions of its records have in common: 12 bytes.
        """
        self._transaction = transaction
        self._header = header
        self._skip = skip
        self._now_ms = now_ms
        self._index = 0
        self._table = None
        self.ordinal = -1

    def end(self) -> None:
        """End it: a change that comes now is a DecodeError."""
        self._transaction = None

    def forget(self) -> None:
        """Look tables up again: a Relation message has come."""
        self._table = None

    @cython.ccall
    @cython.exceptval(-2)
    def count(self) -> cython.longlong:
        """Count a change and return its ordinal; −1 if Kafka holds it already."""
        ordinal: cython.longlong = self._index * _PARTS
        self._index += 1
        return ordinal if ordinal > self._skip else -1

    @cython.boundscheck(False)
    @cython.wraparound(False)
    def feed(self, messages: list[bytes], start: cython.Py_ssize_t) -> int:
        """Send the changes in `messages` from `start` on; return where the first message of another kind stands.

        The messages are XLogData. Raises DecodeError, SourceError, SinkError.
        """
        i: cython.Py_ssize_t = start
        size: cython.Py_ssize_t = len(messages)
        kind: cython.int
        while i < size:
            message: bytes = messages[i]
            if len(message) <= _XLOGDATA:
                break
            kind = message[_XLOGDATA]
            if kind != _INSERT and kind != _UPDATE and kind != _DELETE:
                break
            self._row(kind, message)
            i += 1
        return i

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1)
    def _row(self, kind: cython.int, message: bytes) -> cython.int:
        if self._transaction is None:
            raise DecodeError("change outside a transaction", 0, 1, 0)
        ordinal: cython.longlong = self.count()
        if ordinal < 0:
            return 0
        pos: cython.Py_ssize_t = _XLOGDATA + 1
        if len(message) < pos + 5:
            raise DecodeError("change of a row", pos, 5, len(message) - pos)
        oid: cython.longlong = _number(message, pos, 4)
        lsn: cython.ulonglong = _number(message, 1, 8)
        if self._table is None or oid != self._oid:
            self._find(oid)
        encoder: TableEncoder = self._encoder
        pos += 4
        try:
            if kind == _INSERT:
                if message[pos] != 78:
                    raise DecodeError("Insert's new tuple", pos, 1, 0)
                self._send(encoder.insert(message, pos + 1, lsn, ordinal), ordinal)
            elif kind == _UPDATE:
                self._send(encoder.change(message, pos, lsn, ordinal), ordinal)
            else:
                self._send(encoder.remove(message, pos, lsn, ordinal), ordinal)
        except UnchangedToast:
            self._send(self._fetch(self._table, message, pos, lsn, ordinal), ordinal)
        except ColumnRefused as error:
            raise self._table.refused(error) from None
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _find(self, oid: cython.longlong) -> cython.int:
        table = self._tables[oid]
        begin = self._transaction
        table.encoder.begin(begin, begin.final_lsn, begin.commit_us // 1000, begin.xid, self._now_ms)
        self._table = table
        self._oid = oid
        self._encoder = table.encoder
        self._destination = table.destination
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _send(self, records: list[Record], ordinal: cython.longlong) -> cython.int:
        outbox: Outbox = self._outbox
        to: Destination = self._destination
        part: cython.longlong
        for part, key, value in records:
            outbox.send(to, key, value, [(POSITION_HEADER, self.position(ordinal + part))])
            if self.on_key is not None:
                self.on_key(self._table, key)
            self.ordinal = ordinal + part
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
    """Read a big-endian number; the caller has checked that it lies inside."""
    i: cython.Py_ssize_t
    value: cython.ulonglong = 0
    for i in range(pos, pos + size):
        value = value << 8 | message[i]
    return value
