"""A whole topic in this process: its newest rows, read and decoded without Spark, which takes several times as long.

One process reads, so that this is for topics of up to millions of records; Spark reads larger ones with all its tasks.
It is also left to Spark when a record has an older schema, or a truncate is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.decode.key_table import KeyTable, TooManyKeys
from tailrace.schemas.decode.rows import IS_COMPILED, KINDS, ColumnBuffers, Malformed
from tailrace.schemas.evolution import row_record
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.read_topic import PASSING, WAIT_AT_END, open_consumer
from tailrace.sinks.kafka.row_reader import RowReader, UnexpectedRecord
from tailrace.sinks.target.spooled_rows import SpooledRows
from tailrace.spark_jobs.topics.latest import Facts
from tailrace.spark_jobs.topics.shapes import Shape, TableShapes

MOST_RECORDS: Final = 5_000_000
"""Maximum number of records that are read here."""

_MOST_KEY_BYTES: Final = 256 << 20
_CHUNK_ROWS: Final = 250_000
_CHUNK_BYTES: Final = 64 << 20
_IDLE_S: Final = 10.0
_WAIT_MS: Final = 500
_OPTIONS: Final = {
    **WAIT_AT_END,
    "queued.max.messages.kbytes": 65_536,
    # by default, a full queue is looked at again after a second
    "fetch.queue.backoff.ms": 5,
}

_LOG: Final = logging.getLogger("tailrace.topics")


def row_schema(shapes: TableShapes) -> StructType:
    """Return the columns of the rows that `newest_rows` spools."""
    return StructType([StructField(name, kind) for name, kind in _newest(shapes.rows).types.items()])


def newest_rows(
    kafka: Kafka, topic: str, end: Sequence[int], shapes: TableShapes, spooled: SpooledRows
) -> Facts | None:
    """Spool the rows of a topic up to `end`, the newest of each key without the deleted ones, and return their facts.

    None if Spark has to read them, and report what is wrong with the topic, if anything.
    """
    row, key = _newest(shapes.rows), _newest(shapes.keys)
    kinds = _kinds(row)
    if not IS_COMPILED or kinds is None or any(row.types.get(name) != kind for name, kind in key.types.items()):
        return None
    consumer = open_consumer(client_options(kafka) | _OPTIONS)
    keys = KeyTable(_MOST_KEY_BYTES)
    reader = RowReader(consumer, end, (key.id, row.id), kinds, keys, _CHUNK_ROWS, _CHUNK_BYTES)
    done = False
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number, stop in enumerate(end) if stop > 0])
        done = reader.ready and _spool(reader, spooled)
    except (UnexpectedRecord, Malformed, TooManyKeys, KafkaException) as error:
        _LOG.debug("topic read by Spark: %s: %s", topic, type(error).__name__)
    finally:
        reader.close()
        consumer.close()
    facts = Facts(rows=keys.count, truncated={}, ids=frozenset({row.id}), key_ids=frozenset({key.id}))
    return facts if done else None


def _newest(shapes: dict[int, Shape]) -> Shape:
    return shapes[next(reversed(shapes))]


def _spool(reader: RowReader, spooled: SpooledRows) -> bool:
    """Read to the ends; False if nothing arrives for a while, or the topic has an error."""
    schema = pa.schema([(field.name, to_arrow_type(field.dataType)) for field in spooled.schema])
    chunks, deadline = 0, time.monotonic() + _IDLE_S
    while reader.missing:
        if reader.read(_WAIT_MS):
            deadline = time.monotonic() + _IDLE_S
        elif time.monotonic() > deadline:
            return False
        if reader.error and not _is_passing(KafkaError(reader.error)):
            return False
        if reader.is_full or (reader.rows and not reader.missing):
            rows = reader.rows
            spooled.add(arrow_table(reader.take(), rows, schema))
            chunks += 1
    spooled.leave_out([reader.gone(number) for number in range(chunks)])
    return True


def _is_passing(error: KafkaError) -> bool:
    return error.retriable() or error.code() in PASSING


def arrow_table(columns: Sequence[ColumnBuffers], rows: int, schema: pa.Schema) -> pa.Table:
    """Return columns as an Arrow table of `rows` rows."""
    arrays = [
        pa.Array.from_buffers(
            field.type,
            rows,
            [None if each is None else pa.py_buffer(each) for each in _layout(column)],
            column.nulls,
        )
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _layout(column: ColumnBuffers) -> tuple[memoryview | None, ...]:
    return (column.valid, column.data) if column.ends is None else (column.valid, column.ends, column.data)


def _kinds(row: Shape) -> list[int] | None:
    """Return the kinds of a row's fields; None if one of them is decoded by Spark only."""
    found = [_kind(field["type"]) for field in row_record(row.writer)["fields"]]
    kinds = [each for each in found if each is not None]
    return kinds if len(kinds) == len(found) else None


def _kind(avro: Any) -> int | None:
    """Return the kind of a field of the type ["null", T]."""
    if not isinstance(avro, list) or len(avro) != 2 or avro[0] != "null":
        return None
    of = avro[1]
    if isinstance(of, dict):
        of = "decimal" if of.get("logicalType") == "decimal" else of["type"]
    return KINDS.get(of) if isinstance(of, str) else None
