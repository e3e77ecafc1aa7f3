"""Rows of an Arrow table as bytes, one value per row, and back.

A row is a JSON list of plain values: floats as their bits, timestamps as microseconds, decimals as text, bytes as hex
digits. So that every value comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import orjson

FORM: Final = 1
"""The form of the bytes; rows of another one are not read."""


@dataclass(frozen=True)
class RowForm:
    """The columns of a table with their Arrow types, less those of nested types, which have no such form."""

    columns: Mapping[str, Any]
    key: tuple[str, ...]
    what: str = ""
    """Which rows they are, if their columns do not say it."""

    @property
    def identity(self) -> list[Any]:
        """What tells this form from others, as JSON."""
        columns = [[name, str(kind)] for name, kind in self.columns.items()]
        return [FORM, columns, list(self.key), *([self.what] if self.what else [])]

    @cached_property
    def schema(self) -> Any:
        """The Arrow schema of decoded rows."""
        import pyarrow as pa  # type: ignore[import-untyped]

        return pa.schema(list(self.columns.items()))

    def differs(self, one: bytes, other: bytes, names: Collection[str]) -> bool:
        """Whether two rows differ in one of the named columns."""
        values = zip(self.columns, orjson.loads(one), orjson.loads(other), strict=True)
        return any(mine != its for name, mine, its in values if name in names)

    def aligned(self, rows: Any) -> Any:
        """Return an Arrow table or batch with these columns and types; one that it lacks is NULL."""
        import pyarrow as pa

        there = set(rows.schema.names)
        return pa.table(
            [
                rows.column(name).cast(kind) if name in there else pa.nulls(rows.num_rows, kind)
                for name, kind in self.columns.items()
            ],
            schema=self.schema,
        )

    def encode(self, rows: Any) -> list[bytes]:
        """Return the bytes of each row of an aligned table."""
        columns = [_plain(rows.column(name)) for name in self.columns]
        return [orjson.dumps(row) for row in zip(*columns, strict=True)]

    def decode(self, rows: Sequence[bytes]) -> Any:
        """Return the Arrow table of encoded rows."""
        import pyarrow as pa

        columns: Iterable[Sequence[Any]] = (
            zip(*map(orjson.loads, rows), strict=True) if rows else [()] * len(self.columns)
        )
        return pa.table(
            [_typed(values, kind) for values, kind in zip(columns, self.columns.values(), strict=True)],
            schema=self.schema,
        )


def has_form(kind: Any) -> bool:
    """Whether values of an Arrow type can be encoded."""
    import pyarrow.types as types  # type: ignore[import-untyped]

    checks: tuple[Callable[[Any], bool], ...] = (
        types.is_string,
        types.is_large_string,
        types.is_boolean,
        types.is_signed_integer,
        types.is_float32,
        types.is_float64,
        types.is_decimal128,
        types.is_date32,
        types.is_binary,
        types.is_large_binary,
    )
    return any(check(kind) for check in checks) or (types.is_timestamp(kind) and kind.unit == "us")


def _plain(column: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.types as types

    column, kind = _one(column), column.type
    if types.is_floating(kind):
        return list(column.view(pa.int64() if types.is_float64(kind) else pa.int32()).to_pylist())
    if types.is_timestamp(kind):
        return list(column.cast(pa.int64()).to_pylist())
    if types.is_date32(kind):
        return list(column.cast(pa.int32()).to_pylist())
    values = column.to_pylist()
    if types.is_decimal(kind):
        return [None if value is None else f"{value:f}" for value in values]
    if types.is_binary(kind) or types.is_large_binary(kind):
        return [None if value is None else value.hex() for value in values]
    return list(values)


def _typed(values: Sequence[Any], kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_floating(kind):
        return pa.array(values, pa.int64() if types.is_float64(kind) else pa.int32()).view(kind)
    if types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if types.is_decimal(kind):
        return pa.array([None if value is None else Decimal(value) for value in values], kind)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return pa.array([None if value is None else bytes.fromhex(value) for value in values], kind)
    return pa.array(values, kind)


def _one(column: Any) -> Any:
    """Return a column's values as one array."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
