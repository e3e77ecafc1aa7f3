"""The bytes of a row's key in the key index: equal for keys that Spark's ``<=>`` calls equal, and for no others.

A widened type (int to bigint, float to double, decimal with more digits) leaves the bytes as they are.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any, Final

_NULL: Final = b"\x00"
_VALUE: Final = b"\x01"
_DOUBLE: Final = struct.Struct(">d")
_LENGTH: Final = struct.Struct(">I")
_NAN: Final = float("nan")


def can_be_key(kind: Any) -> bool:
    """Whether values of an Arrow type have key bytes: nested ones have none."""
    import pyarrow.types as types  # type: ignore[import-untyped]

    return bool(not types.is_nested(kind) and not types.is_null(kind) and not types.is_float16(kind))


def key_bytes(columns: Sequence[Any]) -> list[bytes]:
    """Return one key for each row of the Arrow arrays, all of one length. ValueError for a nested type."""
    encoded = [_values(column) for column in columns]
    if len(encoded) == 1:
        return [_NULL if value is None else _VALUE + value for value in encoded[0]]
    return [
        b"".join(_NULL if value is None else _VALUE + _LENGTH.pack(len(value)) + value for value in row)
        for row in zip(*encoded, strict=True)
    ]


def _values(column: Any) -> list[bytes | None]:
    import pyarrow as pa
    import pyarrow.types as types

    kind = column.type
    if not can_be_key(kind):
        raise ValueError(f"a column of type {kind} has no key bytes")
    if types.is_string(kind) or types.is_large_string(kind):
        return list(column.cast(pa.large_binary()).to_pylist())
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return list(column.to_pylist())
    if types.is_floating(kind):
        return [None if value is None else _double(value) for value in column.cast(pa.float64()).to_pylist()]
    if types.is_decimal(kind):
        return [None if value is None else f"{value:f}".encode() for value in column.to_pylist()]
    if types.is_date32(kind) or types.is_boolean(kind):
        column = column.cast(pa.int32())
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz))
    return _integers(column.cast(pa.int64()))


def _integers(column: Any) -> list[bytes | None]:
    values = array("q")
    values.frombytes(memoryview(column.buffers()[1])[8 * column.offset : 8 * (column.offset + len(column))])
    # The most significant byte first: neighbors in the table are neighbors in the index.
    values.byteswap()
    content = values.tobytes()
    found: list[bytes | None] = [content[at : at + 8] for at in range(0, len(content), 8)]
    if column.null_count:
        for at, there in enumerate(column.is_valid().to_pylist()):
            if not there:
                found[at] = None
    return found


def _double(value: float) -> bytes:
    # 0.0 and -0.0 are one key, and so are all NaN.
    return _DOUBLE.pack(_NAN if math.isnan(value) else value + 0.0)
