"""End Kafka transactions with the position record, then confirm the LSN to PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from tailrace.cdc.changes.dead_letters import Refusals
from tailrace.cdc.tables.position import Progress
from tailrace.cdc.tables.shapes import Tables
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import Position, format_lsn
from tailrace.schemas.records.position import position_key
from tailrace.sinks.kafka.producer import KafkaSink

log = structlog.get_logger()

_PROGRESS_BYTES_PER_S = 500_000
"""Maximum growth of the progress topic: each record lists all partitions of possibly many tables."""

_SHORTEST_REST, _LONGEST_REST = 0.25, 9.0
"""Pause after a commit, as a multiple of the commit's duration.

After few bytes, a longer pause would add latency, and a shorter one would load Kafka with tiny transactions. After many
bytes, the pause limits commits, during which nothing is read, to a tenth of the time.
"""

_MANY_BYTES = 1_000_000
"""The transaction size, in bytes, from which the pause is longest."""


class Delivery:
    """Commit Kafka transactions; call `on_flushed` with the LSN that Kafka has reached after each."""

    def __init__(
        self, config: Config, sink: KafkaSink, tables: Tables, progress: Progress, stop: threading.Event
    ) -> None:
        self.sink = sink
        self.refusals = Refusals(config, sink.outbox, tables.destinations)
        self.slot = config.source.slot
        self.stop = stop
        self.on_flushed: Callable[[int], None] = lambda lsn: None
        self._limits = config.delivery
        self._tables = tables
        self.progress = progress
        self._committed_at = time.monotonic()
        self._rest_s = 0.0
        self.began_ns = 0
        """The time, in nanoseconds since 1970, at which the end of the newest transaction began."""

    @property
    def full(self) -> bool:
        """Whether the open transaction has reached its size limit; then even a source transaction is split."""
        return self.sink.pending_bytes >= self._limits.max_transaction_bytes

    def due(self) -> bool:
        """Whether the open transaction has reached its size limit or its age limit."""
        return self.full or (self.sink.pending and self.since_commit() * 1000 >= self._limits.max_transaction_ms)

    def since_commit(self) -> float:
        """Return the seconds since the last commit."""
        return time.monotonic() - self._committed_at

    def rest(self) -> float:
        """Return the seconds until the next commit pays off, once all received changes are sent.

        The pause is proportional to the duration of the last commit. Changes after an idle time are committed at once;
        a steady flow is committed in groups, which grow with the flow and with Kafka's latency.
        """
        return max(0.0, self._rest_s - self.since_commit())

    def commit(
        self, position: Position, flushed_lsn: int, commit_us: int, open_xid: int | None, rest_s: float = 0.0
    ) -> None:
        """End the Kafka transaction with the position record; call `on_flushed` when Kafka has committed it.

        `rest_s` is a minimum, in seconds, for the pause until the next commit.
        """
        began, self.began_ns = time.monotonic(), time.time_ns()
        share = self.sink.pending_bytes / _MANY_BYTES * _LONGEST_REST
        counts = self.sink.flush()
        record = self.progress.record(
            position=position,
            flushed_lsn=flushed_lsn,
            commit_us=commit_us,
            open_xid=open_xid,
            counts=counts,
            diverted=self.refusals.flushed(),
            destinations=self._tables.destinations,
            incomplete=self._tables.registry.incomplete | self._tables.registry.unsettled,
            parked=self._tables.registry.parked,
        )
        value = record.to_json()
        self.sink.commit(position_key(self.slot), value)
        self._committed_at = time.monotonic()
        log.debug(
            "transaction committed",
            position=str(position),
            flushed_lsn=format_lsn(flushed_lsn),
            records=sum(record.counts.values()),
            seconds=round(self._committed_at - began, 3),
        )
        rest = min(max(share, _SHORTEST_REST), _LONGEST_REST)
        rest_s = max(rest * (self._committed_at - began), len(value) / _PROGRESS_BYTES_PER_S, rest_s)
        self._rest_s = min(rest_s, self._limits.max_transaction_ms / 1000)
        self._tables.toast.commit(record.here)
        self.on_flushed(self.progress.acknowledged(record))
