"""Turn raw records into changed rows: find the newest per key on the bytes, decode only those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tailrace.schemas.envelope import FRAMING_SIZE, TRUNCATE_KEY, schema_id_of
from tailrace.sinks.target.protocol import DELETED, DELETED_AT
from tailrace.spark_jobs.query.catalog import COMMIT_LSN, COMMITTED_AT
from tailrace.spark_jobs.topics.shapes import Shape, TableShapes


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a batch needs before its rows are read, from one pass over the newest records.

    `truncated` maps a partition to the offset of its last truncate. `ids` and `key_ids` are the schema ids of values
    and keys, without records before a truncate: their types may not be convertible to the newest ones. `deletion_ids`
    are those of the deletions that `newest_with_deletions` retains.
    """

    rows: int
    truncated: dict[int, int]
    ids: frozenset[int]
    key_ids: frozenset[int]
    deletion_ids: frozenset[int] = frozenset()

    @property
    def schema_ids(self) -> frozenset[int]:
        return self.ids | self.key_ids | self.deletion_ids


DELETION, TAKEN = "deletion", "taken_ms"
LSN: Final = "lsn"
"""Column of records whose rows are to have commit columns: the commit LSN."""


def newest(records: DataFrame) -> DataFrame:
    """Keep the last record of each key; a key is in one partition only, so offsets order its records."""
    more = [name for name in records.columns if name not in ("partition", "key", "offset")]
    last = (F.max_by(name, "offset").alias(name) for name in more)
    return records.groupBy("partition", "key").agg(*last, F.max("offset").alias("offset"))


def newest_with_deletions(records: DataFrame) -> DataFrame:
    """Keep the last record of each key like `newest`, and all truncates, with what tells the time of a deletion.

    `deletion` is the value before a tombstone, `taken_ms` the Kafka timestamp. `records` has a column timestamp.
    """
    before = F.max_by("value", F.when(F.col("value").isNotNull(), F.col("offset")))
    each_truncate = F.when(_is_truncate(), F.col("offset")).alias("truncate")
    last = records.groupBy("partition", "key", each_truncate).agg(
        F.max_by("value", "offset").alias("value"),
        F.max("offset").alias("offset"),
        F.unix_millis(F.max_by("timestamp", "offset")).alias(TAKEN),
        before.alias("before"),
    )
    return last.withColumn(DELETION, F.when(F.col("value").isNull(), F.col("before"))).drop("before", "truncate")


_WORD: Final = 64
"""Number of offsets in one word of the bitmap."""


def newest_marks(records: DataFrame) -> DataFrame:
    """Return a bitmap of the offsets of each key's last record.

    Its columns are partition, word, bits, and seen, the number of records. It is for large spans: only keys and
    offsets are grouped, by hash, whereas `newest` sorts and moves the values.
    """
    last = records.groupBy("partition", "key").agg(F.max("offset").alias("offset"), F.count("*").alias("seen"))
    return last.groupBy("partition", _word()).agg(
        F.bit_or(F.expr(f"shiftleft(1L, cast(offset % {_WORD} AS int))")).alias("bits"), F.sum("seen").alias("seen")
    )


def marked(records: DataFrame, marks: DataFrame) -> DataFrame:
    """Keep the records that `newest_marks` has marked; both DataFrames should be persisted."""
    seen, kept = marks.agg(F.sum("seen"), F.sum(F.bit_count("bits"))).collect()[0]
    if seen == kept:
        return records
    bit = F.expr(f"getbit(bits, cast(offset % {_WORD} AS int)) = 1")
    words = marks.drop("seen")
    return records.withColumn("word", _word()).join(words, ["partition", "word"]).where(bit).select(*records.columns)


def _word() -> Column:
    return F.expr(f"offset div {_WORD}").alias("word")


