"""Send records with a non-transactional producer."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.schemas.config.model import Kafka
from tailrace.sinks.control.positions import TIMEOUT
from tailrace.sinks.kafka.admin import kafka_error
from tailrace.sinks.kafka.options import client_options


def send_alone(kafka: Kafka, topic: str, records: Mapping[bytes, bytes], timeout: float = TIMEOUT) -> None:
    """Send `records` (key to value) to partition 0 and wait for all acknowledgements.

    SinkError if one is missing after `timeout` seconds, or was refused.
    """
    missing = len(records)
    failed = KafkaError(KafkaError._TIMED_OUT)

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal missing, failed
        missing -= error is None
        failed = error or failed

    producer = Producer(client_options(kafka) | {"enable.idempotence": True, "log_level": 0})
    try:
        for key, value in records.items():
            producer.produce(topic, value, key, 0, on_delivery=delivered)
        producer.flush(timeout)
    except KafkaException as error:
        raise kafka_error(kafka, error.args[0]) from None
    if missing:
        raise kafka_error(kafka, failed)
