"""Decode every record of a span, for readers of all changes such as shapes `history` and `log`.

`spark_jobs.topics.latest` keeps only the newest record of each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tailrace.schemas.envelope import FRAMING_SIZE, POSITION_HEADER, SNAPSHOT_HEADER, TRUNCATE_KEY, schema_id_of
from tailrace.spark_jobs.topics.shapes import TableShapes

FIRST_RUN: Final = 1
"""The number of a table's first snapshot run (`cdc.shapes`)."""

_TRUNCATE: Final = schema_id_of(TRUNCATE_KEY)

_LEAST_MARGIN_MS: Final = 300_000
"""Upper limit of the margin, in ms: partitions of one Kafka transaction are written only roughly at the same time."""


@dataclass(frozen=True, slots=True)
class EventFacts:
    """Facts about a span that are needed before its records are decoded.

    `oldest_ms` is the oldest Kafka timestamp of its records, in ms since 1970. `ids` and `key_ids` are the schema ids
    of values and keys. `truncated` is whether there is a truncate.
    """

    records: int
    oldest_ms: int
    ids: frozenset[int]
    key_ids: frozenset[int]
    truncated: bool


def commit_lsn() -> Column:
    """Return the commit LSN of a raw record that has headers."""
    return _number(_header(POSITION_HEADER), 5)


def positioned(raw: DataFrame) -> DataFrame:
    """Extract the position from the headers, and whether the record is of the first snapshot run."""
    position = _header(POSITION_HEADER)
    return raw.select(
        "partition",
        "key",
        "value",
        _number(position, 1, 4).alias("epoch"),
        _number(position, 5).alias("lsn"),
        _number(position, 13).alias("ordinal"),
        F.unix_millis("timestamp").alias("taken_ms"),
        (_header(SNAPSHOT_HEADER) == F.lit(bytearray(FIRST_RUN.to_bytes(4, "big")))).alias("first_run"),
    )


def facts(span: DataFrame) -> EventFacts | None:
    """Return the facts of a span from `positioned`, which should be persisted; None without records."""
    framings = (F.substring(part, 1, FRAMING_SIZE) for part in ("key", "value"))
    found = span.groupBy(*framings).agg(F.count("*"), F.min("taken_ms")).collect()
    if not found:
        return None
    keys, values = ({bytes(row[n]) for row in found if row[n] is not None} for n in (0, 1))
    return EventFacts(
        records=sum(row[2] for row in found),
        oldest_ms=min(row[3] for row in found),
        ids=frozenset(map(schema_id_of, values)),
        key_ids=frozenset(map(schema_id_of, keys)) - {_TRUNCATE},
        truncated=any(schema_id_of(key) == _TRUNCATE for key in keys),
    )


