"""Create topics again that have lost records, so that their parked tables can be resumed.

Views and other readers continue at the offsets that they have reached. So a new topic gets no record before those
offsets: `sinks.kafka.skip_offsets` moves its ends up to the cut. The resumed table then begins with a truncate record.
Until then no cut is a state of the table (`schemas.records.position.without_lost`).

This happens at the first start after the one that parked the table, because the record that parks it also ends the
earlier cuts' being states of it. A topic that still has records is left to a person, who deletes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from tailrace.cdc.health.health import Health
from tailrace.cdc.startup.decide import Found
from tailrace.cdc.tables.destinations import table_spec
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.position import RECORDS_LOST
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_schemas
from tailrace.sinks.kafka.admin import ensure_topics, setting_errors
from tailrace.sinks.kafka.skip_offsets import Fill, skip_offsets

log = structlog.get_logger()

_EVERY_S: Final = 10.0
"""Minimum interval of the log lines about one topic."""


class FillReport:
    """Reports which offsets are being skipped: to `health`, and to the log at the begin and at most every 10 s."""

    def __init__(self, health: Health, stop: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._health = health
        self._stop = stop
        self._clock = clock
        self._topic = ""
        self._began_at = self._said_at = 0.0

    def may_continue(self, fill: Fill) -> bool:
        """Report this state; return false once the daemon is to stop. The next start continues with the rest."""
        now = self._clock()
        self._health.fills(fill)
        if fill.topic != self._topic:
            self._topic, self._began_at, self._said_at = fill.topic, now, now
            log.warning("topic is being filled with aborted records", topic=fill.topic, records=fill.total)
        elif now - self._said_at >= _EVERY_S:
            self._said_at = now
            left_s = (now - self._began_at) * (fill.total - fill.done) / max(1, fill.done)
            log.info(
                "topic fill progress",
                topic=fill.topic,
                records=f"{fill.done}/{fill.total}",
                seconds_left=round(left_s),
            )
        return not self._stop.is_set()


def renew_topics(
    config: Config, found: Found, lost: Iterable[str], transactional_id: str, health: Health, stop: threading.Event
) -> None:
    """Create the missing topics of those of the tables `lost` that the stored position has parked for it.

    Also fences producers with this transactional id. Left as they are: tables that a person leaves out, and topics with
    records, other settings or another number of partitions. A topic that is half filled when `stop` is set remains so
    until the next start; its table stays parked. SinkError if Kafka refuses.
    """
    if found.stored is None:
        return
    waiting = {name for name in lost if found.stored.parked.get(name) == RECORDS_LOST}
    cut, kafka = found.stored.here.offsets, config.kafka
    topics = {topic: cut[topic] for topic, name in found.tables.items() if name in waiting}
    topics = {name: ends for name, ends in topics.items() if len(found.topics.get(name, ends)) == len(ends)}
    if not topics:
        return
    keyed = {each.subject for each in read_schemas(kafka, Topics(kafka.prefix))}
    specs = [table_spec(kafka, name, len(ends), has_key=f"{name}-key" in keyed) for name, ends in topics.items()]
    for spec in list(specs):
        for error in setting_errors(kafka, [spec] if spec.name in found.topics else []):
            log.warning("topic not usable again", error=error.message, hint=error.hint)
            specs.remove(spec)
    ensure_topics(kafka, specs)
    ends = {each.name: topics[each.name] for each in specs}
    try:
        renewed = skip_offsets(kafka, ends, transactional_id, FillReport(health, stop).may_continue)
    finally:
        health.fills(None)
    for topic in sorted(renewed):
        log.warning("topic created again", topic=topic, table=found.tables[topic], hint="tailrace table resume")
