# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Decode the rows of a topic into columns, in the layout of Arrow's buffers.

Compiled only: without a compiler, `IS_COMPILED` is false, and Spark decodes.
https://avro.apache.org/docs/1.12.0/specification/ https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy, memset

IS_COMPILED: Final[bool] = cython.compiled

BOOL = cython.declare(cython.int, 0)
INT = cython.declare(cython.int, 1)
LONG = cython.declare(cython.int, 2)
FLOAT = cython.declare(cython.int, 3)
DOUBLE = cython.declare(cython.int, 4)
BYTES = cython.declare(cython.int, 5)
DECIMAL = cython.declare(cython.int, 6)

KINDS: Final = {"boolean": 0, "int": 1, "long": 2, "float": 3, "double": 4, "bytes": 5, "string": 5, "decimal": 6}
"""The kind of a column by the Avro type of its values; others are not decoded here."""

_WIDTHS: Final = (0, 4, 8, 4, 8, 0, 16)
_DECIMAL_SIZE = cython.declare(cython.Py_ssize_t, 16)
_FIRST_ROWS: Final = 1024


class Malformed(ValueError):
    """A record that is not of its schema."""


@dataclass(frozen=True, slots=True)
class ColumnBuffers:
    """One column's buffers; `valid` is None if no value is null, `ends` are the offsets of BYTES, else None."""

    valid: memoryview | None
    ends: memoryview | None
    data: memoryview
    nulls: int


