"""A table's schemas in Spark: decode records of each, and convert older shapes to the newest.

A record is decoded with the schema that it was written with, without the fields that a view does not need. Columns are
then mapped to the newest shape by name. Avro's schema resolution is not used for that: it would read a decimal of
another scale as if it had the new scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final

import orjson
from pyspark import SparkContext
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StructType,
    TimestampType,
)

from tailrace.schemas.avro import SOURCE_NAME
from tailrace.schemas.envelope import FRAMING_SIZE, framing
from tailrace.schemas.errors import StateError
from tailrace.schemas.evolution import envelope_until_row, row_record
from tailrace.schemas.keyless import no_key
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.spark.java_classes import java_class
from tailrace.spark_jobs.query.catalog import COMMIT_LSN, COMMITTED_AT, captured

_OPTIONS: Final = {"mode": "FAILFAST", "datetimeRebaseMode": "CORRECTED"}
"""Dates before 1582 are in the proleptic Gregorian calendar, as PostgreSQL's are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns of a key or a row under one schema id.

    `fields` maps a column to its field in the result of `decode`. `change` is the reader schema for the parts of a
    row's envelope that history needs: op, commit time and both images. `until_row` is a row's `writer` without the
    fields behind the row, empty for a key: to skip each of their values takes a third of the decoding.
    """

    id: int
    writer: str
    reader: str
    fields: dict[str, str]
    types: dict[str, DataType]
    change: str = ""
    until_row: str = ""

    def decode(self, raw: Column) -> Column:
        """Decode framed bytes; null if they have another schema id."""
        return self._decode(raw, self.until_row or self.writer, self.reader)

    def decode_change(self, raw: Column) -> Column:
        """Decode a row's framed envelope in the same way: before, after, source.ts_ms, op."""
        return self._decode(raw, self.writer, self.change)

    def _decode(self, raw: Column, writer: str, reader: str) -> Column:
        body = F.substring(raw, FRAMING_SIZE + 1, 2**31 - 1)
        mine = F.substring(raw, 1, FRAMING_SIZE) == F.lit(bytearray(framing(self.id)))
        options = _literal_map({**_OPTIONS, "avroSchema": reader})
        return F.when(mine, F.call_function("from_avro", body, F.lit(writer), options))


@dataclass(frozen=True, slots=True)
class TableShapes:
    """All shapes of one topic by schema id, in the order of the schemas topic; views show the last one."""

    topic: str
    keys: dict[int, Shape]
    rows: dict[int, Shape]
    captured: Mapping[str, bool] = field(default_factory=dict)
    """If there are no row shapes: the captured tables, and whether each has a key, for a hint."""
    commits: Mapping[str, DataType] = field(default_factory=dict)
    """The commit columns that rows have beside their own."""
    used: frozenset[int] = frozenset()
    """Ids of the records to apply: the schemas topic may be ahead of them, with another key."""

    @property
    def ids(self) -> set[int]:
        return self.keys.keys() | self.rows.keys()

    @property
    def newest(self) -> set[int]:
        return {*list(self.keys)[-1:], *list(self.rows)[-1:]}

    @property
    def columns(self) -> dict[str, DataType]:
        return {**self.rows[next(reversed(self.rows))].types, **self.commits}

    def with_commits(self) -> TableShapes:
        """Return the same with the commit columns that no column of the table has the name of."""
        kinds: dict[str, DataType] = {COMMIT_LSN: LongType(), COMMITTED_AT: TimestampType()}
        own = self.columns if self.rows else {}
        return replace(self, commits={name: kind for name, kind in kinds.items() if name not in own})

    def columns_of(self, ids: Iterable[int]) -> dict[str, DataType]:
        """Return the columns of these schemas and of the newest one; of each column, its newest type."""
        found: dict[str, DataType] = {}
        wanted = {*ids, next(reversed(self.rows))}
        # not by number: a registry gives a schema that comes again the id that it had
        for number in (number for number in self.rows if number in wanted):
            found |= self.rows[number].types
        return found

    @property
    def key_shape(self) -> Shape:
        """The newest key that the records to apply have, else the newest.

        ConfigError (TR-508) if the topic has no schema of keys.
        """
        if not self.keys:
            raise no_key(None, self.topic)
        applied = [shape for number, shape in self.keys.items() if number in self.used]
        return (applied or list(self.keys.values()))[-1]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of `key_shape`."""
        return tuple(self.key_shape.types)

    def align(self, column: str, value: Column, shape: Shape, to: DataType | None = None) -> Column:
        """Convert a column of an older shape to its present type, or `to`. StateError if values could be lost."""
        old, new = shape.types[column], to or self.columns[column]
        if _same(old, new):
            return value
        if not widens(old, new):
            raise StateError(
                "TR-520",
                f'column "{column}" of topic "{self.topic}" changed from {old.simpleString()} to {new.simpleString()}',
                detail=f"Rows written before the change (schema {shape.id}) cannot be converted without loss.",
                hint="tailrace snapshot start TABLE  # reads the table again, so that all rows have the new type",
            )
        return value.cast(new)


def _literal_map(values: dict[str, str]) -> Column:
    """Return a map as a literal, for the options of `from_avro`.

    PySpark's `from_avro` turns its options into an expression that Spark evaluates whenever it compares plans. That
    expression has state, so that two threads at the same time find keys twice, or miss some.
    """
    literal, utils, kind = _spark_classes()
    return Column(utils.column(literal.create(_jvm().PythonUtils.toScalaMap(values), kind)))


@cache
def _spark_classes() -> tuple[Any, Any, Any]:
    # Cached, so that their methods are looked up once.
    types = java_class(_jvm(), "org.apache.spark.sql.types.DataTypes")
    kind = types.createMapType(types.StringType, types.StringType, False)
    literal = java_class(_jvm(), "org.apache.spark.sql.catalyst.expressions.Literal")
    return literal, java_class(_jvm(), "org.apache.spark.sql.classic.ExpressionUtils"), kind


def _jvm() -> Any:
    context = SparkContext._active_spark_context
    assert context is not None
    return context._jvm


def table_shapes(session: SparkSession, topic: str, stored: Iterable[StoredSchema]) -> TableShapes:
    """Return the shapes of `topic` that `stored` has, in the same order: the newest last."""
    keys: dict[int, Shape] = {}
    rows: dict[int, Shape] = {}
    stored = list(stored)
    for schema in stored:
        if schema.subject == f"{topic}-key":
            keys[schema.id] = _shape(session, schema, orjson.loads(schema.schema), is_row=False)
        elif schema.subject == f"{topic}-value":
            rows[schema.id] = _shape(session, schema, row_record(schema.schema), is_row=True)
    known = {} if rows else captured(topic.partition(".")[0], stored)
    return TableShapes(topic, keys, rows, known)


def widens(old: DataType, new: DataType) -> bool:
    """Whether `new` has every value of `old`, and Iceberg can change a column's type that way."""
    if isinstance(old, IntegerType):
        return isinstance(new, LongType)
    if isinstance(old, FloatType):
        return isinstance(new, DoubleType)
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return old.scale == new.scale and old.precision <= new.precision
    return False


