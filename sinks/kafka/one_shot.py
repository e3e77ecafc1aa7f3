"""Send records with a non-transactional producer."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.schemas.config.model import Kafka
from tailrace.sinks.control.positions import TIMEOUT
from tailrace.sinks.kafka.admin import kafka_error
from tailrace.sinks.kafka.options import client_options


def send_alone(kafka: Kafka, records: Mapping[str, Mapping[bytes, bytes]], timeout: float = TIMEOUT) -> None:
    """Send `records` (topic to key to value) to partition 0, one topic after another, and wait for acknowledgements.

    A topic's records are sent when those of the topics before it are acknowledged. All go through one producer: an
    idempotent one needs half a second for its first record. SinkError if an acknowledgement is missing after `timeout`
    seconds, or if a record was refused.
    """
    missing = 0
    failed = KafkaError(KafkaError._TIMED_OUT)

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal missing, failed
        missing -= error is None
        failed = error or failed

    producer = Producer(client_options(kafka) | {"enable.idempotence": True, "log_level": 0})
    for topic, values in records.items():
        missing = len(values)
        try:
            for key, value in values.items():
                producer.produce(topic, value, key, 0, on_delivery=delivered)
            producer.flush(timeout)
        except KafkaException as error:
            raise kafka_error(kafka, error.args[0]) from None
        if missing:
            raise kafka_error(kafka, failed)
