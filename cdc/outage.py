"""Kafka does not answer: the slot is kept until it does, so that nobody else begins what cannot succeed either."""

from __future__ import annotations

import threading
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas.config import Kafka
from sinks.options import client_options

_EVERY_S: Final = 1.0
_ANSWER_S: Final = 5.0


class Outage:
    """Asks Kafka from time to time; `over` is one attempt, of a few seconds at most."""

    def __init__(self, kafka: Kafka, stop: threading.Event) -> None:
        self._stop = stop
        more = {"log_level": 0, "reconnect.backoff.max.ms": 1000}
        self._client = AdminClient({**client_options(kafka), **more})

    def over(self) -> bool:
        """Return whether Kafka answers, or `stop` is set; else after a pause."""
        try:
            self._client.list_topics(timeout=_ANSWER_S)
        except KafkaException:
            return self._stop.wait(_EVERY_S)
        return True
