"""Find topics that lose records while the daemon runs: deleted by a script, or by another retention for a while.

The start parks such tables (TR-424). A running daemon would not notice: it only appends.
"""

from __future__ import annotations

import time
from typing import Final

import structlog

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import candidates
from tailrace.sinks.kafka.offsets import loss, topic_bounds

log = structlog.get_logger()

_EVERY_S: Final = 30.0


class TopicWatch:
    """Compares the topics' first and end offsets with the newest cut, at most every 30 s."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._topics = Topics(kafka.prefix)
        self._next_s = 0.0
        self.lost: tuple[str, ...] = ()
        """Tables' topics that have lost records, as of the last look. A deleted topic is none: writing to it fails."""

    def look(self, record: PositionRecord) -> None:
        """Compare the topics with the cut of a committed record; log topics that have lost records since."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _EVERY_S
        parked = {self._topics.table(*names) for table in record.parked for names in candidates(table)}
        offsets = {
            topic: ends
            for topic, ends in record.here.offsets.items()
            if topic not in self._topics.beside and topic not in parked
        }
        try:
            found = topic_bounds(self._kafka, offsets).topics
        except TailraceError:
            return  # the next look
        lost = tuple(topic for topic, bounds in sorted(found.items()) if loss(bounds, offsets[topic]))
        if set(lost) - set(self.lost):
            log.error("topics have lost records", topics=lost, hint="tailrace explain TR-424")
        self.lost = lost
