"""A small span of a topic in this process: a Spark job that reads it would cost many times its work."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.envelope import TRUNCATE_KEY, schema_id_of
from tailrace.schemas.errors import SinkError
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.read_topic import WAIT_AT_END, Record, drained, open_consumer, record_of
from tailrace.spark_jobs.topics.latest import Facts
from tailrace.spark_jobs.topics.source import spans

MOST_BYTES: Final = 8 << 20
"""Maximum size of the keys and values of a span that is read here."""

_IDLE_S: Final = 10.0
_AT_ONCE: Final = 1000
_OPTIONS: Final = {
    **WAIT_AT_END,
    "queued.max.messages.kbytes": 2 * MOST_BYTES >> 10,
}


@dataclass(frozen=True, slots=True)
class NewestRecords:
    """The newest record of each key in a span."""

    records: Sequence[Record]

    def facts(self) -> Facts:
        """Return the facts, as `latest.facts` finds them in Spark. ValueError for a record without framing."""
        valid = self.after_truncates()
        return Facts(
            rows=sum(each.key != TRUNCATE_KEY for each in self.records),
            truncated=self._truncated(),
            ids=frozenset(schema_id_of(each.value) for each in valid if each.value is not None),
            key_ids=frozenset(schema_id_of(each.key) for each in valid),
        )

    def after_truncates(self) -> list[Record]:
        """Return the records that no truncate of their partition follows, without the truncates."""
        truncated = self._truncated()
        return [
            each
            for each in self.records
            if each.key != TRUNCATE_KEY and each.offset > truncated.get(each.partition, -1)
        ]

    def _truncated(self) -> dict[int, int]:
        return {each.partition: each.offset for each in self.records if each.key == TRUNCATE_KEY}

    def arrow(self) -> pa.Table:
        """Return the columns that `source.records` has."""
        return pa.table(
            {
                "key": pa.array([each.key for each in self.records], pa.binary()),
                "value": pa.array([each.value for each in self.records], pa.binary()),
                "partition": pa.array([each.partition for each in self.records], pa.int32()),
                "offset": pa.array([each.offset for each in self.records], pa.int64()),
            }
        )


class SmallSpanReader:
    """Reads small spans with one consumer, which is opened by the first read; any thread may call it."""

    def __init__(self, kafka: Kafka) -> None:
        self._options = client_options(kafka) | _OPTIONS
        self._consumer: Consumer | None = None
        self._lock = threading.Lock()

    def newest(self, topic: str, start: Sequence[int], end: Sequence[int]) -> NewestRecords | None:
        """Return the newest record of each key from `start` up to `end`, as `source.records` has them.

        None if Spark has to read the span: it is larger than `MOST_BYTES`, or something is wrong with the topic, which
        Spark's source then reports.
        """
        missing = {
            partition: (first, stop) for partition, (first, stop) in enumerate(spans(start, end)) if stop > first
        }
        with self._lock:
            try:
                return self._newest(topic, missing)
            except (KafkaException, SinkError):
                self._close()
                return None

    def _newest(self, topic: str, span: dict[int, tuple[int, int]]) -> NewestRecords | None:
        consumer = self._consumer = self._consumer or open_consumer(self._options)
        consumer.assign([TopicPartition(topic, partition, first) for partition, (first, _) in span.items()])
        found: dict[tuple[int, bytes], Record] = {}
        size = 0
        try:
            ends = {partition: stop for partition, (_, stop) in span.items()}
            for messages in drained(consumer, topic, ends, _IDLE_S, _AT_ONCE):
                records = [record_of(each) for each in messages]
                size += sum(len(each.key) + len(each.value or b"") for each in records)
                if size > MOST_BYTES:
                    return None
                found.update(((each.partition, each.key), each) for each in records)
        finally:
            consumer.unassign()
        # a record without a key has none of its own
        return NewestRecords(list(found.values())) if all(key for _, key in found) else None

    def close(self) -> None:
        """Close the consumer; a later read opens another one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
