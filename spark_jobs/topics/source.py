"""Read the raw records of a topic between two cuts as one DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

import orjson
from pyspark.sql import DataFrame, SparkSession

from tailrace.schemas.config.model import Kafka
from tailrace.sinks.kafka.options import java_options

EARLIEST = -2

_POLL_RECORDS: Final = 5000
"""Maximum records per poll; the default of 500 costs half of the reading time. The bytes per poll stay those of a
fetch (1 MiB or one batch)."""

_END_MS: Final = 10
"""Maximum wait of the broker, in ms, for more data at the end of a span, which is often a transaction marker. The
default of 500 ms applies to each partition of a quiet topic in turn."""

_SLICE_RECORDS: Final = 25_000
_SLICES_A_CORE: Final = 4
_SLICE_MOST_RECORDS: Final = 200_000
"""Maximum records of a task: meanwhile, the batches of other views wait for its core. More tasks cost CPU, those of
half as many records a quarter of the reading."""

FEW_RECORDS: Final = 10_000
"""Spans of fewer records are read in one task: in this and all later stages, a task costs more than its work."""


def records(
    session: SparkSession,
    kafka: Kafka,
    topic: str,
    start: Sequence[int],
    end: Sequence[int],
    more: Sequence[str] = (),
) -> DataFrame | None:
    """Return the committed records from `start` up to `end`; None if the span is empty.

    The columns are key, value, partition and offset, and those in `more` (of Spark's Kafka source: timestamp, headers).

    `start` and `end` list the next offset per partition, as cuts do. A partition that is missing in `start` is read
    from its beginning. The last record is at ``end - 1`` or before: compaction may have dropped that one.
    """
    ranges = {
        partition: (first if first > 0 else EARLIEST, stop)
        for partition, (first, stop) in enumerate(spans(start, end))
        if stop > first
    }
    if not ranges:
        return None
    reader = session.read.format("kafka").option("assign", _json({topic: list(ranges)}))
    reader = reader.option("kafka.max.poll.records", _POLL_RECORDS).option("kafka.fetch.max.wait.ms", _END_MS)
    count = records_between(start, end)
    if (tasks := slices(count, session.sparkContext.defaultParallelism)) > len(ranges):
        reader = reader.option("minPartitions", tasks)
    for name, value in java_options(kafka).items():
        reader = reader.option(f"kafka.{name}", value)
    found = (
        reader.option("kafka.isolation.level", "read_committed")
        .option("startingOffsets", _json({topic: {str(p): first for p, (first, _) in ranges.items()}}))
        .option("endingOffsets", _json({topic: {str(p): stop for p, (_, stop) in ranges.items()}}))
        .option("includeHeaders", "headers" in more)
        .load()
        .select("key", "value", "partition", "offset", *more)
    )
    return found.coalesce(1) if count < FEW_RECORDS else found


def records_between(start: Sequence[int], end: Sequence[int]) -> int:
    """Return the maximum number of records from `start` up to `end`."""
    return sum(stop - first for first, stop in spans(start, end))


def spans(start: Sequence[int], end: Sequence[int]) -> list[tuple[int, int]]:
    """Return the start and end offset of each partition; one that is missing in `start` begins at 0."""
    return list(zip(chain(start, repeat(0)), end, strict=False))


def slices(count: int, cores: int) -> int:
    """Return the number of tasks for `count` records: three partitions on two cores would leave one idle."""
    return max(min(count // _SLICE_RECORDS, _SLICES_A_CORE * cores), count // _SLICE_MOST_RECORDS)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