def _same(old: DataType, new: DataType) -> bool:
    return old.simpleString() == new.simpleString()


def _shape(session: SparkSession, stored: StoredSchema, record: dict[str, Any], *, is_row: bool) -> Shape:
    """Return a schema's shape; the types come from Spark, so that they are those of decoded values."""
    plain = _plain(record)
    text = orjson.dumps(plain).decode()
    found = session.range(0).select(from_avro(F.lit(None).cast("binary"), text).alias("it")).schema["it"].dataType
    assert isinstance(found, StructType)
    names = {
        field.get("column", field["name"]): numbered["name"]
        for field, numbered in zip(record["fields"], plain["fields"], strict=True)
    }
    types = {column: _nullable(found[name].dataType) for column, name in names.items()}
    change = until_row = ""
    if is_row:
        until_row = envelope_until_row(stored.schema)
        after = {"name": "after", "type": ["null", plain], "default": None}
        text = _envelope(record, [after])
        before = {**after, "name": "before"}
        named = {**after, "type": ["null", f"{record['namespace']}.{record['name']}"]}
        source = {"type": "record", "name": SOURCE_NAME, "fields": [{"name": "ts_ms", "type": "long"}]}
        about: list[dict[str, Any]] = [{"name": "source", "type": source}, {"name": "op", "type": "string"}]
        change = _envelope(record, [before, named, *about])
    return Shape(stored.id, stored.schema, text, names, types, change, until_row)


def _envelope(record: dict[str, Any], fields: list[dict[str, Any]]) -> str:
    envelope = {"type": "record", "name": "Envelope", "namespace": record.get("namespace", ""), "fields": fields}
    return orjson.dumps(envelope).decode()


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Number the fields: where the session's settings do not apply, Spark equates "id" and "Id".

    No number is the name of a column: Avro would read that column in its place.
    """
    prefix = "c"
    while any(field["name"].lower().startswith(prefix) for field in record["fields"]):
        prefix += "_"
    fields = [
        {**field, "name": f"{prefix}{number}", "aliases": [field["name"]], "type": _without_time_of_day(field["type"])}
        for number, field in enumerate(record["fields"])
    ]
    return {**record, "fields": fields}


def _nullable(found: DataType) -> DataType:
    return ArrayType(_nullable(found.elementType)) if isinstance(found, ArrayType) else found


def _without_time_of_day(avro: Any) -> Any:
    """Replace the time-of-day type by its integer: microseconds since midnight (`schemas.types`).

    24:00 is a time of day, too.
    """
    if isinstance(avro, list):
        return [_without_time_of_day(branch) for branch in avro]
    if isinstance(avro, dict):
        if avro.get("logicalType") == "time-micros":
            return avro["type"]
        return {
            name: _without_time_of_day(value) if name in ("type", "items", "values", "fields") else value
            for name, value in avro.items()
        }
    return avro
