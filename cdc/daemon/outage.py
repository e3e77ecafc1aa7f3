"""Outages of Kafka or the schema registry: wait for their end.

The daemon holds the slot meanwhile, so that no standby starts a session that would fail, too.
"""

from __future__ import annotations

import threading
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.cdc.tables.schema_ids import check_registry
from tailrace.schemas.config.model import Config, Kafka
from tailrace.schemas.errors import SinkError, TailraceError
from tailrace.sinks.kafka.options import client_options

log = structlog.get_logger()

_EVERY_S: Final = 1.0
_ANSWER_S: Final = 5.0


class KafkaOutage:
    """An outage of Kafka; `over` is one attempt to reach it, of a few seconds at most."""

    def __init__(self, kafka: Kafka, stop: threading.Event) -> None:
        self._stop = stop
        more = {"log_level": 0, "reconnect.backoff.max.ms": 1000}
        self._client = AdminClient({**client_options(kafka), **more})

    def over(self) -> bool:
        """Return True if Kafka answers or `stop` is set, else False after a pause."""
        try:
            self._client.list_topics(timeout=_ANSWER_S)
        except KafkaException:
            return self._stop.wait(_EVERY_S)
        return True


class RegistryOutage:
    """An outage of the schema registry, which is needed for each new shape."""

    def __init__(self, config: Config, stop: threading.Event, error: TailraceError) -> None:
        self._config = config
        self._stop = stop
        log.warning("waiting for the schema registry", code=error.code, error=error.message, detail=error.detail)

    def over(self) -> bool:
        """Return True if the registry answers or `stop` is set, else False after a pause."""
        try:
            check_registry(self._config)
        except SinkError:
            return self._stop.wait(_EVERY_S)
        return True
