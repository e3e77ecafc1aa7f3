"""A table's records where nothing is compiled: by a function for each column, and joined once.

`encoder` does the same in every form and says what is wrong with a message. Interpreted it is slow, so it asks here
first. Only plain rows are encoded here, to the same bytes: for all that is unusual, damaged, refused or not in the WAL
the answer is None, and nothing has been done.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from tailrace.schemas.encode.buffer import Buffer
from tailrace.schemas.encode.copy_text import split_copy
from tailrace.schemas.encode.put_value import put_value
from tailrace.schemas.encode.values import date_days, time_micros
from tailrace.schemas.encode.varint import zigzag
from tailrace.schemas.envelope import Record
from tailrace.schemas.types import Kind, ValueType

Write = Callable[[bytes], bytes]
"""From the text of a value to its Avro bytes, the union mark in front. Raises one of `_REFUSED`."""

_NULL, _VALUE = b"\x00", b"\x02"
_REFUSED = (ValueError, ArithmeticError, LookupError, struct.error)

_count_at = struct.Struct(">H").unpack_from
_field_at = struct.Struct(">BI").unpack_from
_PAD = b"\x00\x00\x00\x00"
"""Behind a message, for a NULL at its end is shorter than what `_field_at` reads."""

_MEMO = 4096
"""Values that repeat, such as a transaction's now(), are encoded once; so many are kept for a column."""


class InterpretedEncoder:
    """Encodes the plain changes of a table; its methods are those of `TableEncoder`, which has what they promise."""

    def __init__(
        self, columns: Sequence[ValueType], key_columns: Sequence[int], key_frame: bytes, value_frame: bytes
    ) -> None:
        self._columns = [_writer(column) for column in columns]
        self._key_columns = list(key_columns)
        self._key_frame = key_frame
        self._frame = value_frame
        self._transaction = self._sequence = self._now = b""

    def begin(self, transaction: bytes, sequence: bytes, now: bytes) -> None:
        """Take what all records of a transaction or a snapshot share."""
        self._transaction = transaction
        self._sequence = sequence
        self._now = now

    def insert(self, message: bytes, pos: int, lsn: int, ordinal: int, op: bytes) -> list[Record] | None:
        """Encode a change that has a new tuple alone: an Insert, or an Update without an old tuple."""
        try:
            row, end = self._tuple(message, pos)
            if end != len(message):
                return None
            value = b"".join([self._frame, b"\x00\x02", *row, *self._source(lsn, ordinal), op, self._now])
            return [(0, self._key(row), value)]
        except _REFUSED:
            return None

    def change(self, message: bytes, pos: int, lsn: int, ordinal: int, op: bytes) -> list[Record] | None:
        """Encode an Update with the whole old tuple that leaves the key as it is."""
        try:
            old, end = self._tuple(message, pos)
            if message[end : end + 1] != b"N":
                return None
            new, end = self._tuple(message, end + 1)
            key = self._key(new)
            if end != len(message) or self._key(old) != key:
                return None
            source = self._source(lsn, ordinal)
            return [(0, key, b"".join([self._frame, _VALUE, *old, _VALUE, *new, *source, op, self._now]))]
        except _REFUSED:
            return None

    def remove(self, message: bytes, pos: int, lsn: int, ordinal: int, op: bytes) -> list[Record] | None:
        """Encode a Delete."""
        try:
            old, end = self._tuple(message, pos)
            if end != len(message):
                return None
            key = self._key(old)
            event = b"".join([self._frame, _VALUE, *old, _NULL, *self._source(lsn, ordinal), op, self._now])
            return [(0, key, event), (1, key, None)] if key else [(0, key, event)]
        except _REFUSED:
            return None

    def snapshot(self, line: bytes, ordinal: int, op: bytes) -> tuple[bytes, bytes] | None:
        """Encode a row of a snapshot, a line of COPY."""
        try:
            row = [
                null if field is None else write(field)
                for (write, null), field in zip(self._columns, split_copy(line), strict=True)
            ]
            source = (self._transaction, zigzag(ordinal), _NULL)
            return self._key(row), b"".join([self._frame, b"\x00\x02", *row, *source, op, self._now])
        except _REFUSED:
            return None

    def _tuple(self, message: bytes, pos: int) -> tuple[list[bytes], int]:
        """Encode the columns of the TupleData at `pos`; return them and the position behind, maybe past the end."""
        if _count_at(message, pos)[0] != len(self._columns):
            raise ValueError
        pos += 2
        row = []
        padded = message + _PAD
        for write, null in self._columns:
            tag, length = _field_at(padded, pos)
            if tag == 116:  # t
                pos += 5 + length
                row.append(write(message[pos - length : pos]))
            elif tag == 110:  # n
                row.append(null)
                pos += 1
            else:
                raise ValueError
        return row, pos

    def _key(self, row: list[bytes]) -> bytes:
        key = self._key_frame
        for i in self._key_columns:
            if len(row[i]) < 2:
                raise ValueError
            key += row[i][1:]
        return key

    def _source(self, lsn: int, ordinal: int) -> tuple[bytes, ...]:
        """Return what stands between the rows and the operation."""
        digits = b"%d" % lsn
        if len(digits) > 18:
            raise ValueError
        length = _LENGTHS[len(self._sequence) + len(digits) + 2]
        return self._transaction, _VALUE, zigzag(lsn), zigzag(ordinal), length, self._sequence, digits, b'"]'


