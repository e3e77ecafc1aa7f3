# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type,type-arg"
"""Encode the changes of a table, from their bytes to framed keys and Debezium envelopes.

There is one `TableEncoder` per shape of a table. `begin` prepares what a transaction's records share; then each change
needs only its own bytes. Compiled by Cython where possible, like `schemas.encode.row_codec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.schemas.encode.refused import UNBOUNDED, ColumnRefused, RecordTooLarge
from tailrace.schemas.envelope import Record, framing
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.types import EXCLUDED, ValueType

if cython.compiled:
    from cython.cimports.tailrace.schemas.encode.buffer import Buffer, digits_of
    from cython.cimports.tailrace.schemas.encode.row_codec import RowCodec
else:
    from tailrace.schemas.encode.buffer import Buffer, digits_of
    from tailrace.schemas.encode.row_codec import RowCodec


@dataclass(frozen=True, slots=True)
class Names:
    """The constant fields of Debezium's `source` for a table."""

    version: str
    connector_name: str
    database: str
    schema: str
    table: str


class UnchangedToast(Exception):
    """The new row lacks the TOAST values of `columns`: they did not change, so the WAL has no copy."""

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__("an unchanged TOAST value is not in the WAL")
        self.columns = columns


def _long(number: int) -> bytes:
    out = Buffer()
    out.put_long(number)
    return out.whole()


def _string(text: str) -> bytes:
    raw = text.encode()
    return _long(len(raw)) + raw


_CREATE, _UPDATE, _DELETE, _TRUNCATE, _READ = map(_string, "cudtr")
_NO_TRANSACTION = cython.declare(cython.longlong, -1)


