"""Publish each view's applied cut as consumer group offsets, so that Kafka's own tools show its lag.

Tailrace never reads these offsets: the targets store their own cuts.
"""

from __future__ import annotations

from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.records.position import Cut
from tailrace.sinks.kafka.options import client_options


class Groups:
    """Commits offsets for the groups ``{prefix}.{view}`` asynchronously. Memory: one consumer for each view.

    By consumers, not by librdkafka's admin client: if a broker ends during a request to a group's coordinator, that one
    aborts the process (https://github.com/confluentinc/librdkafka/issues/4605).
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._consumers: dict[str, Consumer] = {}
        self._failed: dict[str, str] = {}

    def commit(self, view: str, cut: Cut) -> str | None:
        """Start to commit the cut's offsets; return the error of the view's previous commit, if it failed."""
        consumer = self._consumers.get(view) or self._consumers.setdefault(view, self._consumer(view))
        consumer.poll(0)  # serves the callback of the previous commit
        failed = self._failed.get(view)
        applied = [
            TopicPartition(topic, partition, offset)
            for topic, offsets in cut.offsets.items()
            for partition, offset in enumerate(offsets)
        ]
        if applied:
            try:
                consumer.commit(offsets=applied, asynchronous=True)
            except KafkaException as error:
                self._committed(view, error.args[0], [])
        return failed

    def close(self) -> None:
        """Close the consumers."""
        while self._consumers:
            self._consumers.popitem()[1].close()

    def _consumer(self, view: str) -> Consumer:
        return Consumer(
            {
                **client_options(self._kafka),
                "group.id": f"{self._kafka.prefix}.{view}",
                "enable.auto.commit": False,
                "on_commit": partial(self._committed, view),
                "log_level": 0,
            }
        )

    def _committed(self, view: str, error: KafkaError | None, _: list[TopicPartition]) -> None:
        if error is None:
            self._failed.pop(view, None)
        else:
            self._failed[view] = error.str()
