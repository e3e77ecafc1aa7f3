"""The one table of PostgreSQL types: for each, the text's parser, the Avro type and the Spark type.

A value's text is the server's output under the pinned settings (`RENDERING`), the same from COPY and from pgoutput. A
type that is not listed is stored as that text, which is exact; nothing is guessed from a type's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

RENDERING: Final = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "client_encoding": "UTF8",
}
"""Settings of every connection that reads values, so that snapshot and stream have the same text."""


class Kind(IntEnum):
    """The encoding of a value's text as Avro bytes; `schemas.encode.put_value` has a branch for each."""

    STRING = 0
    INT = 1
    BOOL = 2
    FLOAT = 3
    DOUBLE = 4
    DECIMAL = 5
    DATE = 6
    TIME = 7
    TIMESTAMP = 8
    TIMESTAMPTZ = 9
    BYTES = 10
    ARRAY = 11
    MAP = 12
    VECTOR = 13
    MASKED = 14
    HASHED = 15
    EXCLUDED = 16


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """The columns of a `pg_type` row that affect values.

    `element_oid` is 0 if commas do not separate the items.
    """

    oid: int
    name: str
    typtype: str
    base_oid: int = 0
    base_typmod: int = -1
    element_oid: int = 0


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a column on the topic and in a view; `avro` is the schema of a non-null value.

    `keep` is the number of characters that MASKED leaves visible, `salt` the key of HASHED.
    """

    kind: Kind
    avro: Any
    spark: str
    item: ValueType | None = None
    scale: int = 0
    precision: int = 0
    keep: int = 0
    salt: bytes = field(default=b"", repr=False)


def _logical(avro: str, logical: str) -> dict[str, str]:
    return {"type": avro, "logicalType": logical}


_STRING = ValueType(Kind.STRING, "string", "string")
_UUID = ValueType(Kind.STRING, _logical("string", "uuid"), "string")

_BASE: Final[dict[str, ValueType]] = {
    "bool": ValueType(Kind.BOOL, "boolean", "boolean"),
    "int2": ValueType(Kind.INT, "int", "int"),
    "int4": ValueType(Kind.INT, "int", "int"),
    "int8": ValueType(Kind.INT, "long", "bigint"),
    "oid": ValueType(Kind.INT, "long", "bigint"),
    "float4": ValueType(Kind.FLOAT, "float", "float"),
    "float8": ValueType(Kind.DOUBLE, "double", "double"),
    "uuid": _UUID,
    "bytea": ValueType(Kind.BYTES, "bytes", "binary"),
    "date": ValueType(Kind.DATE, _logical("int", "date"), "date"),
    # Spark has no time-of-day type that Iceberg can store, so views hold microseconds since midnight.
    "time": ValueType(Kind.TIME, _logical("long", "time-micros"), "bigint"),
    "timestamp": ValueType(Kind.TIMESTAMP, _logical("long", "local-timestamp-micros"), "timestamp_ntz"),
    "timestamptz": ValueType(Kind.TIMESTAMPTZ, _logical("long", "timestamp-micros"), "timestamp"),
    "hstore": ValueType(Kind.MAP, {"type": "map", "values": ["null", "string"]}, "map<string,string>"),
    "vector": ValueType(Kind.VECTOR, {"type": "array", "items": "float"}, "array<float>"),
    "geometry": ValueType(Kind.BYTES, "bytes", "binary"),
    "geography": ValueType(Kind.BYTES, "bytes", "binary"),
}

_MAX_PRECISION = 38  # limit of Spark's and Iceberg's decimal
_VARHDRSZ = 4  # a typmod includes the size of the value's length word


AS_TEXT: Final = _STRING
EXCLUDED: Final = ValueType(Kind.EXCLUDED, "null", "void")


@dataclass(frozen=True, slots=True)
class Column:
    """A column as in the WAL; `is_key` marks a part of the replica identity.

    `option` replaces the form of its type, if the configuration hides its values (`schemas.config.columns`).
    """

    name: str
    type_oid: int
    typmod: int = -1
    is_key: bool = False
    option: ValueType | None = None


def value_type(column: Column, types: Mapping[int, TypeInfo]) -> ValueType:
    """Return the type of `column` on the topic; KeyError with the oid if `types` lacks its type."""
    if column.option is not None:
        return column.option
    return _of(column.type_oid, column.typmod, types)


def type_name(column: Column, types: Mapping[int, TypeInfo]) -> str:
    """Return a column's type for messages, by PostgreSQL's short name: ``numeric(10,2)``, ``int4[]``."""
    info = types[column.type_oid]
    if info.element_oid and info.name.startswith("_"):
        return f"{types[info.element_oid].name}[]"
    if info.name == "numeric" and column.typmod >= _VARHDRSZ:
        return "numeric({},{})".format(*_precision_and_scale(column.typmod))
    return info.name


def _of(oid: int, typmod: int, types: Mapping[int, TypeInfo]) -> ValueType:
    info = types[oid]
    if info.typtype == "d":
        return _of(info.base_oid, info.base_typmod, types)
    if info.typtype != "b":
        return _STRING
    if info.element_oid and info.name.startswith("_"):
        item = _of(info.element_oid, typmod, types)
        if item.item is not None or item.kind is Kind.MAP:
            return _STRING
        return ValueType(Kind.ARRAY, {"type": "array", "items": ["null", item.avro]}, f"array<{item.spark}>", item)
    if info.name == "numeric":
        return _numeric(typmod)
    return _BASE.get(info.name, _STRING)


def _numeric(typmod: int) -> ValueType:
    """Return a decimal for numeric(p,s), or text if it has no precision or exceeds a decimal's limits."""
    if typmod < _VARHDRSZ:
        return _STRING
    precision, scale = _precision_and_scale(typmod)
    if precision > _MAX_PRECISION or not 0 <= scale <= precision:
        return _STRING
    avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return ValueType(Kind.DECIMAL, avro, f"decimal({precision},{scale})", scale=scale, precision=precision)


def _precision_and_scale(typmod: int) -> tuple[int, int]:
    """Return precision and scale of a numeric's typmod.

    The scale is the lower 11 bits, signed since PostgreSQL 15.
    """
    packed = typmod - _VARHDRSZ
    return packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 0x400) - 0x400