@cython.cclass
class TableEncoder:
    """Encodes the changes of a table of one shape."""

    def __init__(
        self,
        names: Names,
        columns: Sequence[ValueType],
        key_columns: Sequence[int],
        key_schema_id: int,
        value_schema_id: int,
        most: int = UNBOUNDED,
    ) -> None:
        """Create the encoder. Without `key_columns`, keys are empty and each change is one record.

        A record with more than `most` bytes raises RecordTooLarge.
        """
        self.most = most
        self.row = RowCodec(columns)
        self.old = RowCodec(columns)
        self.keys = RowCodec([column if i in key_columns else EXCLUDED for i, column in enumerate(columns)])
        self.out, self.old_out, self.spare, self.key_out = Buffer(most), Buffer(most), Buffer(most), Buffer(most)
        self.key_columns = list(key_columns)
        self.key_frame = framing(key_schema_id) if self.key_columns else b""
        self.value_frame = framing(value_schema_id)
        self.source = b"".join(map(_string, (names.version, "postgresql", names.connector_name)))
        self.table = b"".join(map(_string, (names.database, names.schema, names.table)))
        self.current = _NO_TRANSACTION
        self.transaction = self.sequence = self.now = b""

    @cython.ccall
    @cython.exceptval(-1)
    def begin(
        self,
        number: cython.longlong,
        commit_lsn: cython.ulonglong,
        commit_ms: cython.longlong,
        xid: cython.longlong,
        now_ms: cython.longlong,
    ) -> cython.int:
        """Prepare the bytes that all records of a transaction share; a no-op if `number` is the current one."""
        if number == self.current:
            return 0
        out = self.spare
        out.clear()
        out.put_all(self.source)
        out.put_long(commit_ms)
        out.put_byte(0)
        out.put_all(self.table)
        out.put_byte(2)
        out.put_long(xid)
        out.put_byte(0)
        out.put_long(commit_lsn)
        self.transaction = out.whole()
        out.clear()
        out.put_all(b'["')
        out.put_digits(commit_lsn)
        out.put_all(b'","')
        self.sequence = out.whole()
        out.clear()
        out.put_byte(2)
        out.put_long(now_ms)
        self.now = out.whole()
        self.current = number
        return 0

    @cython.ccall
    def insert(
        self, message: bytes, pos: cython.Py_ssize_t, lsn: cython.ulonglong, ordinal: cython.longlong
    ) -> list[Record]:
        """Encode the Insert with its TupleData at `pos`."""
        self.put_insert(message, pos, lsn, ordinal)
        return [(0, self.key_out.whole(), self.out.whole())]

    @cython.cfunc
    @cython.exceptval(-1)
    def put_insert(
        self, message: bytes, pos: cython.Py_ssize_t, lsn: cython.ulonglong, ordinal: cython.longlong
    ) -> cython.int:
        """Encode the Insert with its TupleData at `pos` into `key_out` and `out`."""
        out = self.out
        self._start(out)
        self._last(message, self.row.put_tuple(message, pos, out))
        if self.row.unchanged:
            raise DecodeError("Insert with an unchanged TOAST value", pos, 1, 0)
        self._put_key(self.row, out)
        self._finish(out, lsn, ordinal, _CREATE)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_update(
        self, message: bytes, pos: cython.Py_ssize_t, lsn: cython.ulonglong, ordinal: cython.longlong
    ) -> cython.bint:
        """Encode a complete Update without an old tuple into `key_out` and `out`; True if it was one.

        On False, `change` must encode it.
        """
        if self._mark(message, pos) != 78:
            return False
        self._start(self.out)
        self._last(message, self.row.put_tuple(message, pos + 1, self.out))
        if self.row.unchanged:
            return False
        self._put_key(self.row, self.out)
        self._finish(self.out, lsn, ordinal, _UPDATE)
        return True

    @cython.ccall
    def change(
        self, message: bytes, pos: cython.Py_ssize_t, lsn: cython.ulonglong, ordinal: cython.longlong
    ) -> list[Record]:
        """Encode the Update with the mark of its old or new tuple (K, O or N) at `pos`.

        Raises UnchangedToast if a TOAST value of the new row is in neither tuple.
        """
        out = self.out
        old_key: bytes = b""
        mark: cython.int = self._mark(message, pos)
        full: cython.bint = mark == 79
        if mark == 75 or full:
            pos = self._old_image(message, pos)
            old_key = self._key(self.old, self.old_out)
            mark = self._mark(message, pos)
        if mark != 78:
            raise DecodeError("Update's new tuple", pos, 1, 0)
        out.clear()
        out.put_all(self.value_frame)
        if full:
            out.put_from(self.old_out, 0, self.old_out.end())
        else:
            out.put_byte(0)
        out.put_byte(2)
        self._last(message, self.row.put_tuple(message, pos + 1, out))
        if self.row.unchanged:
            if not full:
                raise UnchangedToast(self.row.unchanged)
            self._fill()
        return self._changed(old_key, lsn, ordinal)

    def change_filled(
        self, message: bytes, pos: int, fields: Sequence[bytes | None], lsn: int, ordinal: int
    ) -> list[Record]:
        """Encode the Update at `pos` with the texts of its complete new row, which come from elsewhere."""
        old_key: bytes = b""
        if self._mark(message, pos) == 75:
            self._old_image(message, pos)
            old_key = self._key(self.old, self.old_out)
        self._start(self.out)
        self.row.put_fields(fields, self.out)
        return self._changed(old_key, lsn, ordinal)

    @cython.ccall
    def remove(
        self, message: bytes, pos: cython.Py_ssize_t, lsn: cython.ulonglong, ordinal: cython.longlong
    ) -> list[Record]:
        """Encode the Delete with its tuple's mark (K or O) at `pos`, as an event and, with a key, a tombstone."""
        mark: cython.int = self._mark(message, pos)
        if mark != 75 and mark != 79:
            raise DecodeError("Delete's old tuple", pos, 1, 0)
        end: cython.Py_ssize_t = self._old_image(message, pos)
        # an Update's new tuple may follow, if its row no longer exists
        if end == len(message) or message[end] != 78:
            self._last(message, end)
        key: bytes = self._key(self.old, self.old_out)
        event: bytes = self._deleted(lsn, ordinal)
        return [(0, key, event), (1, key, None)] if key else [(0, key, event)]

    def truncate(self, lsn: int, ordinal: int) -> bytes:
        """Return the value of a truncate control record."""
        return self._without_rows(lsn, ordinal, _TRUNCATE)

    def removed(self, lsn: int, ordinal: int) -> bytes:
        """Return the event of a delete without its old image."""
        return self._without_rows(lsn, ordinal, _DELETE)

    def _without_rows(self, lsn: int, ordinal: int, op: bytes) -> bytes:
        self.out.clear()
        self.out.put_all(self.value_frame + b"\x00\x00")
        self._finish(self.out, lsn, ordinal, op)
        return self.out.whole()

    def snapshot(self, line: bytes, ordinal: int) -> tuple[bytes, bytes]:
        """Encode a snapshot row, a line of COPY's text format, after `begin_snapshot`; return key and value."""
        self.put_snapshot(line, ordinal)
        return self.key_out.whole(), self.out.whole()

    @cython.cfunc
    @cython.exceptval(-1)
    def put_snapshot(self, line: bytes, ordinal: cython.longlong) -> cython.int:
        """Encode a snapshot row, as `snapshot` does, into `key_out` and `out`."""
        out = self.out
        self._start(out)
        self.row.put_line(line, out)
        self._put_key(self.row, out)
        out.put_all(self.transaction)
        out.put_long(ordinal)
        out.put_byte(0)
        out.put_all(_READ)
        out.put_all(self.now)
        return self._check(out)

    def snapshot_delete(self, before: bytes, ordinal: int) -> bytes:
        """Return the event of a delete found by a snapshot, after `begin_snapshot`.

        `before` is the encoded union of the old image.
        """
        out = self.out
        out.clear()
        out.put_all(self.value_frame + before + b"\x00" + self.transaction)
        out.put_long(ordinal)
        out.put_byte(0)
        out.put_all(_DELETE)
        out.put_all(self.now)
        return out.whole()

    def begin_snapshot(self, commit_lsn: int, snapshot_ms: int, now_ms: int) -> None:
        """Prepare the bytes that all rows of a snapshot at `commit_lsn` share; times are ms since 1970."""
        self.current = _NO_TRANSACTION
        self.transaction = b"".join(
            [
                self.source,
                _long(snapshot_ms),
                b"\x02",
                _string("true"),
                self.table,
                b"\x00\x00",
                _long(commit_lsn),
                b"\x00",
            ]
        )
        self.now = b"\x02" + _long(now_ms)

    def row_key(self, fields: Sequence[bytes | None]) -> bytes:
        """Return the framed key of a row given as texts; other columns are ignored. Raises ColumnRefused."""
        self.spare.clear()
        self.keys.put_fields(fields, self.spare)
        return self._key(self.keys, self.spare)

    @cython.cfunc
    @cython.exceptval(-1)
    def _start(self, out: Buffer) -> cython.int:
        """Begin the value of a row without an old image."""
        out.clear()
        out.put_all(self.value_frame)
        out.put_byte(0)
        out.put_byte(2)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _old_image(self, message: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Encode the old tuple with its mark at `pos`, with a union mark; return the position after it."""
        self.old_out.clear()
        self.old_out.put_byte(2)
        end: cython.Py_ssize_t = self.old.put_tuple(message, pos + 1, self.old_out)
        if self.old.unchanged:
            raise DecodeError("old tuple with an unchanged TOAST value", pos, 1, 0)
        return end

    @cython.cfunc
    def _changed(self, old_key: bytes, lsn: cython.ulonglong, ordinal: cython.longlong) -> list:
        """Return the update, or for a changed key: delete and tombstone of the old one, create of the new one."""
        out = self.out
        key: bytes = self._key(self.row, out)
        if not old_key or old_key == key:
            self._finish(out, lsn, ordinal, _UPDATE)
            return [(0, key, out.whole())]
        event: bytes = self._deleted(lsn, ordinal)
        self._start(self.spare)
        self.spare.put_from(out, self.row.start, out.end())
        self._finish(self.spare, lsn, ordinal + 2, _CREATE)
        return [(0, old_key, event), (1, old_key, None), (2, key, self.spare.whole())]

    @cython.cfunc
    def _deleted(self, lsn: cython.ulonglong, ordinal: cython.longlong) -> bytes:
        """Return the event of a delete of the old image."""
        self.spare.clear()
        self.spare.put_all(self.value_frame)
        self.spare.put_from(self.old_out, 0, self.old_out.end())
        self.spare.put_byte(0)
        self._finish(self.spare, lsn, ordinal, _DELETE)
        return self.spare.whole()

    @cython.cfunc
    @cython.exceptval(-1)
    def _fill(self) -> cython.int:
        """Insert the old image's values for the unchanged TOAST columns of the new tuple."""
        unchanged = set(self.row.unchanged)
        part, whole = self.out, self.spare
        whole.clear()
        whole.put_from(part, 0, self.row.start)
        start: cython.Py_ssize_t = self.row.start
        for i in range(self.row.count):
            end: cython.Py_ssize_t = self.row.column_end(i)
            if i in unchanged:
                whole.put_from(self.old_out, self.old.column_start(i), self.old.column_end(i))
            else:
                whole.put_from(part, start, end)
            self.row.place(i, whole.end())
            start = end
        self.out, self.spare = whole, part
        return 0

    @cython.cfunc
    def _key(self, codec: RowCodec, row: Buffer) -> bytes:
        self._put_key(codec, row)
        return self.key_out.whole()

    @cython.cfunc
    @cython.exceptval(-1)
    def _put_key(self, codec: RowCodec, row: Buffer) -> cython.int:
        """Copy the key of the row just encoded into `key_out`."""
        start: cython.Py_ssize_t
        end: cython.Py_ssize_t
        key = self.key_out
        key.clear()
        key.put_all(self.key_frame)
        for i in self.key_columns:
            start = codec.column_start(i)
            end = codec.column_end(i)
            if end - start < 2 or row.byte_at(start) != 2:
                raise ColumnRefused(i, "a part of the key is null or missing")
            key.put_from(row, start + 1, end)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _finish(self, out: Buffer, lsn: cython.ulonglong, ordinal: cython.longlong, op: bytes) -> cython.int:
        """Append the fields after the rows: source, op, ts_ms."""
        out.put_all(self.transaction)
        out.put_byte(2)
        out.put_long(lsn)
        out.put_long(ordinal)
        out.put_byte(2)
        out.put_long(len(self.sequence) + digits_of(lsn) + 2)
        out.put_all(self.sequence)
        out.put_digits(lsn)
        out.put_all(b'"]')
        out.put_all(op)
        out.put_all(self.now)
        return self._check(out)

    @cython.cfunc
    @cython.exceptval(-1)
    def _check(self, out: Buffer) -> cython.int:
        """Raise RecordTooLarge for a record that Kafka would refuse."""
        if out.end() + self.key_out.end() > self.most:
            out.clear()
            raise RecordTooLarge(self.most)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _last(self, message: bytes, end: cython.Py_ssize_t) -> cython.int:
        """Check that the message ends with its last tuple, at `end`."""
        if end != len(message):
            raise DecodeError("row message's end", end, 0, len(message) - end)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _mark(self, message: bytes, pos: cython.Py_ssize_t) -> cython.int:
        if pos >= len(message):
            raise DecodeError("tuple's mark", pos, 1, 0)
        return message[pos]
