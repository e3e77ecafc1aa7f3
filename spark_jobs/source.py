"""The records of a topic between two cuts, raw, as one DataFrame."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
from pyspark.sql import DataFrame, SparkSession

from schemas.config import Kafka
from sinks.options import java_options

EARLIEST = -2


def records(
    session: SparkSession,
    kafka: Kafka,
    topic: str,
    start: Sequence[int],
    end: Sequence[int],
    more: Sequence[str] = (),
) -> DataFrame | None:
    """Return key, value, partition and offset of what was committed from `start` up to `end`; None if that is empty.

    `more` are further columns of Spark's Kafka source: timestamp, headers.

    Both list the next offset per partition, as cuts do. A partition that `start` does not know yet is read from its
    beginning. The last record is the one at ``end - 1`` or before it: the cleaner may have dropped that one.
    """
    ranges = {
        partition: (start[partition] if partition < len(start) and start[partition] > 0 else EARLIEST, stop)
        for partition, stop in enumerate(end)
        if stop > (start[partition] if partition < len(start) else 0)
    }
    if not ranges:
        return None
    reader = session.read.format("kafka").option("assign", _json({topic: list(ranges)}))
    for name, value in java_options(kafka).items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        reader.option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", _json({topic: {str(p): first for p, (first, _) in ranges.items()}}))
        .option("endingOffsets", _json({topic: {str(p): stop for p, (_, stop) in ranges.items()}}))
        .option("includeHeaders", "headers" in more)
        .load()
        .select("key", "value", "partition", "offset", *more)
    )


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