@cython.final
@cython.cclass
class Values:
    """The values of one column. Memory: at most twice that of the values."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.width = _WIDTHS[kind]
        self.data, self.valid, self.ends = bytearray(), bytearray(), bytearray()
        self.room = self.size = self.rows = self.rows_room = self.nulls = 0
        if cython.compiled:
            self.at = self.bits = cython.NULL
            self.offsets = cython.NULL
            self.reserve_rows()

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve_rows(self) -> cython.int:
        """Make room for more rows."""
        if cython.compiled:
            before: cython.Py_ssize_t = self.rows_room
            room: cython.Py_ssize_t = 2 * before + _FIRST_ROWS
            PyByteArray_Resize(self.valid, room // 8)
            self.bits = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.valid))
            memset(self.bits + before // 8, 0, (room - before) // 8)
            if self.kind == BYTES:
                PyByteArray_Resize(self.ends, 4 * (room + 1))
                self.offsets = cython.cast(cython.p_int, PyByteArray_AS_STRING(self.ends))
                if before == 0:
                    self.offsets[0] = 0
            else:
                size: cython.Py_ssize_t = room // 8 if self.kind == BOOL else room * self.width
                old: cython.Py_ssize_t = before // 8 if self.kind == BOOL else before * self.width
                PyByteArray_Resize(self.data, size)
                self.at = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
                memset(self.at + old, 0, size - old)
            self.rows_room = room
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, more: cython.Py_ssize_t) -> cython.int:
        """Make room for `more` bytes of a BYTES column."""
        if cython.compiled and self.size + more > self.room:
            if self.size + more > 0x7FFFFFFF:
                raise Malformed("a column of more than 2 GiB")
            self.room = 2 * self.room + more + 4096
            PyByteArray_Resize(self.data, self.room)
            self.at = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_null(self) -> cython.int:
        """Append a null."""
        if cython.compiled:
            if self.kind == BYTES:
                self.offsets[self.rows + 1] = cython.cast(cython.int, self.size)
            self.nulls += 1
            self.rows += 1
        return 0

    def buffers(self) -> ColumnBuffers:
        """Return the buffers of all rows; no more may be added."""
        rows = self.rows
        size = self.size if self.kind == BYTES else (rows + 7) // 8 if self.kind == BOOL else rows * self.width
        return ColumnBuffers(
            memoryview(self.valid)[: (rows + 7) // 8] if self.nulls else None,
            memoryview(self.ends)[: 4 * (rows + 1)] if self.kind == BYTES else None,
            memoryview(self.data)[:size],
            self.nulls,
        )


@cython.final
@cython.cclass
class RowDecoder:
    """Appends the row after a change to columns; all fields of a row are nullable, as `schemas.avro` makes them.

    `kinds` are those of the fields, in order (`KINDS`). `size` is the number of bytes that were appended.
    """

    def __init__(self, kinds: Sequence[int]) -> None:
        self.columns = [Values(kind) for kind in kinds]
        self.count = len(kinds)
        self.rows = self.size = 0
        if cython.compiled:
            self.at = self.end = cython.NULL

    def add(self, body: bytes) -> bool:
        """Append the row of a change's envelope, without its framing; False if it has none, because it is a deletion.

        Malformed if the record is not of this schema; no further row can be added then.
        """
        if cython.compiled:
            return self.append(cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(body)), len(body)) == 1
        raise NotImplementedError

    def take(self) -> list[ColumnBuffers]:
        """Return the columns of all rows, and begin again with none."""
        found, fresh = [], []
        column: Values
        for column in self.columns:
            found.append(column.buffers())
            fresh.append(Values(column.kind))
        self.columns = fresh
        self.rows = self.size = 0
        return found

    @cython.cfunc
    @cython.exceptval(-1)
    def append(self, body: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.int:
        """As `add`, from memory that must stay valid during the call; return 1 for a row, else 0."""
        if cython.compiled:
            self.at, self.end = body, body + size
            if self.number() != 0:
                self.take_row(False)
            if self.number() == 0:
                return 0
            self.take_row(True)
            self.rows += 1
            self.size += size
            return 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def take_row(self, take: cython.bint) -> cython.int:
        """Append a row, or skip it."""
        i = cython.declare(cython.int)
        column = cython.declare(Values)
        for i in range(self.count):
            column = cython.cast(Values, self.columns[i])
            if take and column.rows == column.rows_room:
                column.reserve_rows()
            if self.number() != 0:
                self.take_value(column, take)
            elif take:
                column.put_null()
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def take_value(self, column: Values, take: cython.bint) -> cython.int:
        """Append a value that is not null, or skip it."""
        if cython.compiled:
            kind: cython.int = column.kind
            row: cython.Py_ssize_t = column.rows
            size: cython.Py_ssize_t
            number: cython.longlong
            i: cython.Py_ssize_t
            if kind in (LONG, INT):
                number = self.number()
                if take and kind == LONG:
                    cython.cast(cython.p_longlong, column.at)[row] = number
                elif take:
                    cython.cast(cython.p_int, column.at)[row] = cython.cast(cython.int, number)
            elif kind in (BYTES, DECIMAL):
                size = self.length()
                if take and kind == BYTES:
                    column.reserve(size)
                    memcpy(column.at + column.size, self.at, size)
                    column.size += size
                    column.offsets[row + 1] = cython.cast(cython.int, column.size)
                elif take:
                    if size > _DECIMAL_SIZE:
                        raise Malformed("a decimal of more than 38 digits")
                    # big-endian there, little-endian here, the sign in all further bytes
                    memset(column.at + 16 * row, 0xFF if size > 0 and self.at[0] & 0x80 else 0, 16)
                    for i in range(size):
                        column.at[16 * row + i] = self.at[size - 1 - i]
                self.at += size
            else:
                size = 1 if kind == BOOL else column.width
                if self.end - self.at < size:
                    raise Malformed("a value is cut short")
                if take and kind == BOOL:
                    if self.at[0]:
                        column.at[row >> 3] |= 1 << (row & 7)
                elif take:
                    memcpy(column.at + column.width * row, self.at, size)
                self.at += size
            if take:
                column.bits[row >> 3] |= 1 << (row & 7)
                column.rows = row + 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def number(self) -> cython.longlong:
        """Read Avro's zigzag varint."""
        if cython.compiled:
            found: cython.ulonglong = 0
            shift: cython.int = 0
            byte: cython.int = 0x80
            while byte & 0x80:
                if self.at >= self.end or shift > 63:
                    raise Malformed("a number is cut short")
                byte = self.at[0]
                self.at += 1
                found |= cython.cast(cython.ulonglong, byte & 0x7F) << shift
                shift += 7
            return cython.cast(cython.longlong, found >> 1) ^ -cython.cast(cython.longlong, found & 1)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def length(self) -> cython.Py_ssize_t:
        """Read the size of a value that the record must still have."""
        size: cython.longlong = self.number()
        if size < 0 or size > self.end - self.at:
            raise Malformed("a value is cut short")
        return size
