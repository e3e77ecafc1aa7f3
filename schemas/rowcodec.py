# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type,type-arg"
"""Rows to Avro in one pass: pgoutput tuples and COPY lines, straight from their bytes to a record's body.

Compiled by Cython where a compiler is there; this same file runs interpreted where not. Both forms must give the same
bytes and the same errors. The snapshot and the stream use the same value writers, so a value is the same by either way.

Formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (TupleData),
https://www.postgresql.org/docs/current/sql-copy.html (text format), https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

try:
    import cython
except ModuleNotFoundError:
    from schemas import cython_shim as cython

from schemas.errors import DecodeError
from schemas.types import ValueType
from schemas.values import ValueRefused, array_items, decimal_bytes, hstore_items

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.schemas.values import date_at, time_at, timestamp_at
else:
    from schemas.values import date_at, time_at, timestamp_at

_pack_double = struct.Struct("<d").pack
_pack_float = struct.Struct("<f").pack

# `schemas.types.Kind` as C integers; a test holds them equal
STRING = cython.declare(cython.int, 0)
INT = cython.declare(cython.int, 1)
BOOL = cython.declare(cython.int, 2)
FLOAT = cython.declare(cython.int, 3)
DOUBLE = cython.declare(cython.int, 4)
DECIMAL = cython.declare(cython.int, 5)
DATE = cython.declare(cython.int, 6)
TIME = cython.declare(cython.int, 7)
TIMESTAMP = cython.declare(cython.int, 8)
TIMESTAMPTZ = cython.declare(cython.int, 9)
BYTES = cython.declare(cython.int, 10)
ARRAY = cython.declare(cython.int, 11)
MAP = cython.declare(cython.int, 12)
VECTOR = cython.declare(cython.int, 13)


class ColumnRefused(Exception):
    """A value of column number `index` cannot be stored exactly; `reason` says why, without the value."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


