"""A record outside of all transactions, by a producer that fences nobody."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.config import Kafka
from sinks.admin import kafka_error
from sinks.options import client_options
from sinks.progress import TIMEOUT


def send_alone(kafka: Kafka, topic: str, key: bytes, value: bytes, timeout: float = TIMEOUT) -> None:
    """Put one record on partition 0 and wait until it is there. SinkError if Kafka does not say so."""
    failed: list[KafkaError | None] = [KafkaError(KafkaError._TIMED_OUT)]

    def delivered(error: KafkaError | None, message: Message) -> None:
        failed[0] = error

    producer = Producer(client_options(kafka) | {"enable.idempotence": True, "log_level": 0})
    try:
        producer.produce(topic, value, key, 0, on_delivery=delivered)
        producer.flush(timeout)
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None
    if failed[0] is not None:
        raise kafka_error(kafka, failed[0])
