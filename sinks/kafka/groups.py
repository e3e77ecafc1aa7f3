"""Publish each view's applied cut as consumer group offsets, so that Kafka's own tools show its lag.

Tailrace never reads these offsets: the targets store their own cuts.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.reasons import reason
from tailrace.schemas.records.position import Cut
from tailrace.sinks.kafka.options import client_options


class Groups:
    """Commits offsets for the groups ``{prefix}.{view}`` asynchronously."""

    def __init__(self, kafka: Kafka) -> None:
        self._admin = AdminClient({**client_options(kafka), "log_level": 0})
        self._prefix = kafka.prefix
        self._asked: dict[str, Future[Any]] = {}

    def commit(self, view: str, cut: Cut) -> str | None:
        """Start to commit the cut's offsets; return the error of the view's previous commit, if it failed."""
        failed = self._failure(view)
        applied = [
            TopicPartition(topic, partition, offset)
            for topic, offsets in cut.offsets.items()
            for partition, offset in enumerate(offsets)
        ]
        if applied:
            group = f"{self._prefix}.{view}"
            asked = self._admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, applied)])
            self._asked[view] = asked[group]
        return failed

    def _failure(self, view: str) -> str | None:
        asked = self._asked.get(view)
        if asked is None or not asked.done():
            return None
        error = asked.exception()
        if isinstance(error, KafkaException):
            return str(error.args[0].str())
        return None if error is None else reason(error)
