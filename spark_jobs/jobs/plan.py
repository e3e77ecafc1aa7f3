"""Estimate the input and the duration of a rebuild; needs only Kafka, so it works before Spark starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tailrace.schemas.config.model import Config, Kafka
from tailrace.schemas.errors import SinkError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.positions import TIMEOUT
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.read.targets import TARGETS
from tailrace.spark_jobs.views import Declared, declare

_SAMPLED: Final = 500
"""Records from the middle of a partition whose mean size represents all."""
_SAMPLE_S: Final = 3.0

_START_S: Final = 15


@dataclass(frozen=True, slots=True)
class TopicSize:
    """A topic's size up to a cut.

    `records` counts offsets, so it includes records that compaction has dropped; `bytes` is estimated from a sample.
    """

    topic: str
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Estimate for the rebuild of a view."""

    view: str
    target: str
    lsn: str
    topics: tuple[TopicSize, ...]

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics)

    @property
    def seconds(self) -> int:
        """Total duration, start included; a rough value, because it ignores the rows and the cost of a query."""
        return _START_S + round(self.records / TARGETS[self.target].records_per_s)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "records": self.records, "bytes": self.bytes, "seconds": self.seconds}

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines of text."""
        yield f"{self.view}: into the {self.target}, from offset 0 to {self.lsn}"
        for topic in self.topics:
            yield f"  {topic.topic}  at most {topic.records} records, some {topic.bytes / 1e6:.1f} MB"
        yield f"  about {self.seconds} s, at {TARGETS[self.target].records_per_s} records/s on two cores"


def plan(config: Config, name: str, cut: Cut) -> Plan:
    """Return the plan for a rebuild of a view up to the cut. ConfigError if it cannot be maintained."""
    view = declare(config, name)
    sizes = tuple(_size(config.kafka, topic, cut) for topic in view.topics)
    return Plan(name, view.target, format_lsn(cut.flushed_lsn), sizes)


def records_up_to(kafka: Kafka, view: Declared, cut: Cut) -> int:
    """Return the maximum number of records that a rebuild of a view reads."""
    return sum(sum(end - low for low, end in _spans(kafka, topic, cut)) for topic in view.topics)


def _size(kafka: Kafka, topic: str, cut: Cut) -> TopicSize:
    spans = _spans(kafka, topic, cut)
    records = sum(end - low for low, end in spans)
    return TopicSize(topic, records, round(records * _mean_bytes(kafka, topic, spans)) if records else 0)


def _spans(kafka: Kafka, topic: str, cut: Cut) -> list[tuple[int, int]]:
    """Return the first and the end offset of each partition."""
    ends = cut.offsets.get(topic, [])
    consumer = _consumer(kafka)
    try:
        lows = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=TIMEOUT)[0]
            for partition in range(len(ends))
        ]
    except KafkaException as error:
        raise SinkError(
            "TR-330",
            f'Kafka at "{kafka.bootstrap}" cannot be read',
            detail=f'Topic "{topic}": {error.args[0].str()}.',
            hint=f"Is the broker running and reachable? kcat -b {kafka.bootstrap} -L",
        ) from None
    finally:
        consumer.close()
    return [(min(low, end), end) for low, end in zip(lows, ends, strict=True)]


def _mean_bytes(kafka: Kafka, topic: str, spans: list[tuple[int, int]]) -> float:
    partition = max(range(len(spans)), key=lambda number: spans[number][1] - spans[number][0])
    low, end = spans[partition]
    consumer = _consumer(kafka)
    try:
        consumer.assign([TopicPartition(topic, partition, max(low, (low + end - _SAMPLED) // 2))])
        found = [each for each in consumer.consume(min(_SAMPLED, end - low), _SAMPLE_S) if each.error() is None]
    finally:
        consumer.close()
    sizes = [len(each.key() or b"") + len(each.value() or b"") for each in found]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _consumer(kafka: Kafka) -> Consumer:
    return Consumer(
        {**client_options(kafka), "group.id": "tailrace-reader", "enable.auto.commit": False, "log_level": 0}
    )