def _writer(column: ValueType) -> tuple[Write, bytes]:
    """Return how a column's values are written, and its NULL."""
    if column.kind is Kind.EXCLUDED:
        return lambda _: b"", b""
    write = _WRITERS.get(column.kind)
    if write is not None:
        return write, _NULL
    if column.kind is Kind.DECIMAL and column.scale > 0:
        return partial(_decimal, column.scale, partial(_any, column, Buffer())), _NULL
    if column.kind in _MEMOS:
        return lru_cache(_MEMO)(_MEMOS[column.kind]), _NULL
    return partial(_any, column, Buffer()), _NULL


def _any(column: ValueType, out: Buffer, text: bytes) -> bytes:
    """Write a value of any kind, as all forms do."""
    out.clear()
    out.put_byte(2)
    put_value(column.kind, column, text, 0, len(text), out)
    whole: bytes = out.whole()
    return whole


_LENGTHS = [_VALUE + zigzag(length) for length in range(1024)]


def _string(text: bytes) -> bytes:
    length = len(text)
    return (_LENGTHS[length] if length < 1024 else _VALUE + zigzag(length)) + text


def _integer(text: bytes) -> bytes:
    if not text.isdigit() and not (text.startswith(b"-") and text[1:].isdigit()):
        raise ValueError
    number = int(text)
    if len(text) > 18 and (b"%d" % number != text or not -(2**63) <= number < 2**63):
        raise ValueError
    return _VALUE + zigzag(number)


_BOOLEANS = {b"t": b"\x02\x01", b"f": b"\x02\x00"}

_pack_double = struct.Struct("<d").pack


def _float(text: bytes) -> bytes:
    # of what Python takes for a float, only what PostgreSQL prints; its words are left to others
    if len(text) > 64 or text.translate(None, b"0123456789+-.eE"):
        raise ValueError
    return _VALUE + _pack_double(float(text))


def _date(text: bytes) -> bytes:
    return _VALUE + zigzag(date_days(text))


def _time(text: bytes) -> bytes:
    return _VALUE + zigzag(time_micros(text))


_day = lru_cache(_MEMO)(date_days)


@lru_cache(_MEMO)
def _minute(text: bytes) -> int:
    """Return when the minute of `YYYY-MM-DD HH:MM:` begins, in microseconds."""
    if text[10] != 32:
        raise ValueError
    return _day(text[:10]) * 86_400_000_000 + time_micros(text[11:] + b"00")


def _timestamp(text: bytes) -> bytes:
    seconds = text[17:]
    if len(seconds) == 9 and seconds[2] == 46:
        digits = seconds[:2] + seconds[3:]
        if not digits.isdigit():
            raise ValueError
        micros = int(digits)
    else:
        micros = time_micros(b"00:00:" + seconds)
    return _VALUE + zigzag(_minute(text[:17]) + micros)


def _timestamptz(text: bytes) -> bytes:
    if text[-3:] != b"+00":
        raise ValueError
    return _timestamp(text[:-3])


def _decimal(scale: int, otherwise: Write, text: bytes) -> bytes:
    """Write a decimal with a fraction; `otherwise` does the long ones, and says no to what is none."""
    whole, fraction = text[: -scale - 1], text[-scale:]
    digits = whole + fraction
    if len(text) > 18 or text[-scale - 1] != 46 or not digits.isdigit():
        return otherwise(text)
    number = int(digits)
    size = number.bit_length() // 8 + 1
    return b"%c%c%b" % (2, 2 * size, number.to_bytes(size, "big"))


_WRITERS: dict[Kind, Write] = {
    Kind.STRING: _string,
    Kind.INT: _integer,
    Kind.BOOL: _BOOLEANS.__getitem__,
    Kind.DOUBLE: _float,
}

_MEMOS: dict[Kind, Write] = {
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamptz,
}
