"""Valid streams to start from: recordings of servers, and rows of every kind of column."""

from __future__ import annotations

import struct
from functools import cache

from tailrace.schemas.types import TypeInfo
from tests.golden.describe import FILES, load

Field = bytes | bool | None

_COLUMNS: list[tuple[str, int, int, list[bytes]]] = [
    ("int8", 20, -1, [b"1", b"-9223372036854775808", b"42"]),
    ("text", 25, -1, [b"", "ünï".encode(), b"x" * 300]),
    ("float8", 701, -1, [b"0.1", b"-1.5e+300", b"NaN"]),
    ("float4", 700, -1, [b"19.25", b"-Infinity", b"1e-45"]),
    ("bool", 16, -1, [b"t", b"f"]),
    ("numeric", 1700, (20 << 16 | 3) + 4, [b"-0.001", b"12345678901234567.890", b"7.000"]),
    ("numeric", 1700, 38 << 16 | 4, [b"9" * 38, b"-1"]),
    ("date", 1082, -1, [b"2024-02-29", b"4713-01-01 BC", b"infinity"]),
    ("time", 1083, -1, [b"24:00:00", b"12:34:56.7"]),
    ("timestamp", 1114, -1, [b"1999-12-31 23:59:59.999999", b"0044-03-15 12:00:00 BC", b"-infinity"]),
    ("timestamptz", 1184, -1, [b"2024-02-29 12:00:00+00", b"4713-01-01 00:00:00+00 BC"]),
    ("bytea", 17, -1, [b"\\x", b"\\x00ff"]),
    ("_int4", 1007, -1, [b"{}", b"{1,NULL,-2}"]),
    ("_text", 1009, -1, [b'{a,"b,\\"c\\\\",NULL,"NULL"}']),
    ("hstore", 90001, -1, [b"", b'"a"=>"1", "b\\"c"=>NULL']),
    ("vector", 90002, -1, [b"[1,-2.5,3e-07]"]),
    ("uuid", 2950, -1, [b"6f0f8a3e-0000-4000-8000-000000000001"]),
]

TYPES = {oid: TypeInfo(oid, name, "b") for name, oid, _, _ in _COLUMNS}
TYPES[23] = TypeInfo(23, "int4", "b")
TYPES[1007] = TypeInfo(1007, "_int4", "b", element_oid=23)
TYPES[1009] = TypeInfo(1009, "_text", "b", element_oid=25)
"""The types of the corpus's columns; all other oids are text."""


def xlogdata(message: bytes, lsn: int) -> bytes:
    """Return a message with the header that it has in the COPY stream."""
    return struct.pack(">cQQq", b"w", lsn, lsn, 0) + message


def tuple_data(fields: list[Field]) -> bytes:
    """Return TupleData: False is unchanged TOAST."""
    parts = [struct.pack(">H", len(fields))]
    for field in fields:
        if isinstance(field, bytes):
            parts.append(b"t" + struct.pack(">I", len(field)) + field)
        else:
            parts.append(b"n" if field is None else b"u")
    return b"".join(parts)


def _relation(oid: int, identity: bytes, key: int) -> bytes:
    head = b"R" + struct.pack(">I", oid) + b"public\0t%d\0" % oid + identity + struct.pack(">H", len(_COLUMNS))
    return head + b"".join(
        struct.pack(">B", n < key) + f"{name}{n}".encode() + b"\0" + struct.pack(">Ii", type_oid, typmod)
        for n, (name, type_oid, typmod, _) in enumerate(_COLUMNS)
    )


def _row(n: int) -> list[Field]:
    return [values[n % len(values)] for *_, values in _COLUMNS]


def every_kind() -> list[bytes]:
    """Return a transaction with every kind of column: Insert, Update, Delete, with marks K, O and N."""
    nulls: list[Field] = [b"5", b"key"] + [None] * (len(_COLUMNS) - 2)
    keys: list[Field] = [*_row(0)[:2], *([None] * (len(_COLUMNS) - 2))]
    toast: list[Field] = [*_row(1)[:1], b"t", False, *_row(1)[3:]]
    full = tuple_data(_row(0))
    messages = [
        b"B" + struct.pack(">QqI", 5000, 7, 77),
        _relation(1, b"d", 2),
        *(b"I\0\0\0\1N" + tuple_data(_row(n)) for n in range(3)),
        b"I\0\0\0\1N" + tuple_data(nulls),
        b"U\0\0\0\1N" + tuple_data(_row(1)),
        b"U\0\0\0\1N" + tuple_data(toast),
        b"U\0\0\0\1K" + tuple_data(keys) + b"N" + tuple_data(_row(2)),
        b"U\0\0\0\1K" + tuple_data(keys) + b"N" + tuple_data(toast),
        b"D\0\0\0\1K" + tuple_data(keys),
        b"T\0\0\0\1\3\0\0\0\1",
        _relation(2, b"f", 1),
        b"U\0\0\0\2O" + full + b"N" + tuple_data(_row(1)),
        b"U\0\0\0\2O" + full + b"N" + tuple_data(toast),
        b"D\0\0\0\2O" + full,
        b"M\1" + struct.pack(">Q", 4000) + b"prefix\0" + struct.pack(">I", 2) + b"\0\xff",
        b"C\0" + struct.pack(">QQq", 5000, 5040, 7),
    ]
    return [xlogdata(message, 4000 + n) for n, message in enumerate(messages)]


def copy_lines() -> list[bytes]:
    """Return lines of COPY's text format with every kind of column."""
    escapes = {92: b"\\\\", 9: b"\\t", 10: b"\\n"}

    def escaped(value: bytes) -> bytes:
        return b"".join(escapes.get(byte, bytes([byte])) for byte in value)

    nulls = b"\t".join([b"5", b"\\N", b"\\.", *[b"\\N"] * (len(_COLUMNS) - 3)])
    return [nulls, *(b"\t".join(escaped(values[n % len(values)]) for *_, values in _COLUMNS) + b"\n" for n in range(3))]


@cache
def streams() -> list[list[bytes]]:
    """Return every recording, and the rows of every kind."""
    recorded = [[xlogdata(message, lsn) for lsn, message in load(path).messages] for path in FILES]
    return [every_kind(), *recorded]
