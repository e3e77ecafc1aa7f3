"""`/metrics`: what `Health` knows in Prometheus' form, gathered when somebody asks, in base units.

Times are timestamps rather than ages, so that `time() - x` grows while the daemon does not answer. The lag is an age:
it grows by itself while a change is missing, and is 0 otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cdc.ops.health import STATES, Health

_WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")


class HealthCollector(Collector):
    """Reads counters that exist anyway; labels are bounded by the tables captured and the codes of errors."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        yield _labelled("build_info", "1, with the version.", "version", {version("tailrace"): 1})
        yield from self._daemon()
        yield from self._topics()
        yield from self._reads()
        yield from self._source()

    def _daemon(self) -> Iterator[Metric]:
        health = self._health
        state = health.state
        yield _labelled("state", "1 for what the daemon does.", "state", {each: int(each == state) for each in STATES})
        yield _gauge("ready", "1 when /readyz says so.", int(health.ready()[0]))
        stall = health.stall
        yield _gauge("stalled", "1 when the position does not move although there is WAL.", int(stall is not None))
        yield _counter("sessions", "Times the stream was begun, the first one counted.", health.sessions)
        errors = CounterMetricFamily("tailrace_errors", "Errors that ended a session, by code.", labels=["code"])
        for code, count in dict(health.errors).items():
            errors.add_metric([code], count)
        yield errors

    def _topics(self) -> Iterator[Metric]:
        health = self._health
        record = health.record
        if record is not None:
            here = record.here
            yield _gauge("flushed_lsn_bytes", "LSN up to which all is in Kafka.", here.flushed_lsn)
            if here.commit_ts_us:
                yield _gauge(
                    "source_commit_timestamp_seconds",
                    "When the newest transaction in Kafka was committed at the source.",
                    here.commit_ts_us / 1e6,
                )
            yield _gauge("incomplete_tables", "Tables in the middle of their copy.", len(record.incomplete_tables))
            parked = GaugeMetricFamily(
                "tailrace_parked_tables", "1 for each table that is set aside, by its error.", labels=["table", "code"]
            )
            for table, code in record.parked.items():
                if code:
                    parked.add_metric([table, code], 1)
            yield parked
            yield _counter("diverted_changes", "Changes in the dead-letter topic.", record.diverted)
        if health.committed_at is not None:
            yield _gauge("last_commit_timestamp_seconds", "When Kafka last took a transaction.", health.committed_at)
        lag_s = health.lag_seconds()
        if lag_s is not None:
            yield _gauge(
                "lag_seconds",
                "Time since the oldest change that is not in Kafka was committed; 0 when there is none.",
                lag_s,
            )
            yield _gauge(
                "complete_timestamp_seconds",
                "All that was committed at the source by then is in Kafka: the time of asking less the lag.",
                time.time() - lag_s,
            )
        yield _counter("kafka_transactions", "Transactions committed to Kafka.", health.kafka_transactions)
        records = CounterMetricFamily("tailrace_records", "Records committed to Kafka, by topic.", labels=["topic"])
        for topic, count in dict(health.records).items():
            records.add_metric([topic], count)
        yield records

    def _reads(self) -> Iterator[Metric]:
        chunks = GaugeMetricFamily(
            "tailrace_snapshot_chunks", "Chunks of the newest read of a table.", labels=["table", "state"]
        )
        rows = GaugeMetricFamily("tailrace_snapshot_rows", "Rows that read has sent.", labels=["table"])
        size = GaugeMetricFamily("tailrace_snapshot_bytes", "Bytes of table in its chunks.", labels=["table", "state"])
        for each in list(self._health.reads.values()):
            chunks.add_metric([each.table, "done"], each.chunks_done)
            chunks.add_metric([each.table, "left"], each.chunks - each.chunks_done)
            size.add_metric([each.table, "done"], each.size_done)
            size.add_metric([each.table, "left"], each.size - each.size_done)
            rows.add_metric([each.table], each.rows)
        yield from (chunks, size, rows)

    def _source(self) -> Iterator[Metric]:
        health, source = self._health, self._health.source
        yield _counter("heartbeats", "Logical messages written to move the slot.", health.heartbeats)
        if source is None:
            return
        yield _gauge(
            "missing_tables", "Tables that match source.tables and are in no publication.", len(health.missing)
        )
        yield _gauge("server_wal_lsn_bytes", "LSN of the end of the server's WAL.", source.wal_lsn)
        yield _gauge("looked_timestamp_seconds", "When the source was last asked for what follows.", source.at)
        slot = source.slot
        if slot is None:
            return
        yield _gauge("slot_confirmed_flush_lsn_bytes", "LSN confirmed to the server.", slot.confirmed_flush_lsn)
        if source.retained_bytes is not None:
            yield _gauge("slot_retained_wal_bytes", "WAL that the server keeps for the slot.", source.retained_bytes)
        if slot.safe_wal_size is not None:
            yield _gauge(
                "slot_safe_wal_bytes", "WAL until the slot may be lost, if there is a limit.", slot.safe_wal_size
            )
        if health.full_at is not None:
            yield _gauge(
                "slot_full_timestamp_seconds",
                "When the slot reaches its limit if all goes on as of late; no value when it does not fill.",
                health.full_at,
            )
        statuses = {each: int(each == slot.wal_status) for each in _WAL_STATUSES}
        yield _labelled("slot_wal_status", "1 for pg_replication_slots.wal_status.", "status", statuses)


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tailrace_{name}", what, value)


def _counter(name: str, what: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"tailrace_{name}", what, value)


def _labelled(name: str, what: str, label: str, values: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tailrace_{name}", what, labels=[label])
    for each, value in values.items():
        family.add_metric([each], value)
    return family


class Metrics:
    """All metrics of a daemon: its own, and memory, CPU and start of its process."""

    def __init__(self, health: Health) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(HealthCollector(health))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return them in Prometheus' text format, version 0.0.4."""
        return generate_latest(self._registry)
