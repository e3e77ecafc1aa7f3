"""Metrics of the daemon: its state as values of `schemas.metrics.DAEMON`, collected on request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final

from tailrace.cdc.health.health import STATES, Health
from tailrace.schemas.metrics import DAEMON
from tailrace.sinks.serving.families import Samples, StateCollector, single

_WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")

Values = Iterator[tuple[str, Samples]]


class HealthCollector(StateCollector):
    """Collector of `Health`; labels are bounded by the captured tables and the registered error codes."""

    def __init__(self, health: Health) -> None:
        super().__init__(DAEMON)
        self._health = health

    def samples(self) -> Values:
        yield from self._daemon()
        yield from self._topics()
        yield from self._reads()
        yield from self._source()

    def _daemon(self) -> Values:
        health = self._health
        state = health.state
        yield "state", {(each,): each == state for each in STATES}
        yield "ready", single(health.ready()[0])
        yield "stalled", single(health.stall is not None)
        yield "sessions", single(health.sessions)
        yield "errors", {(code,): count for code, count in dict(health.errors).items()}

    def _topics(self) -> Values:
        health = self._health
        record = health.record
        if record is not None:
            here = record.here
            yield "flushed_lsn_bytes", single(here.flushed_lsn)
            if here.commit_ts_us:
                yield "source_commit_timestamp_seconds", single(here.commit_ts_us / 1e6)
            yield "incomplete_tables", single(len(record.incomplete_tables))
            yield "parked_tables", {(table, code): 1 for table, code in record.parked.items() if code}
            yield "diverted_changes", single(record.diverted)
            diverted = record.diverted_tables
            yield "table_diverted_changes", {(table,): each.changes for table, each in diverted.items()}
            yield "table_diverted_timestamp_seconds", {(t,): each.last_ms / 1000 for t, each in diverted.items()}
        if health.committed_at is not None:
            yield "last_commit_timestamp_seconds", single(health.committed_at)
        lag_s = health.lag_seconds()
        if lag_s is not None:
            yield "lag_seconds", single(lag_s)
            yield "complete_timestamp_seconds", single(time.time() - lag_s)
        yield "kafka_transactions", single(health.kafka_transactions)
        yield "records", {(topic,): count for topic, count in dict(health.records).items()}

    def _reads(self) -> Values:
        reads = list(self._health.reads.values())
        chunks = ((each.table, each.chunks_done, each.chunks - each.chunks_done) for each in reads)
        sizes = ((each.table, each.size_done, each.size - each.size_done) for each in reads)
        yield "snapshot_chunks", _done_and_left(chunks)
        yield "snapshot_bytes", _done_and_left(sizes)
        yield "snapshot_rows", {(each.table,): each.rows for each in reads}

    def _source(self) -> Values:
        health, source = self._health, self._health.source
        yield "heartbeats", single(health.heartbeats)
        if source is None:
            return
        yield "missing_tables", single(len(health.missing))
        yield "server_wal_lsn_bytes", single(source.wal_lsn)
        yield "looked_timestamp_seconds", single(source.at)
        slot = source.slot
        if slot is None:
            return
        yield "slot_confirmed_flush_lsn_bytes", single(slot.confirmed_flush_lsn)
        if source.retained_bytes is not None:
            yield "slot_retained_wal_bytes", single(source.retained_bytes)
        if slot.safe_wal_size is not None:
            yield "slot_safe_wal_bytes", single(slot.safe_wal_size)
        if health.full_at is not None:
            yield "slot_full_timestamp_seconds", single(health.full_at)
        yield "slot_wal_status", {(each,): each == slot.wal_status for each in _WAL_STATUSES}


def _done_and_left(reads: Iterable[tuple[str, int, int]]) -> Samples:
    return {(table, state): count for table, done, left in reads for state, count in (("done", done), ("left", left))}
