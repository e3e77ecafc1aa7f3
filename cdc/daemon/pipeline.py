"""The pipeline from slot to producer, which resumes from a position, and the first copy through it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import structlog

from tailrace.cdc.backfill.exported_snapshot import ExportedSnapshot
from tailrace.cdc.backfill.first_snapshot import FirstSnapshot
from tailrace.cdc.backfill.report import Report
from tailrace.cdc.changes.delivery import Delivery
from tailrace.cdc.health.health import Health
from tailrace.cdc.startup.captured import Captured
from tailrace.cdc.tables.destinations import Destinations
from tailrace.cdc.tables.position import Progress
from tailrace.cdc.tables.registry import FIRST_RUN, TableRegistry
from tailrace.cdc.tables.schema_ids import SchemaIds, open_registry
from tailrace.cdc.tables.shapes import Tables
from tailrace.cdc.tables.stored_reads import StoredReads
from tailrace.cdc.toast.facade import Toast
from tailrace.cdc.wal.connection import Wal
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.layout import Parked
from tailrace.schemas.records.position import RECORDS_LOST, PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_schemas
from tailrace.sinks.kafka.producer import KafkaSink
from tailrace.sinks.tracing.traces import Traces
from tailrace.snapshot.pace import Pace

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Held:
    """Resources that a session owns: its slot's stream, its producer, and the stack that closes them."""

    wal: Wal
    sink: KafkaSink
    opened: ExitStack


class Pipeline:
    """The parts that the first copy and the stream share.

    `reads` are the remaining snapshot reads, which the stream continues. `opened` closes all resources of the parts.
    """

    def __init__(
        self,
        config: Config,
        captured: Captured,
        held: Held,
        health: Health,
        stop: threading.Event,
        stored: PositionRecord,
        reads: StoredReads,
    ) -> None:
        """Resume from the position record `stored`."""
        catalog, topics, opened = captured.catalog, Topics(config.kafka.prefix), held.opened
        self.config, self.captured, self.health, self.stop = config, captured, health, stop
        self.wal, self.sink, self.opened = held.wal, held.sink, opened
        self.reads = reads
        self.progress = Progress(stored)
        send = partial(self.sink.send_plain, topics.tables)
        unread = reads.unread()
        self.registry = TableRegistry(
            config.source, topics, captured.columns, self.progress, send, reads.states, unread
        )
        self.registry.reads = health.reads = reads.progress()
        for relation, error in captured.refused:
            self.registry.park(relation, error, stored.here.flushed_lsn)
        lost = {each.qualified_name: error for each, error in captured.refused if error.code == RECORDS_LOST}
        self.registry.park_lost(lost)
        stored_schemas = read_schemas(config.kafka, topics)
        schema_ids = SchemaIds(self.sink, topics.schemas, stored_schemas, open_registry(config, stored_schemas, opened))
        destinations = Destinations(
            config.kafka, catalog.keys, captured.relations, captured.partitions, stored.here.offsets
        )
        toast = Toast(config, catalog.connection, captured.identity.timeline, stored, topics.progress)
        opened.callback(toast.close)
        self.tables = Tables(config, catalog, captured.columns, schema_ids, self.registry, destinations, toast)
        self.delivery = Delivery(config, self.sink, self.tables, self.progress, stop)
        self.delivery.on_flushed = self._flushed
        self._traces = opened.enter_context(Traces(config, "tailrace", _not_sent))
        health.begin(self.sink, stored, captured.identity.lsn)
        health.parked = self._parked()
        log.info("stream resumed", position=str(stored.here.position), flushed_lsn=format_lsn(stored.here.flushed_lsn))

    def _flushed(self, lsn: int) -> None:
        """Confirm `lsn` to the server: Kafka holds everything committed before it."""
        self.wal.confirm(lsn)
        record = self.progress.newest
        self.health.committed(record)
        self._traces.committed(record.here, sum(record.counts.values()), self.delivery.began_ns)
        self.health.parked = self._parked()

    def _parked(self) -> dict[str, Parked]:
        states = self.registry.states
        named = ((name, states.get(name)) for name in self.progress.newest.parked)
        return {name: state.parked for name, state in named if state is not None and state.parked is not None}

    def copy(self, point: int, exported: ExportedSnapshot | None) -> None:
        """Store that the slot begins at `point`, and send the rows of its exported snapshot.

        The chunks that a stop leaves unread are read later, in the stream's windows.
        """
        self.health.state = "copying"
        if exported is None:
            self.delivery.commit(self.progress.newest.here.position, point, 0, None)
            return
        first = FirstSnapshot(self.delivery, self.tables, exported)
        report = Report(self.registry.reads, point, self.config.source.slot, self.captured.catalog.connection)
        first.send(Pace(self.config.snapshot.max_bytes_per_s), report)
        left = (chunk for chunks in first.left.values() for chunk in chunks)
        self.reads = StoredReads(
            self.registry.states, {(each.table, FIRST_RUN, each.n): each.to_dict() | {"done": False} for each in left}
        )


def _not_sent(why: str) -> None:
    log.warning("traces not sent", error=why)
