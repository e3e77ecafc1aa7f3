"""Move the ends of topics without records forward, so that offsets are not used twice.

Kafka has no request for it. Records of an aborted transaction take offsets, no reader of committed records sees them,
and they compress to almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException, Producer

from tailrace.schemas.config.model import Kafka
from tailrace.sinks.control.positions import TIMEOUT
from tailrace.sinks.kafka.admin import kafka_error
from tailrace.sinks.kafka.offsets import topic_bounds
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.read_topic import messages_to

_SLICE: Final = 50_000
"""Records per transaction. Bounds the memory of the producer's queue, 100 bytes each."""

_KEY: Final = b"\0"
"""A compacted topic accepts no record without a key."""


@dataclass(frozen=True, slots=True)
class Fill:
    """The offsets of a topic that are being skipped: `done` of `total`, of all partitions."""

    topic: str
    done: int
    total: int


def skip_offsets(
    kafka: Kafka,
    ends: Mapping[str, Sequence[int]],
    transactional_id: str,
    may_continue: Callable[[Fill], bool] = lambda _: True,
) -> set[str]:
    """Move the end offsets of each topic's partitions to `ends` or past them; return the topics for which it is done.

    A topic with a committed record, or with a partition that begins after its offset 0, is left unchanged. One that was
    left half done continues. About 5 s per million offsets. `may_continue` is called before each 50,000 offsets
    of a topic; if it returns false, this topic and the remaining ones are left as they are. SinkError if Kafka
    refuses.
    """
    options = client_options(kafka)
    producer = Producer(
        {
            **options,
            "transactional.id": transactional_id,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2 * _SLICE,
            "log_level": 0,
        }
    )
    try:
        # aborts a transaction that an earlier attempt has left open: a reader would wait for its end
        producer.init_transactions(TIMEOUT)
        skipped = set()
        for topic, bounds in topic_bounds(kafka, ends).topics.items():
            if any(each.first for each in bounds) or any(messages_to(options, topic, [each.end for each in bounds])):
                continue
            counts = [max(0, end - found.end) for found, end in zip(bounds, ends[topic], strict=True)]
            if not _skip_all(producer, topic, counts, may_continue):
                break
            skipped.add(topic)
        return skipped
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None


def _skip_all(producer: Producer, topic: str, counts: Sequence[int], may_continue: Callable[[Fill], bool]) -> bool:
    """Skip these numbers of offsets of the partitions; return whether all are skipped."""
    done, total = 0, sum(counts)
    for partition, count in enumerate(counts):
        left = count
        while left > 0:
            if not may_continue(Fill(topic, done, total)):
                return False
            now = min(left, _SLICE)
            _skip(producer, topic, partition, now)
            left, done = left - now, done + now
    return True


def _skip(producer: Producer, topic: str, partition: int, count: int) -> None:
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, None, _KEY, partition)
    producer.flush(TIMEOUT)
    producer.abort_transaction(TIMEOUT)
