# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type,type-arg"
"""The records of one table: a change's bytes in, framed keys and Debezium envelopes out.

One `TableEncoder` per shape of a table. It is told once about each transaction and then encodes its changes without
looking at anything but their bytes. Compiled by Cython where possible, like `schemas.rowcodec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

try:
    import cython
except ModuleNotFoundError:
    from schemas import cython_shim as cython

from schemas.envelope import framing
from schemas.errors import DecodeError
from schemas.rowcodec import ColumnRefused
from schemas.types import ValueType

if cython.compiled:
    from cython.cimports.schemas.rowcodec import RowCodec, put_long
else:
    from schemas.rowcodec import RowCodec, put_long


@dataclass(frozen=True, slots=True)
class Names:
    """What Debezium's `source` says of every record of a table."""

    version: str
    connector_name: str
    database: str
    schema: str
    table: str


class UnchangedToast(Exception):
    """The new row lacks the large values of `columns`: they did not change and the WAL has no copy of them."""

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__("an unchanged TOAST value is not in the WAL")
        self.columns = columns


Record = tuple[int, bytes, bytes | None]
"""Part of the change (0 to 3), key, value or None for a tombstone."""


def _string(text: str) -> bytes:
    raw = text.encode()
    out = bytearray()
    put_long(out, len(raw))
    return bytes(out + raw)


def _optional_long(number: int | None) -> bytes:
    if number is None:
        return b"\x00"
    out = bytearray(b"\x02")
    put_long(out, number)
    return bytes(out)


def _op(letter: str, ts_ms: int) -> bytes:
    return _string(letter) + _optional_long(ts_ms)


