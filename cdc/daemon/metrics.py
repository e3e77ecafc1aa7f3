"""`/metrics`: the state of a daemon in Prometheus' text format, collected on request, in base units.

Times are timestamps rather than ages, so that `time() - x` grows while the daemon does not answer. The lag is an age:
it grows while a change is missing and is 0 otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tailrace.cdc.health.health import STATES, Health

_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")


@dataclass(frozen=True, slots=True)
class Description:
    """The kind, help text and labels of a metric; `when` says when it is absent."""

    kind: Literal["gauge", "counter"]
    text: str
    labels: tuple[str, ...] = ()
    when: str = ""


_STARTED = "absent until the first Kafka transaction"
_ASKED = "absent until the source has been asked"
_LAG = "absent at a start and while the source cannot be asked"

DESCRIPTIONS: Final = {
    "build_info": Description("gauge", "1, with the version.", ("version",)),
    "state": Description("gauge", "1 for the daemon's current state, 0 for the others.", ("state",)),
    "ready": Description("gauge", "1 if /readyz answers 200."),
    "stalled": Description("gauge", "1 if the position does not move although the server writes WAL."),
    "sessions": Description("counter", "Sessions started, including the first."),
    "errors": Description("counter", "Errors that ended a session, by code.", ("code",)),
    "flushed_lsn_bytes": Description("gauge", "LSN up to which Kafka has all changes.", when=_STARTED),
    "source_commit_timestamp_seconds": Description(
        "gauge", "Source commit time of the newest transaction in Kafka.", when="absent until a change is in Kafka"
    ),
    "incomplete_tables": Description("gauge", "Tables of which no cut is a state.", when=_STARTED),
    "parked_tables": Description("gauge", "1 for each parked table, by the code of its error.", ("table", "code")),
    "diverted_changes": Description("counter", "Changes in the dead-letter topic.", when=_STARTED),
    "last_commit_timestamp_seconds": Description(
        "gauge", "Time of the newest commit of a Kafka transaction.", when=_STARTED
    ),
    "lag_seconds": Description(
        "gauge", "Age of the oldest committed change that is not in Kafka; 0 if there is none.", when=_LAG
    ),
    "complete_timestamp_seconds": Description(
        "gauge", "Kafka has everything that was committed by this time: the time of the scrape less the lag.", when=_LAG
    ),
    "kafka_transactions": Description("counter", "Transactions committed to Kafka."),
    "records": Description("counter", "Records committed to Kafka, by topic.", ("topic",)),
    "snapshot_chunks": Description("gauge", "Chunks of a table's newest read: done or left.", ("table", "state")),
    "snapshot_bytes": Description("gauge", "Bytes of the table in these chunks: done or left.", ("table", "state")),
    "snapshot_rows": Description("gauge", "Rows sent by a table's newest read.", ("table",)),
    "heartbeats": Description("counter", "Logical messages written to move the slot."),
    "missing_tables": Description("gauge", "Tables that match source.tables and are in no publication.", when=_ASKED),
    "server_wal_lsn_bytes": Description("gauge", "LSN of the end of the server's WAL.", when=_ASKED),
    "looked_timestamp_seconds": Description("gauge", "Time of the newest query of the source's state.", when=_ASKED),
    "slot_confirmed_flush_lsn_bytes": Description("gauge", "LSN confirmed to the server.", when=_ASKED),
    "slot_retained_wal_bytes": Description("gauge", "WAL that the server retains for the slot.", when=_ASKED),
    "slot_safe_wal_bytes": Description(
        "gauge", "WAL that can be written until the slot may be lost.", when="absent without max_slot_wal_keep_size"
    ),
    "slot_full_timestamp_seconds": Description(
        "gauge", "Time at which the slot reaches its limit at the present rate.", when="absent if it does not fill"
    ),
    "slot_wal_status": Description("gauge", "1 for the slot's pg_replication_slots.wal_status.", ("status",)),
}
"""All metrics by name, without the prefix ``tailrace_``; the reference page is generated from it."""

Samples = Mapping[tuple[str, ...], float]


class HealthCollector(Collector):
    """Collector of `Health`; labels are bounded by the captured tables and the registered error codes."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        yield _by_label("build_info", {(version("tailrace"),): 1})
        yield from self._daemon()
        yield from self._topics()
        yield from self._reads()
        yield from self._source()

    def _daemon(self) -> Iterator[Metric]:
        health = self._health
        state = health.state
        yield _by_label("state", {(each,): each == state for each in STATES})
        yield _single("ready", health.ready()[0])
        yield _single("stalled", health.stall is not None)
        yield _single("sessions", health.sessions)
        yield _by_label("errors", {(code,): count for code, count in dict(health.errors).items()})

    def _topics(self) -> Iterator[Metric]:
        health = self._health
        record = health.record
        if record is not None:
            here = record.here
            yield _single("flushed_lsn_bytes", here.flushed_lsn)
            if here.commit_ts_us:
                yield _single("source_commit_timestamp_seconds", here.commit_ts_us / 1e6)
            yield _single("incomplete_tables", len(record.incomplete_tables))
            yield _by_label("parked_tables", {(table, code): 1 for table, code in record.parked.items() if code})
            yield _single("diverted_changes", record.diverted)
        if health.committed_at is not None:
            yield _single("last_commit_timestamp_seconds", health.committed_at)
        lag_s = health.lag_seconds()
        if lag_s is not None:
            yield _single("lag_seconds", lag_s)
            yield _single("complete_timestamp_seconds", time.time() - lag_s)
        yield _single("kafka_transactions", health.kafka_transactions)
        yield _by_label("records", {(topic,): count for topic, count in dict(health.records).items()})

    def _reads(self) -> Iterator[Metric]:
        reads = list(self._health.reads.values())
        chunks = ((each.table, each.chunks_done, each.chunks - each.chunks_done) for each in reads)
        sizes = ((each.table, each.size_done, each.size - each.size_done) for each in reads)
        yield _by_label("snapshot_chunks", _done_and_left(chunks))
        yield _by_label("snapshot_bytes", _done_and_left(sizes))
        yield _by_label("snapshot_rows", {(each.table,): each.rows for each in reads})

    def _source(self) -> Iterator[Metric]:
        health, source = self._health, self._health.source
        yield _single("heartbeats", health.heartbeats)
        if source is None:
            return
        yield _single("missing_tables", len(health.missing))
        yield _single("server_wal_lsn_bytes", source.wal_lsn)
        yield _single("looked_timestamp_seconds", source.at)
        slot = source.slot
        if slot is None:
            return
        yield _single("slot_confirmed_flush_lsn_bytes", slot.confirmed_flush_lsn)
        if source.retained_bytes is not None:
            yield _single("slot_retained_wal_bytes", source.retained_bytes)
        if slot.safe_wal_size is not None:
            yield _single("slot_safe_wal_bytes", slot.safe_wal_size)
        if health.full_at is not None:
            yield _single("slot_full_timestamp_seconds", health.full_at)
        yield _by_label("slot_wal_status", {(each,): each == slot.wal_status for each in _WAL_STATUSES})


def _done_and_left(reads: Iterable[tuple[str, int, int]]) -> Samples:
    return {(table, state): count for table, done, left in reads for state, count in (("done", done), ("left", left))}


def _single(name: str, value: float) -> Metric:
    """Return the family of a metric that has one sample."""
    return _by_label(name, {(): value})


def _by_label(name: str, samples: Samples) -> Metric:
    """Return the family of a metric with a sample for each tuple of label values."""
    found = DESCRIPTIONS[name]
    family = (CounterMetricFamily if found.kind == "counter" else GaugeMetricFamily)(
        f"tailrace_{name}", found.text, labels=found.labels
    )
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


class Metrics:
    """All metrics of a daemon: its own, plus memory, CPU and start time of its process."""

    def __init__(self, health: Health) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(HealthCollector(health))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)