def complete_from(span: DataFrame, now_ms: int, lag_ms: int, compacted: bool) -> int | None:
    """Return the lowest LSN from which on every version is present; None if only the newest are certain.

    Compaction drops a record in favor of a later one that is older than the compaction lag, `lag_ms`. So the span is
    complete from the first younger record on, and earlier records are the state at that point. A first run is one
    state, not many versions.
    """
    since = now_ms - lag_ms + min(_LEAST_MARGIN_MS, lag_ms // 10) if compacted else 0
    young = F.min(F.when(F.col("taken_ms") > since, F.col("lsn")))
    copied = F.max(F.when(F.col("first_run"), F.col("lsn") + 1))
    least, copy = span.agg(young, copied).collect()[0]
    return None if least is None else max(least, copy or 0)


def events(span: DataFrame, known: EventFacts, shapes: TableShapes) -> DataFrame:
    """Decode all records into op, epoch, lsn, ordinal, at, partition, key, bare, and the columns of their shapes.

    `op` is c, u, r, d or t.
    A deleted row has the columns that its record holds, at least its key. `bare` marks a tombstone, whose op is d.
    `at` is the commit time of the transaction; for a row read by a snapshot, the time of the read; for a tombstone,
    the Kafka timestamp.
    """
    rows = [shape for number, shape in shapes.rows.items() if number in known.ids]
    keys = [shape for number, shape in shapes.keys.items() if number in known.key_ids]
    decoded = span.select(
        "partition",
        "key",
        "epoch",
        "lsn",
        "ordinal",
        "taken_ms",
        F.col("value").isNull().alias("bare"),
        *(shape.decode_change(F.col("value")).alias(f"row{shape.id}") for shape in rows),
    )
    # Separate projections: Spark would otherwise decode once for each extracted column.
    imaged = decoded.select(
        "*",
        *(
            F.coalesce(F.col(f"row{shape.id}.after"), F.col(f"row{shape.id}.before")).alias(f"image{shape.id}")
            for shape in rows
        ),
        F.coalesce(*(F.col(f"row{shape.id}.op") for shape in rows), F.lit("d")).alias("op"),
        F.coalesce(*(F.col(f"row{shape.id}.source.ts_ms") for shape in rows), F.col("taken_ms")).alias("at_ms"),
    )
    located = imaged.select(
        "*", *(F.when(F.col("op") == "d", shape.decode(F.col("key"))).alias(f"key{shape.id}") for shape in keys)
    )
    groups = [*((f"image{shape.id}", shape) for shape in rows), *((f"key{shape.id}", shape) for shape in keys)]

    def column(name: str, kind: DataType) -> Column:
        sources = [
            shapes.align(name, F.col(group)[shape.fields[name]], shape, kind)
            for group, shape in groups
            if name in shape.fields
        ]
        return F.coalesce(*sources, F.lit(None)).cast(kind)

    return located.select(
        F.col("op").alias(OP),
        F.col("epoch").alias(EPOCH),
        F.col("lsn").alias(LSN),
        F.col("ordinal").alias(ORDINAL),
        F.timestamp_millis("at_ms").alias(AT),
        F.col("partition").alias(PARTITION),
        F.col("key").alias(KEY),
        F.col("bare").alias(BARE),
        *(column(name, kind).alias(name) for name, kind in columns_of(known, shapes).items()),
    )


def columns_of(known: EventFacts | None, shapes: TableShapes) -> Mapping[str, DataType]:
    """Return the table columns of `events`: of the records (dropped ones too) and of the newest shape."""
    return shapes.columns_of(known.ids if known else ())


OP, EPOCH, LSN, ORDINAL, AT, PARTITION, KEY, BARE = (
    f"_tailrace_{name}" for name in ("op", "epoch", "lsn", "ordinal", "at", "partition", "key", "bare")
)


def plain(found: DataFrame) -> list[str]:
    """Return the names of the table's own columns in the result of `events`."""
    return [name for name in found.columns if not name.startswith("_tailrace_")]


def each_once(found: DataFrame, keyed: bool) -> DataFrame:
    """Keep one record for each change.

    A delete is an event and a tombstone; a truncate is in every partition. At-least-once delivery may repeat a record
    with the same position.
    """
    one = found.where((F.col(OP) != "t") | (F.col(PARTITION) == 0))
    if not keyed:
        return one.dropDuplicates([LSN, ORDINAL, PARTITION])
    before = Window.partitionBy(PARTITION, KEY).orderBy(LSN, ORDINAL)
    position = F.struct(LSN, ORDINAL)
    said = F.coalesce(F.lag(position).over(before) == position, F.lit(False)) | (
        F.col(BARE) & F.coalesce(F.lag(OP).over(before) == "d", F.lit(False))
    )
    return one.select("*", said.alias("_tailrace_said")).where("NOT _tailrace_said").drop("_tailrace_said")


def _header(name: str) -> Column:
    return F.get(F.filter("headers", lambda header: header["key"] == name), 0)["value"]


def _number(raw: Column, start: int, length: int = 8) -> Column:
    return F.conv(F.hex(F.substring(raw, start, length)), 16, 10).cast("long")
