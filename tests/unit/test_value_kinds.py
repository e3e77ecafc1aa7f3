"""The codec, as compiled here and interpreted, encodes each kind of value as the Avro specification says.

It has the kinds as C integers, which must equal those of `Kind`; a compiled module shows them only by what it writes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from types import ModuleType

import pytest

from tailrace.schemas.encode import encoder as imported
from tailrace.schemas.types import EXCLUDED, Kind, ValueType
from tests.support.interpreted import interpreted

_HASH = hmac.new(b"salt", b"x", hashlib.sha256).hexdigest().encode()
_VALUES = {
    Kind.STRING: (ValueType(Kind.STRING, "string", "string"), b"ab", b"\x04ab"),
    Kind.INT: (ValueType(Kind.INT, "long", "bigint"), b"-3", b"\x05"),
    Kind.BOOL: (ValueType(Kind.BOOL, "boolean", "boolean"), b"t", b"\x01"),
    Kind.FLOAT: (ValueType(Kind.FLOAT, "float", "float"), b"1.5", struct.pack("<f", 1.5)),
    Kind.DOUBLE: (ValueType(Kind.DOUBLE, "double", "double"), b"1.5", struct.pack("<d", 1.5)),
    Kind.DECIMAL: (ValueType(Kind.DECIMAL, "bytes", "decimal", scale=3, precision=20), b"1.234", b"\x04\x04\xd2"),
    Kind.DATE: (ValueType(Kind.DATE, "int", "date"), b"1970-01-02", b"\x02"),
    Kind.TIME: (ValueType(Kind.TIME, "long", "bigint"), b"00:00:00.000002", b"\x04"),
    Kind.TIMESTAMP: (ValueType(Kind.TIMESTAMP, "long", "x"), b"1970-01-01 00:00:00.000003", b"\x06"),
    Kind.TIMESTAMPTZ: (ValueType(Kind.TIMESTAMPTZ, "long", "x"), b"1970-01-01 00:00:00.000004+00", b"\x08"),
    Kind.BYTES: (ValueType(Kind.BYTES, "bytes", "binary"), b"\\xff00", b"\x04\xff\x00"),
    Kind.ARRAY: (ValueType(Kind.ARRAY, "array", "x", ValueType(Kind.INT, "int", "int")), b"{1}", b"\x02\x02\x02\x00"),
    Kind.MAP: (ValueType(Kind.MAP, "map", "x"), b'"a"=>NULL', b"\x02\x02a\x00\x00"),
    Kind.VECTOR: (ValueType(Kind.VECTOR, "array", "x"), b"[1,2]", b"\x04" + struct.pack("<ff", 1, 2) + b"\x00"),
    Kind.MASKED: (ValueType(Kind.MASKED, "string", "string", keep=2), b"abcd", b"\x08**cd"),
    Kind.HASHED: (ValueType(Kind.HASHED, "string", "string", salt=b"salt"), b"x", b"\x80\x01" + _HASH),
}
"""For each kind: a type, a value as PostgreSQL prints it, and its Avro bytes."""

_FRAMING_BYTES = 5  # before the Avro bytes: a zero and the schema's number


def _encode(module: ModuleType, kind: Kind) -> bytes:
    column, text, _ = _VALUES[kind]
    encoder = module.TableEncoder(module.Names("v", "n", "d", "s", "t"), [column, EXCLUDED], [0], 1, 2)
    return bytes(encoder.row_key([text, b"never encoded"])[_FRAMING_BYTES:])


@pytest.mark.parametrize("module", [imported, interpreted()[imported.__name__]], ids=["imported", "interpreted"])
def test_each_kind_is_encoded_as_specified(module: ModuleType) -> None:
    assert {kind: _encode(module, kind) for kind in _VALUES} == {kind: avro for kind, (_, _, avro) in _VALUES.items()}
    assert _VALUES.keys() | {Kind.EXCLUDED} == set(Kind)


@pytest.mark.parametrize("module", [imported, interpreted()[imported.__name__]], ids=["imported", "interpreted"])
def test_no_byte_of_an_excluded_column_is_encoded(module: ModuleType) -> None:
    def inserted(*columns: ValueType) -> object:
        encoder = module.TableEncoder(module.Names("v", "n", "d", "s", "t"), columns, [0], 1, 2)
        encoder.begin(1, 1000, 1_700_000_000_000, 7, 1_700_000_000_000)
        row = struct.pack(">H", len(columns)) + b"t\0\0\0\x011" * len(columns)
        return encoder.insert(b"I\0\0\0\1N" + row, 6, 990, 0)

    number = _VALUES[Kind.INT][0]
    assert inserted(number, EXCLUDED) == inserted(number)
