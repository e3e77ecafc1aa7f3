"""Read the committed records of a topic between two offsets of each partition, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import SinkError
from tailrace.sinks.control.positions import TIMEOUT
from tailrace.sinks.kafka.admin import kafka_error
from tailrace.sinks.kafka.options import client_options

_BATCH: Final = 5000
_RETRIED: Final = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)


def read_up_to(kafka: Kafka, topic: str, spans: Sequence[tuple[int, int]]) -> Iterator[Message]:
    """Yield the records from the first offset of each partition up to its end, in order within a partition.

    It waits until a transaction that ends there is readable. SinkError if Kafka does not answer for `TIMEOUT` seconds.
    """
    consumer = Consumer(
        {
            **client_options(kafka),
            "group.id": "tailrace-reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    left = {number: end for number, (first, end) in enumerate(spans) if end > first}
    try:
        consumer.assign([TopicPartition(topic, number, spans[number][0]) for number in left])
        answered = time.monotonic()
        while left:
            for message in consumer.consume(_BATCH, 0.2):
                number, offset, error = message.partition(), message.offset(), message.error()
                if error is not None and error.code() in _RETRIED:
                    continue
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise kafka_error(kafka, error)
                if number is None or offset is None:
                    continue
                answered = time.monotonic()
                if error is None and offset < left.get(number, 0):
                    yield message
                # the offset of an end is that of the next record: markers of transactions have offsets, too
                if offset + (error is None) >= left.get(number, 0):
                    left.pop(number, None)
            if left and time.monotonic() - answered > TIMEOUT:
                raise SinkError(
                    "TR-330",
                    f'Kafka at "{kafka.bootstrap}" cannot be read',
                    detail=f'Topic "{topic}" has not answered for {TIMEOUT:.0f} s.',
                    hint=f"Is the broker running and reachable? kcat -b {kafka.bootstrap} -L",
                )
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None
    finally:
        consumer.close()