def facts(latest: DataFrame) -> Facts:
    """Return the facts of the newest records, which should be persisted: they are read again afterwards."""
    parts = ("key", "value", DELETION) if DELETION in latest.columns else ("key", "value")
    framings = (F.substring(part, 1, FRAMING_SIZE) for part in parts)
    found = latest.groupBy("partition", _is_truncate(), *framings).agg(F.count("*"), F.max("offset")).collect()
    truncated = {row[0]: row[-1] for row in found if row[1]}
    kept = [row for row in found if not row[1] and row[-1] > truncated.get(row[0], -1)]
    return Facts(
        rows=sum(row[-2] for row in found if not row[1]),
        truncated=truncated,
        ids=frozenset(schema_id_of(bytes(row[3])) for row in kept if row[3] is not None),
        key_ids=frozenset(schema_id_of(bytes(row[2])) for row in kept),
        deletion_ids=frozenset(schema_id_of(bytes(row[4])) for row in kept if DELETION in parts and row[4] is not None),
    )


def changes(latest: DataFrame, known: Facts, shapes: TableShapes) -> DataFrame:
    """Decode the newest records into the newest shape's columns and `DELETED`, one row per key.

    Records before a truncate in their partition are left out: the caller then replaces the whole content.
    A delete is an event, a tombstone, or both compacted to one; the key bytes identify the deleted row. Records with
    their deletions (`newest_with_deletions`) also have `DELETED_AT`: the commit time in the event, else, of a tombstone
    whose event was compacted, the time at which that was written. With the commit columns of `shapes`, records have
    their `LSN`.
    """
    timed = DELETION in latest.columns
    columns = shapes.columns
    keys = [shape for number, shape in shapes.keys.items() if number in known.key_ids]
    rows = [shape for number, shape in shapes.rows.items() if number in known.ids]
    of_deletions = known.ids | known.deletion_ids if timed else frozenset[int]()
    events = [shape for number, shape in shapes.rows.items() if number in of_deletions]
    found = _behind_truncates(latest, known.truncated)
    if shapes.commits:
        changed = (shape.decode_change(F.col("value")).alias(f"change{shape.id}") for shape in rows)
        found = found.select("key", "value", LSN, *changed)
    envelopes = {each.id: F.col(f"change{each.id}") if shapes.commits else each.decode(F.col("value")) for each in rows}
    decoded = found.select(
        F.col("key"),
        *(envelope["after"].alias(f"row{number}") for number, envelope in envelopes.items()),
        *(_commit(rows) if shapes.commits else ()),
        *((F.coalesce(DELETION, "value").alias(DELETION), F.col(TAKEN)) if timed else ()),
    )
    there = reduce(Column.__or__, (F.col(f"row{s.id}").isNotNull() for s in rows), F.lit(False))
    # A separate projection: Spark would otherwise decode once for each extracted column.
    located = decoded.select(
        "*",
        (~there).alias(DELETED),
        *(F.when(~there, shape.decode(F.col("key"))).alias(f"key{shape.id}") for shape in keys),
        *(F.when(~there, shape.decode_change(F.col(DELETION))).alias(f"event{shape.id}") for shape in events),
    )
    return located.select(
        *(
            (F.col(name) if name in shapes.commits else _column(name, shapes, rows, keys)).cast(kind).alias(name)
            for name, kind in columns.items()
        ),
        F.col(DELETED),
        *((F.when(F.col(DELETED), _time("d", events)).alias(DELETED_AT),) if timed else ()),
    )


def _commit(rows: Iterable[Shape]) -> Iterator[Column]:
    """Yield the commit columns of decoded changes."""
    yield F.col(LSN).alias(COMMIT_LSN)
    times = (F.col(f"change{shape.id}.source.ts_ms") for shape in rows)
    yield F.timestamp_millis(F.coalesce(*times, F.lit(None).cast("long"))).alias(COMMITTED_AT)


def truncates(latest: DataFrame, shapes: TableShapes) -> DataFrame:
    """Return the truncates with the rows that each one deletes: partition, offset, and `DELETED_AT`, its commit time.

    `since` is the offset of the truncate before it in its partition, else -1. `latest` is of `newest_with_deletions`.
    """
    found = latest.where(_is_truncate())
    events = _shapes_of(found, "value", shapes)
    decoded = found.select(
        *("partition", "offset", TAKEN),
        *(shape.decode_change(F.col("value")).alias(f"event{shape.id}") for shape in events),
    )
    before = F.lag("offset", 1, -1).over(Window.partitionBy("partition").orderBy("offset"))
    return decoded.select("partition", "offset", before.alias("since"), _time("t", events).alias(DELETED_AT))