@cython.cclass
class TableEncoder:
    """Encodes the changes of a table of one shape."""

    row: RowCodec
    old: RowCodec
    key_columns: list
    key_frame: bytes
    value_frame: bytes
    names: Names
    transaction: bytes
    sequence: bytes
    create: bytes
    update: bytes
    delete: bytes
    truncated: bytes
    current: object

    def __init__(
        self,
        names: Names,
        columns: Sequence[ValueType],
        key_columns: Sequence[int],
        key_schema_id: int,
        value_schema_id: int,
    ) -> None:
        self.names = names
        self.row = RowCodec(columns)
        self.old = RowCodec(columns)
        self.key_columns = list(key_columns)
        self.key_frame = framing(key_schema_id)
        self.value_frame = framing(value_schema_id)
        self.current = None
        self.transaction = self.sequence = self.create = self.update = self.delete = self.truncated = b""

    def begin(self, current: object, commit_lsn: int, commit_ms: int, xid: int | None, now_ms: int) -> None:
        """Make ready what all records of a transaction share; a no-op when `current` is the one made ready."""
        if current is self.current:
            return
        self.transaction = self._source(commit_lsn, commit_ms, b"\x00", xid)
        self.sequence = f'["{commit_lsn}","'.encode()
        self.create = _op("c", now_ms)
        self.update = _op("u", now_ms)
        self.delete = _op("d", now_ms)
        self.truncated = _op("t", now_ms)
        self.current = current

    def insert(self, message: bytes, pos: int, lsn: int, ordinal: int) -> list[Record]:
        """Encode the Insert whose TupleData is at `pos`."""
        out = bytearray(self.value_frame)
        out += b"\x00\x02"
        self.row.put_tuple(message, pos, out)
        if self.row.unchanged:
            raise DecodeError("Insert with an unchanged TOAST value", pos, 1, 0)
        key = self._key(self.row, out)
        self._finish(out, lsn, ordinal, self.create)
        return [(0, key, bytes(out))]

    def change(self, message: bytes, pos: int, lsn: int, ordinal: int) -> list[Record]:
        """Encode the Update whose old or new tuple's mark (K, O or N) is at `pos`.

        Raises UnchangedToast when a large value of the new row is in neither tuple.
        """
        before: bytes = b"\x00"
        old_key: bytes = b""
        old_out: bytearray = bytearray(b"\x02")
        mark: cython.int = self._mark(message, pos)
        full: cython.bint = mark == 79
        if mark == 75 or full:
            pos = self.old.put_tuple(message, pos + 1, old_out)
            old_key = self._key(self.old, old_out)
            if full:
                before = bytes(old_out)
            mark = self._mark(message, pos)
        if mark != 78:
            raise DecodeError("Update's new tuple", pos, 1, 0)
        out = bytearray(self.value_frame)
        out += before
        out.append(2)
        self.row.put_tuple(message, pos + 1, out)
        if self.row.unchanged:
            if not full:
                raise UnchangedToast(self.row.unchanged)
            out = self._filled(message, pos + 1, old_out)
        return self._changed(out, old_key, old_out, lsn, ordinal)

    def change_filled(
        self, message: bytes, pos: int, fields: Sequence[bytes | None], lsn: int, ordinal: int
    ) -> list[Record]:
        """Encode the Update at `pos` with the texts of its whole new row, got from elsewhere, in place of its own."""
        old_key: bytes = b""
        old_out: bytearray = bytearray(b"\x02")
        if self._mark(message, pos) == 75:
            self.old.put_tuple(message, pos + 1, old_out)
            old_key = self._key(self.old, old_out)
        out = bytearray(self.value_frame)
        out += b"\x00\x02"
        self.row.put_fields(fields, out)
        return self._changed(out, old_key, old_out, lsn, ordinal)

    def remove(self, message: bytes, pos: int, lsn: int, ordinal: int) -> list[Record]:
        """Encode the Delete whose tuple's mark (K or O) is at `pos`: its event and its tombstone."""
        mark: cython.int = self._mark(message, pos)
        if mark != 75 and mark != 79:
            raise DecodeError("Delete's old tuple", pos, 1, 0)
        out = bytearray(self.value_frame)
        out.append(2)
        self.old.put_tuple(message, pos + 1, out)
        key = self._key(self.old, out)
        out.append(0)
        self._finish(out, lsn, ordinal, self.delete)
        return [(0, key, bytes(out)), (1, key, None)]

    def truncate(self, lsn: int, ordinal: int) -> bytes:
        """Return the value of a truncate's control record."""
        out = bytearray(self.value_frame)
        out += b"\x00\x00"
        self._finish(out, lsn, ordinal, self.truncated)
        return bytes(out)

    def snapshot(self, fields: Sequence[bytes | None], ordinal: int) -> tuple[bytes, bytes]:
        """Encode a snapshot row given as texts, after `begin_snapshot`. Returns key and value."""
        out = bytearray(self.value_frame)
        out += b"\x00\x02"
        self.row.put_fields(fields, out)
        key = self._key(self.row, out)
        out += self.transaction
        put_long(out, ordinal)
        out += self.create
        return key, bytes(out)

    def begin_snapshot(self, commit_lsn: int, snapshot_ms: int, now_ms: int) -> None:
        """Make ready what all rows of a snapshot that stands at `commit_lsn` share."""
        self.current = None
        self.transaction = self._source(commit_lsn, snapshot_ms, b"\x02" + _string("true"), None) + b"\x00"
        self.create = b"\x00" + _op("r", now_ms)

    def row_key(self, fields: Sequence[bytes | None]) -> bytes:
        """Return the framed key of a row given as texts."""
        out = bytearray()
        self.row.put_fields(fields, out)
        return self._key(self.row, out)

    @cython.cfunc
    def _changed(self, out: bytearray, old_key: bytes, old_row: bytearray, lsn: int, ordinal: cython.longlong) -> list:
        """A changed key is a delete and a tombstone of the old one and a create of the new one."""
        key: bytes = self._key(self.row, out)
        if not old_key or old_key == key:
            self._finish(out, lsn, ordinal, self.update)
            return [(0, key, bytes(out))]
        event = bytearray(self.value_frame)
        event += old_row
        event.append(0)
        self._finish(event, lsn, ordinal, self.delete)
        created = bytearray(self.value_frame)
        created += b"\x00\x02"
        created += out[self.row.start :]
        self._finish(created, lsn, ordinal + 2, self.create)
        return [(0, old_key, bytes(event)), (1, old_key, None), (2, key, bytes(created))]

    @cython.cfunc
    def _filled(self, message: bytes, pos: int, old_out: bytearray) -> bytearray:
        """Encode the new tuple at `pos` with the old image's value for what it leaves out."""
        unchanged = set(self.row.unchanged)
        out = bytearray(self.value_frame)
        out += old_out
        out.append(2)
        row_start = len(out)
        piece = bytearray()
        self.row.put_tuple(message, pos, piece)
        columns = [
            self.old.column(old_out, i) if i in unchanged else self.row.column(piece, i) for i in range(self.row.count)
        ]
        self.row.place(columns, row_start)
        for column in columns:
            out += column
        return out

    @cython.cfunc
    def _key(self, codec: RowCodec, out: bytearray) -> bytes:
        key: bytes = self.key_frame
        for i in self.key_columns:
            column: bytes = codec.column(out, i)
            if len(column) < 2 or column[0] != 2:
                raise ColumnRefused(i, "a part of the key is null or missing")
            key += column[1:]
        return key

    @cython.cfunc
    def _finish(self, out: bytearray, lsn: int, ordinal: cython.longlong, op: bytes) -> cython.int:
        """Append what stands behind the rows: source, op, ts_ms."""
        out += self.transaction
        out.append(2)
        put_long(out, lsn)
        put_long(out, ordinal)
        out.append(2)
        tail: bytes = b'%d"]' % lsn
        put_long(out, len(self.sequence) + len(tail))
        out += self.sequence
        out += tail
        out += op
        return 0

    @cython.cfunc
    def _mark(self, message: bytes, pos: cython.Py_ssize_t) -> cython.int:
        if pos >= len(message):
            raise DecodeError("tuple's mark", pos, 1, 0)
        return message[pos]

    @cython.cfunc
    def _source(self, commit_lsn: int, ts_ms: int, snapshot: bytes, xid: int | None) -> bytes:
        """The source record up to `commit_lsn`; the fields behind it differ from change to change."""
        out = bytearray()
        names = self.names
        for text in (names.version, "postgresql", names.connector_name):
            out += _string(text)
        put_long(out, ts_ms)
        out += snapshot
        for text in (names.database, names.schema, names.table):
            out += _string(text)
        out += _optional_long(xid)
        out.append(0)
        put_long(out, commit_lsn)
        return bytes(out)
