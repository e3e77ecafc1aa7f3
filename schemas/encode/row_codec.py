# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type,type-arg"
"""Encode rows as Avro in one pass, directly from the bytes of pgoutput tuples and COPY lines.

Compiled by Cython if a compiler is available, else interpreted from this file. Both must give the same bytes and the
same errors. Snapshot and stream use the same value writers, so they encode a value equally.

Formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (TupleData),
https://www.postgresql.org/docs/current/sql-copy.html (text format), https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.schemas.encode.copy_text import split_copy, unescape
from tailrace.schemas.encode.refused import UNBOUNDED
from tailrace.schemas.encode.refused import ColumnRefused as ColumnRefused
from tailrace.schemas.encode.values import ValueRefused
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.types import Kind, ValueType

if cython.compiled:
    from cython.cimports.tailrace.schemas.encode.buffer import Buffer
    from cython.cimports.tailrace.schemas.encode.put_value import put_value
else:
    from tailrace.schemas.encode.buffer import Buffer
    from tailrace.schemas.encode.put_value import put_value


_EXCLUDED = cython.declare(cython.int, int(Kind.EXCLUDED))


@cython.cfunc
@cython.inline
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(check=False)
def _u16(message: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return message[pos] << 8 | message[pos + 1]


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _u32(message: bytes, pos: cython.Py_ssize_t) -> cython.Py_ssize_t:
    high: cython.Py_ssize_t = _u16(message, pos)
    return high << 16 | _u16(message, pos + 2)


@cython.cclass
class RowCodec:
    """Encodes rows of one shape, and records the place of each column's bytes in the last row.

    So a key or an old image's value can be copied instead of encoded again. A column of kind EXCLUDED is in the rows
    but not in the record: no byte of it is written, not even a union mark.
    """

    def __init__(self, columns: Sequence[ValueType]) -> None:
        self.count = len(columns)
        self.columns = list(columns)
        self.kinds = bytes([column.kind for column in columns])
        self.ends = array("i", [0] * max(len(columns), 1))
        self.start = 0
        self.unchanged: list[int] = []

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.initializedcheck(False)
    @cython.exceptval(-1)
    def put_tuple(self, message: bytes, pos: cython.Py_ssize_t, out: Buffer) -> cython.Py_ssize_t:
        """Append the record of the TupleData at `pos` and return the position after it.

        `unchanged` then lists the columns with unchanged TOAST values, for which nothing is appended; the record is
        complete only if that list is empty. Raises DecodeError and ColumnRefused.
        """
        size: cython.Py_ssize_t = len(message)
        i: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        tag: cython.int
        kind: cython.int
        if self.unchanged:
            self.unchanged = []
        self.start = out.end()
        if size - pos < 2:
            raise DecodeError("TupleData", pos, 2, size - pos)
        if _u16(message, pos) != self.count:
            raise DecodeError("TupleData's number of columns", pos, self.count, _u16(message, pos))
        pos += 2
        try:
            for i in range(self.count):
                if pos >= size:
                    raise DecodeError("TupleData's column", pos, 1, 0)
                tag = message[pos]
                pos += 1
                if tag == 116:  # t
                    if size - pos < 4:
                        raise DecodeError("TupleData's length", pos, 4, size - pos)
                    length = _u32(message, pos)
                    pos += 4
                    if size - pos < length:
                        raise DecodeError("TupleData's value", pos, length, size - pos)
                    kind = self.kinds[i]
                    if kind != _EXCLUDED:
                        out.put_byte(2)
                        put_value(kind, self.columns[i], message, pos, pos + length, out)
                    pos += length
                elif tag == 110:  # n
                    if self.kinds[i] != _EXCLUDED:
                        out.put_byte(0)
                elif tag == 117:  # u
                    if self.kinds[i] != _EXCLUDED:
                        self.unchanged.append(i)
                else:
                    raise DecodeError("TupleData's kind of column", pos - 1, 1, 0)
                self.ends[i] = out.end()
        except (ValueError, OverflowError) as refused:
            raise ColumnRefused(i, str(refused) if isinstance(refused, ValueRefused) else "malformed") from None
        return pos

    @cython.cfunc
    @cython.exceptval(-1)
    def put_fields(self, fields: Sequence[bytes | None], out: Buffer) -> cython.int:
        """Append the record of a row given as one text per column, None for NULL.

        Raises DecodeError and ColumnRefused.
        """
        i: cython.Py_ssize_t = 0
        kind: cython.int
        self.start = out.end()
        if self.unchanged:
            self.unchanged = []
        if len(fields) != self.count:
            raise DecodeError("row's number of columns", 0, self.count, len(fields))
        try:
            for i in range(self.count):
                field = fields[i]
                kind = self.kinds[i]
                if kind != _EXCLUDED:
                    if field is None:
                        out.put_byte(0)
                    else:
                        out.put_byte(2)
                        put_value(kind, self.columns[i], field, 0, len(field), out)
                self.ends[i] = out.end()
        except (ValueError, OverflowError) as refused:
            raise ColumnRefused(i, str(refused) if isinstance(refused, ValueRefused) else "malformed") from None
        return 0

    @cython.cfunc
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.initializedcheck(False)
    @cython.exceptval(-1)
    def put_line(self, line: bytes, out: Buffer) -> cython.int:
        """Append the record of a line of COPY's text format, with or without its line end.

        Raises DecodeError and ColumnRefused.
        """
        if not cython.compiled:
            return self.put_fields(split_copy(line), out)
        size: cython.Py_ssize_t = len(line)
        if size > 0 and line[size - 1] == 10:
            size -= 1
        i: cython.Py_ssize_t = 0
        pos: cython.Py_ssize_t = 0
        start: cython.Py_ssize_t
        kind: cython.int
        escaped: cython.bint
        self.start = out.end()
        if self.unchanged:
            self.unchanged = []
        try:
            while True:
                start = pos
                escaped = False
                while pos < size and line[pos] != 9:
                    if line[pos] == 92:
                        escaped = True
                    pos += 1
                if i < self.count:
                    kind = self.kinds[i]
                    if kind == _EXCLUDED:
                        pass
                    elif not escaped:
                        out.put_byte(2)
                        put_value(kind, self.columns[i], line, start, pos, out)
                    elif pos - start == 2 and line[start] == 92 and line[start + 1] == 78:  # \N
                        out.put_byte(0)
                    else:
                        text: bytes = unescape(line[start:pos])
                        out.put_byte(2)
                        put_value(kind, self.columns[i], text, 0, len(text), out)
                    self.ends[i] = out.end()
                i += 1
                if pos >= size:
                    break
                pos += 1
        except (ValueError, OverflowError) as refused:
            if line.count(b"\t") + 1 == self.count:
                raise ColumnRefused(i, str(refused) if isinstance(refused, ValueRefused) else "malformed") from None
            i = line.count(b"\t") + 1
        if i != self.count:
            raise DecodeError("row's number of columns", 0, self.count, i)
        return 0

    @cython.cfunc
    @cython.initializedcheck(False)
    @cython.exceptval(-1)
    def place(self, i: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """Set the end of column `i`, for a row assembled from pieces."""
        self.ends[i] = end
        return 0

    @cython.cfunc
    @cython.initializedcheck(False)
    @cython.exceptval(check=False)
    def column_start(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the start of column `i` in the last row: at its union mark, 0 for null, 2 for a value."""
        return self.ends[i - 1] if i else self.start

    @cython.cfunc
    @cython.initializedcheck(False)
    @cython.exceptval(check=False)
    def column_end(self, i: cython.Py_ssize_t) -> cython.Py_ssize_t:
        return self.ends[i]


_SHORT = 65_536


def split_tuple(message: bytes, pos: int, most: int = UNBOUNDED) -> tuple[list[bytes | bool | None], int]:
    """Return the texts of a TupleData (None: NULL, False: unchanged TOAST) and the position after it.

    Texts above 64 KiB are returned up to `most` bytes in total; True replaces the omitted ones. Raises DecodeError.
    """
    fields: list[bytes | bool | None] = []
    size = len(message)
    if size - pos < 2:
        raise DecodeError("TupleData", pos, 2, size - pos)
    count = _u16(message, pos)
    pos += 2
    for _ in range(count):
        tag = message[pos : pos + 1]
        pos += 1
        if tag == b"t":
            if size - pos < 4 or size - pos - 4 < _u32(message, pos):
                raise DecodeError("TupleData's value", pos, 4, size - pos)
            length = _u32(message, pos)
            if length > _SHORT:
                most -= length
            fields.append(message[pos + 4 : pos + 4 + length] if length <= _SHORT or most >= 0 else True)
            pos += 4 + length
        elif tag in (b"n", b"u"):
            fields.append(None if tag == b"n" else False)
        else:
            raise DecodeError("TupleData's kind of column", pos - 1, 1, 0)
    return fields, pos
