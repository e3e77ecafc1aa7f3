"""Decode the newest records of a small span in this process, into the same rows as `latest.changes` in Spark."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, Final

import orjson
import pyarrow as pa  # type: ignore[import-untyped]
from fastavro import parse_schema, schemaless_reader
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tailrace.schemas.avro import without_logical_types
from tailrace.schemas.envelope import FRAMING_SIZE
from tailrace.schemas.evolution import row_record
from tailrace.sinks.target.protocol import DELETED
from tailrace.spark_jobs.topics.latest import Facts
from tailrace.spark_jobs.topics.shapes import TableShapes
from tailrace.spark_jobs.topics.small_span import NewestRecords

_SCHEMAS: Final = 256
"""Maximum number of parsed schemas that are retained."""

_AS_THEY_ARE: Final = (BinaryType, BooleanType, DoubleType, FloatType, IntegerType, LongType, StringType)

_EXACT: Final = Context(prec=76)


def decoded(newest: NewestRecords, facts: Facts, shapes: TableShapes) -> tuple[pa.Table, StructType] | None:
    """Return the rows of `latest.changes` as an Arrow table, and their Spark schema.

    None if Spark has to decode them: a record has an older schema, whose values would have to be converted, or a
    column a type that is not known here.
    """
    row, key = shapes.rows[next(reversed(shapes.rows))], shapes.keys[next(reversed(shapes.keys))]
    columns = row.types
    are_newest = facts.ids <= {row.id} and facts.key_ids <= {key.id}
    if not are_newest or any(columns.get(name) != kind for name, kind in key.types.items()):
        return None
    makers = [_maker(kind) for kind in columns.values()]
    read_row, read_key = _decoder(row.until_row, is_row=True), _decoder(key.writer, is_row=False)
    rows: list[dict[str, Any]] = []
    deleted: list[bool] = []
    for record in newest.after_truncates():
        found = None if record.value is None else read_row(record.value)
        deleted.append(found is None)
        # the key bytes identify a deleted row
        rows.append(read_key(record.key) or {} if found is None else found)
    schema = StructType([*(StructField(name, kind) for name, kind in columns.items()), _DELETED_FIELD])
    arrays: list[pa.Array] = []
    for name, make in zip(columns, makers, strict=True):
        if make is None:
            return None
        arrays.append(make([each.get(name) for each in rows]))
    return pa.Table.from_arrays([*arrays, pa.array(deleted, pa.bool_())], schema=to_arrow_schema(schema)), schema


_DELETED_FIELD: Final = StructField(DELETED, BooleanType(), nullable=False)


@lru_cache(maxsize=_SCHEMAS)
def _decoder(text: str, *, is_row: bool) -> Callable[[bytes], dict[str, Any] | None]:
    """Return the decoder of a schema's records into values by column; None for an envelope without a row."""
    whole = orjson.loads(text)
    record = row_record(text) if is_row else whole
    names = {field["name"]: field.get("column", field["name"]) for field in record["fields"]}
    schema = parse_schema(without_logical_types(whole))

    def read(raw: bytes) -> dict[str, Any] | None:
        found: Any = schemaless_reader(io.BytesIO(raw[FRAMING_SIZE:]), schema, None)
        if is_row:
            found = found["after"]
        return None if found is None else {names[name]: value for name, value in found.items()}

    return read


def _maker(kind: DataType) -> Callable[[Sequence[Any]], pa.Array] | None:
    """Return what makes an array of Avro's values without logical types; None for a type that is not known here."""
    arrow = to_arrow_type(kind)
    if isinstance(kind, _AS_THEY_ARE):
        return partial(pa.array, type=arrow)
    if isinstance(kind, DecimalType):
        return partial(_decimals, scale=kind.scale, arrow=arrow)
    if isinstance(kind, DateType):
        return lambda values: pa.array(values, pa.int32()).cast(arrow)
    if isinstance(kind, TimestampType | TimestampNTZType):
        return lambda values: pa.array(values, pa.int64()).cast(arrow)
    if isinstance(kind, MapType) and isinstance(kind.valueType, _AS_THEY_ARE):
        return lambda values: pa.array([None if each is None else list(each.items()) for each in values], arrow)
    if isinstance(kind, ArrayType):
        item = _maker(kind.elementType)
        return None if item is None else partial(_lists, item=item, arrow=arrow)
    return None


def _decimals(values: Sequence[bytes | None], *, scale: int, arrow: pa.DataType) -> pa.Array:
    unscaled = (None if each is None else int.from_bytes(each, "big", signed=True) for each in values)
    return pa.array([None if each is None else Decimal(each).scaleb(-scale, _EXACT) for each in unscaled], arrow)


def _lists(
    values: Sequence[Sequence[Any] | None], *, item: Callable[[Sequence[Any]], pa.Array], arrow: pa.DataType
) -> pa.Array:
    ends = accumulate((len(each or ()) for each in values), initial=0)
    items = item([each for found in values for each in found or ()])
    nulls = pa.array([each is None for each in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), items, mask=nulls).cast(arrow)