@cython.ccall
@cython.exceptval(-1)
def put_long(out: bytearray, number: cython.longlong) -> cython.int:
    """Append a 64-bit integer as Avro's zigzag varint."""
    rest: cython.ulonglong = (number << 1) ^ (number >> 63)
    while rest > 0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def put_slice(out: bytearray, text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
    """Append text[start:end]; the caller has checked that it lies inside."""
    if cython.compiled:
        size: cython.Py_ssize_t = len(out)
        PyByteArray_Resize(out, size + end - start)
        memcpy(PyByteArray_AS_STRING(out) + size, PyBytes_AS_STRING(text) + start, end - start)
    else:
        out += text[start:end]
    return 0


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


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def _put_integer(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t, out: bytearray) -> cython.int:
    """Append the decimal integer text[start:end], which fits into 64 bits."""
    i: cython.Py_ssize_t = start
    digit: cython.int
    value: cython.longlong = 0
    negative: cython.bint = start < end and text[start] == 45
    if negative:
        i += 1
    if i >= end or end - i > 19:
        raise ValueRefused("not an integer of the form that PostgreSQL prints")
    if end - i == 19 and text[i:end] > (b"9223372036854775808" if negative else b"9223372036854775807"):
        raise ValueRefused("an integer of more than 64 bits")
    while i < end:
        digit = text[i] - 48
        if digit < 0 or digit > 9:
            raise ValueRefused("not an integer of the form that PostgreSQL prints")
        # built up below zero, where the range is one larger
        value = value * 10 - digit
        i += 1
    return put_long(out, value if negative else -value)


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def _put_decimal(
    column: ValueType, text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t, out: bytearray
) -> cython.int:
    """Append a decimal's unscaled value; what fits into 64 bits without a Python integer."""
    i: cython.Py_ssize_t = start
    digit: cython.int
    value: cython.longlong = 0
    fraction: cython.int = -1
    scale: cython.int = column.scale
    negative: cython.bint = start < end and text[start] == 45
    if negative:
        i += 1
    digits: cython.Py_ssize_t = end - i
    while i < end and digits <= 18:
        digit = text[i] - 48
        if digit == -2 and fraction < 0:  # the point
            fraction = 0
        elif digit < 0 or digit > 9:
            digits = 19
        else:
            value = value * 10 + digit
            if fraction >= 0:
                fraction += 1
        i += 1
    # PostgreSQL prints all digits of the scale, so nothing is left to pad; all else is for the slow way
    if digits > 18 or digits == 0 or fraction != (scale if scale > 0 else -1):
        return _put_bytes(out, decimal_bytes(text[start:end], column.precision, scale))
    if negative:
        value = -value
    size: cython.int = 1
    while size < 8 and (value >> (8 * size - 1)) != (value >> 63):
        size += 1
    put_long(out, size)
    while size > 0:
        size -= 1
        out.append((value >> (8 * size)) & 0xFF)
    return 0


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def _put_value(
    kind: cython.int,
    column: ValueType,
    text: bytes,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: bytearray,
) -> cython.int:
    """Append the value whose text is text[start:end], inside; ValueRefused if it cannot be exact."""
    if kind == STRING:
        put_long(out, end - start)
        put_slice(out, text, start, end)
    elif kind == INT:
        _put_integer(text, start, end, out)
    elif kind == BOOL:
        if end - start != 1:
            raise ValueRefused("not a boolean of the form that PostgreSQL prints")
        out.append(1 if text[start] == 116 else 0)
    elif kind == DOUBLE:
        out += _pack_double(float(text[start:end]))
    elif kind == TIMESTAMPTZ:
        put_long(out, timestamp_at(text, start, end, True))
    elif kind == TIMESTAMP:
        put_long(out, timestamp_at(text, start, end, False))
    elif kind == DATE:
        put_long(out, date_at(text, start, end))
    elif kind == DECIMAL:
        _put_decimal(column, text, start, end, out)
    elif kind == TIME:
        put_long(out, time_at(text, start, end))
    else:
        _put_rare_value(kind, column, text[start:end], out)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_bytes(out: bytearray, raw: bytes) -> cython.int:
    put_long(out, len(raw))
    put_slice(out, raw, 0, len(raw))
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_rare_value(kind: cython.int, column: ValueType, text: bytes, out: bytearray) -> cython.int:
    if kind == FLOAT:
        out += _pack_float(float(text))
    elif kind == BYTES:
        _put_bytes(out, bytes.fromhex((text[2:] if text.startswith(b"\\x") else text).decode()))
    elif kind == ARRAY:
        _put_array(column.item, text, out)
    elif kind == MAP:
        pairs = hstore_items(text)
        if pairs:
            put_long(out, len(pairs))
        for name, value in pairs:
            _put_bytes(out, name)
            if value is None:
                out.append(0)
            else:
                out.append(2)
                _put_bytes(out, value)
        out.append(0)
    elif kind == VECTOR:
        numbers = text[1:-1].split(b",")
        put_long(out, len(numbers))
        for number in numbers:
            out += _pack_float(float(number))
        out.append(0)
    else:
        raise AssertionError(f"no writer for kind {kind}")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_array(column: ValueType, text: bytes, out: bytearray) -> cython.int:
    """Append one block of nullable items and the end mark."""
    items = array_items(text)
    kind: cython.int = column.kind
    if items:
        put_long(out, len(items))
    for item in items:
        if item is None:
            out.append(0)
        else:
            out.append(2)
            _put_value(kind, column, item, 0, len(item), out)
    out.append(0)
    return 0


_COPY_ESCAPES = {98: 8, 102: 12, 110: 10, 114: 13, 116: 9, 118: 11}  # \b \f \n \r \t \v


def _unescape(field: bytes) -> bytes:
    """Undo the backslashes of COPY's text format."""
    parts = field.split(b"\\")
    out = bytearray(parts[0])
    literal = False
    for part in parts[1:]:
        if literal:
            out += part
            literal = False
        elif not part:
            out.append(92)
            literal = True
        else:
            out.append(_COPY_ESCAPES.get(part[0], part[0]))
            out += part[1:]
    return bytes(out)


@cython.cclass
class RowCodec:
    """Encodes rows of one shape. After each row it knows where every column's bytes lie, so that a key, or an old
    image's value, is copied rather than encoded again."""

    def __init__(self, columns: Sequence[ValueType]) -> None:
        self.count = len(columns)
        self.columns = list(columns)
        self.kinds = bytes([column.kind for column in columns])
        self.ends = array("i", [0] * max(len(columns), 1))
        self.start = 0
        self.unchanged: list[int] = []

    @cython.ccall
    @cython.boundscheck(False)
    @cython.wraparound(False)
    @cython.exceptval(-1)
    def put_tuple(self, message: bytes, pos: cython.Py_ssize_t, out: bytearray) -> cython.Py_ssize_t:
        """Append the record of the TupleData at `pos` and return the position behind it.

        Columns whose large value was left out (unchanged TOAST) are listed in `unchanged`; nothing is appended for
        them, so the record is whole only when that list is empty. Raises DecodeError and ColumnRefused.
        """
        size: cython.Py_ssize_t = len(message)
        i: cython.Py_ssize_t = 0
        length: cython.Py_ssize_t
        tag: cython.int
        if self.unchanged:
            self.unchanged = []
        self.start = len(out)
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
                    out.append(2)
                    _put_value(self.kinds[i], self.columns[i], message, pos, pos + length, out)
                    pos += length
                elif tag == 110:  # n
                    out.append(0)
                elif tag == 117:  # u
                    self.unchanged.append(i)
                else:
                    raise DecodeError("TupleData's kind of column", pos - 1, 1, 0)
                self.ends[i] = len(out)
        except (ValueError, OverflowError) as refused:
            raise ColumnRefused(i, str(refused) if isinstance(refused, ValueRefused) else "malformed") from None
        return pos

    def put_fields(self, fields: Sequence[bytes | None], out: bytearray) -> None:
        """Append the record of a row given as one text per column, None for NULL. Raises ColumnRefused."""
        i: cython.Py_ssize_t = 0
        self.start = len(out)
        if self.unchanged:
            self.unchanged = []
        if len(fields) != self.count:
            raise DecodeError("row's number of columns", 0, self.count, len(fields))
        try:
            for i in range(self.count):
                field = fields[i]
                if field is None:
                    out.append(0)
                else:
                    out.append(2)
                    _put_value(self.kinds[i], self.columns[i], field, 0, len(field), out)
                self.ends[i] = len(out)
        except (ValueError, OverflowError) as refused:
            raise ColumnRefused(i, str(refused) if isinstance(refused, ValueRefused) else "malformed") from None

    def place(self, columns: Sequence[bytes], start: int) -> None:
        """Say that the bytes of all columns of a row lie one after the other from `start`."""
        i: cython.Py_ssize_t
        self.start = start
        for i in range(self.count):
            start += len(columns[i])
            self.ends[i] = start

    @cython.ccall
    def column(self, out: bytearray, i: cython.Py_ssize_t) -> bytes:
        """Return the bytes of column `i` of the row last appended to `out`, its union mark (0 null, 2 value) first."""
        return bytes(out[(self.ends[i - 1] if i else self.start) : self.ends[i]])


def split_tuple(message: bytes, pos: int) -> tuple[list[bytes | bool | None], int]:
    """Return the texts of a TupleData (None for NULL, False for unchanged TOAST) and the position behind."""
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
            fields.append(message[pos + 4 : pos + 4 + length])
            pos += 4 + length
        elif tag in (b"n", b"u"):
            fields.append(None if tag == b"n" else False)
        else:
            raise DecodeError("TupleData's kind of column", pos - 1, 1, 0)
    return fields, pos


def split_copy(line: bytes) -> list[bytes | None]:
    """Return the texts of a line of COPY's text format (with or without its line end), None for NULL."""
    if line.endswith(b"\n"):
        line = line[:-1]
    fields: list[bytes | None] = list(line.split(b"\t"))
    if b"\\" in line:
        return [
            field if field is None or b"\\" not in field else None if field == b"\\N" else _unescape(field)
            for field in fields
        ]
    return fields
