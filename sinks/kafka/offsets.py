"""First and end offsets of topic partitions, for comparison with a stored cut."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import StateError
from tailrace.schemas.records.position import RECORDS_LOST
from tailrace.sinks.control.positions import TIMEOUT, leaderless
from tailrace.sinks.kafka.admin import kafka_error
from tailrace.sinks.kafka.options import client_options


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offset range of one partition: the first available offset, and the end (last offset + 1)."""

    first: int
    end: int


def loss(found: Sequence[Bounds], offsets: Sequence[int], *, whole: bool = True) -> str | None:
    """Return a sentence if partitions have lost records before `offsets`, the next offset of each; else None.

    `whole`: the first record counts, too. Compaction moves neither the first nor the end offset of a partition.
    """
    for partition, (bounds, offset) in enumerate(zip(found, offsets, strict=False)):
        if bounds.end < offset:
            return f"Partition {partition} ends at offset {bounds.end}, the cut at {offset}."
        if bounds.first and whole:
            return f"Partition {partition} begins at offset {bounds.first}, not 0."
    return None


def records_lost(topic: str, detail: str, hint: str) -> StateError:
    """Return the error (TR-424) for a topic that has lost records."""
    return StateError(
        RECORDS_LOST,
        f'topic "{topic}" has lost records (deleted, recreated or truncated)',
        detail=detail,
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """The bounds of every partition of the existing topics, and the number of brokers."""

    topics: dict[str, list[Bounds]]
    brokers: int


def topic_bounds(kafka: Kafka, topics: Collection[str]) -> Seen:
    """Return the bounds of those of `topics` that exist. SinkError if Kafka does not answer.

    With several brokers, one that has just restarted may not know all topics yet.
    """
    try:
        return _topic_bounds(AdminClient({**client_options(kafka), "log_level": 0}), topics)
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None


@retry(
    retry=retry_if_exception(leaderless),
    wait=wait_fixed(0.1),
    stop=stop_after_delay(TIMEOUT),
    reraise=True,
)
def _topic_bounds(admin: AdminClient, topics: Collection[str]) -> Seen:
    known = admin.list_topics(timeout=TIMEOUT)
    there = known.topics
    partitions = [
        TopicPartition(topic, partition) for topic in topics if topic in there for partition in there[topic].partitions
    ]
    found: dict[str, list[Bounds]] = {}
    if partitions:
        earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
        first = admin.list_offsets(dict.fromkeys(partitions, earliest), request_timeout=TIMEOUT)
        end = admin.list_offsets(dict.fromkeys(partitions, latest), request_timeout=TIMEOUT)
        for each in sorted(partitions, key=lambda each: (each.topic, each.partition)):
            found.setdefault(each.topic, []).append(Bounds(first[each].result().offset, end[each].result().offset))
    return Seen(found, len(known.brokers))