def first_time(truncates: DataFrame) -> Column:
    """Return the commit time of the first of `truncates`, which are some, as a literal."""
    return F.timestamp_millis(F.lit(truncates.agg(F.unix_millis(F.min(DELETED_AT))).collect()[0][0]))


def before_truncates(latest: DataFrame, truncates: DataFrame, shapes: TableShapes) -> DataFrame:
    """Return the keys whose last record is before a truncate of its partition, with `DELETED` and `DELETED_AT`.

    That is the time of the deletion if that record is one, else that of the next truncate. Keys of another schema than
    that of `shapes` are left out: they may not be convertible. `latest` is of `newest_with_deletions`.
    """
    key = shapes.key_shape
    event = F.coalesce(DELETION, "value")
    # truncates are rare, and their rows are small
    parts = F.broadcast(truncates.withColumnsRenamed({"partition": "of", "offset": "until", DELETED_AT: "at"}))
    passed = (F.col("partition") == F.col("of")) & F.col("offset").between(F.col("since") + 1, F.col("until") - 1)
    found = latest.where(~_is_truncate()).join(parts, passed)
    found = found.select(key.decode(F.col("key")).alias("key"), "value", event.alias(DELETION), TAKEN, "at")
    events = _shapes_of(found, DELETION, shapes)
    decoded = found.where(F.col("key").isNotNull()).select(
        *("key", "value", TAKEN, "at"),
        *(shape.decode_change(F.col(DELETION)).alias(f"event{shape.id}") for shape in events),
    )
    is_deletion = reduce(
        Column.__or__,
        (F.coalesce(F.col(f"event{shape.id}.op") == "d", F.lit(False)) for shape in events),
        F.col("value").isNull(),
    )
    return decoded.select(
        *(F.col("key")[key.fields[name]].cast(shapes.columns[name]).alias(name) for name in key.types),
        F.lit(True).alias(DELETED),
        F.when(is_deletion, _time("d", events)).otherwise(F.col("at")).alias(DELETED_AT),
    )


def _shapes_of(records: DataFrame, column: str, shapes: TableShapes) -> list[Shape]:
    """Return the shapes of the rows whose events are in a column."""
    framings = records.select(F.substring(column, 1, FRAMING_SIZE)).distinct().collect()
    ids = {schema_id_of(bytes(row[0])) for row in framings if row[0] is not None}
    return [shape for number, shape in shapes.rows.items() if number in ids]


def _time(op: str, events: Iterable[Shape]) -> Column:
    """Return the commit time in an event of this kind, or the Kafka timestamp of its record."""
    told = (F.when(F.col(f"event{s.id}.op") == op, F.col(f"event{s.id}.source.ts_ms")) for s in events)
    return F.timestamp_millis(F.coalesce(*told, F.col(TAKEN)))


def _column(name: str, shapes: TableShapes, rows: Iterable[Shape], keys: Iterable[Shape]) -> Column:
    """Return a column under the record's own shape; null if that shape lacks it."""
    sources = [
        shapes.align(name, F.col(f"{prefix}{shape.id}")[shape.fields[name]], shape)
        for prefix, group in (("row", rows), ("key", keys))
        for shape in group
        if name in shape.fields
    ]
    return F.coalesce(*sources) if sources else F.lit(None)


def _behind_truncates(latest: DataFrame, truncated: dict[int, int]) -> DataFrame:
    kept = latest.where(~_is_truncate())
    for partition, offset in truncated.items():
        kept = kept.where((F.col("partition") != partition) | (F.col("offset") > offset))
    return kept


def _is_truncate() -> Column:
    return F.col("key") == F.lit(bytearray(TRUNCATE_KEY))
