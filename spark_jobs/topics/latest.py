"""Turn raw records into changed rows: find the newest per key on the bytes, decode only those."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tailrace.schemas.envelope import FRAMING_SIZE, TRUNCATE_KEY, schema_id_of
from tailrace.sinks.target.protocol import DELETED
from tailrace.spark_jobs.topics.shapes import Shape, TableShapes


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a batch needs before its rows are read, from one pass over the newest records.

    `truncated` maps a partition to the offset of its last truncate. `ids` and `key_ids` are the schema ids of values
    and keys, without records before a truncate: their types may not be convertible to the newest ones.
    """

    rows: int
    truncated: dict[int, int]
    ids: frozenset[int]
    key_ids: frozenset[int]

    @property
    def schema_ids(self) -> frozenset[int]:
        return self.ids | self.key_ids


def newest(records: DataFrame) -> DataFrame:
    """Keep the last record of each key; a key is in one partition only, so offsets order its records."""
    return records.groupBy("partition", "key").agg(
        F.max_by("value", "offset").alias("value"), F.max("offset").alias("offset")
    )


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
    framings = (F.substring(part, 1, FRAMING_SIZE) for part in ("key", "value"))
    found = latest.groupBy("partition", _is_truncate(), *framings).agg(F.count("*"), F.max("offset")).collect()
    truncated = {partition: offset for partition, truncate, _, _, _, offset in found if truncate}
    kept = [row for row in found if not row[1] and row[5] > truncated.get(row[0], -1)]
    return Facts(
        rows=sum(row[4] for row in found if not row[1]),
        truncated=truncated,
        ids=frozenset(schema_id_of(bytes(row[3])) for row in kept if row[3] is not None),
        key_ids=frozenset(schema_id_of(bytes(row[2])) for row in kept),
    )


def changes(latest: DataFrame, known: Facts, shapes: TableShapes) -> DataFrame:
    """Decode the newest records into the newest shape's columns and `DELETED`, one row per key.

    Records before a truncate in their partition are left out: the caller then replaces the whole content.
    A delete is an event, a tombstone, or both compacted to one; the key bytes identify the deleted row.
    """
    columns = shapes.columns
    keys = [shape for number, shape in shapes.keys.items() if number in known.key_ids]
    rows = [shape for number, shape in shapes.rows.items() if number in known.ids]
    decoded = _behind_truncates(latest, known.truncated).select(
        F.col("key"), *(shape.decode(F.col("value"))["after"].alias(f"row{shape.id}") for shape in rows)
    )
    there = reduce(Column.__or__, (F.col(f"row{s.id}").isNotNull() for s in rows), F.lit(False))
    # A separate projection: Spark would otherwise decode once for each extracted column.
    located = decoded.select(
        "*",
        (~there).alias(DELETED),
        *(F.when(~there, shape.decode(F.col("key"))).alias(f"key{shape.id}") for shape in keys),
    )
    return located.select(
        *(_column(name, shapes, rows, keys).cast(kind).alias(name) for name, kind in columns.items()),
        F.col(DELETED),
    )


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
