# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Encode single values by the column's kind, from PostgreSQL's text to Avro's bytes.

Compiled by Cython where possible, like `schemas.encode.row_codec`; the C signatures are in put_value.pxd.
https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import struct

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.schemas.encode.values import ValueRefused, array_items, decimal_bytes, hstore_items
from tailrace.schemas.hidden import hashed, masked
from tailrace.schemas.types import ValueType

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tailrace.schemas.encode.buffer import Buffer
    from cython.cimports.tailrace.schemas.encode.values import date_at, time_at, timestamp_at
else:
    from tailrace.schemas.encode.buffer import Buffer
    from tailrace.schemas.encode.values import date_at, time_at, timestamp_at

_FLOAT_CHARACTERS = frozenset(b"0123456789+-.eE")
_NO_NUMBERS = (b"NaN", b"Infinity", b"-Infinity")
_FLOAT_TEXT = cython.declare(cython.Py_ssize_t, 64)
_to_float = struct.Struct("<f")

# `schemas.types.Kind` as C integers; a test compares them
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
MASKED = cython.declare(cython.int, 14)
HASHED = cython.declare(cython.int, 15)
EXCLUDED = cython.declare(cython.int, 16)


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def _put_integer(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t, out: Buffer) -> cython.int:
    """Append the decimal integer text[start:end]. ValueRefused if it does not fit into 64 bits."""
    i: cython.Py_ssize_t = start
    digit: cython.int
    value: cython.longlong = 0
    negative: cython.bint = start < end and text[start] == 45
    if negative:
        i += 1
    if i >= end or end - i > 19:
        raise ValueRefused("not an integer in PostgreSQL's output format")
    if end - i == 19 and text[i:end] > (b"9223372036854775808" if negative else b"9223372036854775807"):
        raise ValueRefused("an integer of more than 64 bits")
    while i < end:
        digit = text[i] - 48
        if digit < 0 or digit > 9:
            raise ValueRefused("not an integer in PostgreSQL's output format")
        # accumulate the negative value, because the range below zero is larger by one
        value = value * 10 - digit
        i += 1
    return out.put_long(value if negative else -value)


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def _put_decimal(
    column: ValueType, text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t, out: Buffer
) -> cython.int:
    """Append a decimal's unscaled value; up to 18 characters without a Python integer."""
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
    # PostgreSQL prints all digits of the scale, so no padding is needed; other forms take the slow path
    if digits > 18 or digits == 0 or fraction != (scale if scale > 0 else -1):
        return _put_bytes(out, decimal_bytes(text[start:end], column.precision, scale))
    if negative:
        value = -value
    size: cython.int = 1
    while size < 8 and (value >> (8 * size - 1)) != (value >> 63):
        size += 1
    out.put_long(size)
    while size > 0:
        size -= 1
        out.put_byte((value >> (8 * size)) & 0xFF)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _float_at(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.double:
    """Parse the float text[start:end] as Python does, but refuse spaces and underscores by ValueError."""
    if cython.compiled:
        digits = cython.declare(cython.char[65])
        stop = cython.declare(cython.p_char)
        number = cython.declare(cython.double)
        size: cython.Py_ssize_t = end - start
        if size == 0 or size > _FLOAT_TEXT:
            raise ValueError
        # Up to 15 digits and a power of ten up to 22 are exact as doubles, so their quotient is rounded once (Clinger).
        i: cython.Py_ssize_t
        fraction: cython.Py_ssize_t = -1
        mantissa: cython.longlong = 0
        negative: cython.bint = text[start] == 45
        if size <= 16:
            for i in range(start + (1 if negative else 0), end):
                if text[i] == 46 and fraction < 0:
                    fraction = 0
                elif text[i] < 48 or text[i] > 57:
                    break
                else:
                    mantissa = mantissa * 10 + (text[i] - 48)
                    if fraction >= 0:
                        fraction += 1
            else:
                if 0 < mantissa < 1_000_000_000_000_000:
                    power: cython.double = 1.0
                    while fraction > 0:
                        power *= 10.0
                        fraction -= 1
                    number = mantissa / power
                    return -number if negative else number
        # the parser accepts NaN and infinities in any spelling; PostgreSQL has only one
        for i in range(start, end):
            if (text[i] < 48 or text[i] > 57) and text[i] not in (43, 45, 46, 69, 101):
                if text[start:end] not in _NO_NUMBERS:
                    raise ValueError
                break
        # Copied to end it with a zero byte: in the message, any byte may follow the text.
        memcpy(digits, PyBytes_AS_STRING(text) + start, size)
        digits[size] = 0
        number = PyOS_string_to_double(  # noqa: F821  (it is in put_value.pxd)
            digits, cython.address(stop), cython.NULL
        )
        if stop != digits + size:
            raise ValueError
        return number
    raw = text[start:end]
    if not 0 < end - start <= _FLOAT_TEXT or not (_FLOAT_CHARACTERS.issuperset(raw) or raw in _NO_NUMBERS):
        raise ValueError
    return float(raw)


@cython.cfunc
@cython.exceptval(-1)
def _put_float(text: bytes, out: Buffer) -> cython.int:
    raw: bytes = _to_float.pack(_float_at(text, 0, len(text)))
    out.put(raw, 0, 4)
    return 0


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def put_value(
    kind: cython.int,
    column: ValueType,
    text: bytes,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    out: Buffer,
) -> cython.int:
    """Append the value with the text text[start:end]; the caller has checked the bounds.

    ValueRefused, or another ValueError, if it cannot be stored exactly.
    """
    if kind == STRING:
        out.put_long(end - start)
        out.put(text, start, end)
    elif kind == INT:
        _put_integer(text, start, end, out)
    elif kind == BOOL:
        if end - start != 1 or (text[start] != 116 and text[start] != 102):
            raise ValueRefused("not a boolean in PostgreSQL's output format")
        out.put_byte(1 if text[start] == 116 else 0)
    elif kind == DOUBLE:
        out.put_double(_float_at(text, start, end))
    elif kind == TIMESTAMPTZ:
        out.put_long(timestamp_at(text, start, end, True))
    elif kind == TIMESTAMP:
        out.put_long(timestamp_at(text, start, end, False))
    elif kind == DATE:
        out.put_long(date_at(text, start, end))
    elif kind == DECIMAL:
        _put_decimal(column, text, start, end, out)
    elif kind == TIME:
        out.put_long(time_at(text, start, end))
    else:
        _put_rare_value(kind, column, text[start:end], out)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_bytes(out: Buffer, raw: bytes) -> cython.int:
    out.put_long(len(raw))
    out.put(raw, 0, len(raw))
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_rare_value(kind: cython.int, column: ValueType, text: bytes, out: Buffer) -> cython.int:
    if kind == FLOAT:
        _put_float(text, out)
    elif kind == BYTES:
        _put_bytes(out, bytes.fromhex((text[2:] if text.startswith(b"\\x") else text).decode()))
    elif kind == ARRAY:
        _put_array(column.item, text, out)
    elif kind == MAP:
        pairs = hstore_items(text)
        if pairs:
            out.put_long(len(pairs))
        for name, value in pairs:
            _put_bytes(out, name)
            if value is None:
                out.put_byte(0)
            else:
                out.put_byte(2)
                _put_bytes(out, value)
        out.put_byte(0)
    elif kind == VECTOR:
        if not text.startswith(b"[") or not text.endswith(b"]"):
            raise ValueRefused("not a vector in pgvector's output format")
        numbers = text[1:-1].split(b",")
        out.put_long(len(numbers))
        for number in numbers:
            _put_float(number, out)
        out.put_byte(0)
    elif kind == MASKED:
        _put_bytes(out, masked(text, column.keep))
    elif kind == HASHED:
        _put_bytes(out, hashed(text, column.salt))
    else:
        raise AssertionError(f"no writer for kind {kind}")
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _put_array(column: ValueType, text: bytes, out: Buffer) -> cython.int:
    """Append one block of nullable items and the end mark."""
    items = array_items(text)
    kind: cython.int = column.kind
    if items:
        out.put_long(len(items))
    for item in items:
        if item is None:
            out.put_byte(0)
        else:
            out.put_byte(2)
            put_value(kind, column, item, 0, len(item), out)
    out.put_byte(0)
    return 0
