"""What lies between slot and producer, put together so that it goes on from a position; the first copy through it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial

import psycopg
import structlog

from tailrace.cdc.backfill.exported_snapshot import ExportedSnapshot
from tailrace.cdc.backfill.first_snapshot import FirstSnapshot
from tailrace.cdc.backfill.report import Report
from tailrace.cdc.changes.delivery import Delivery
from tailrace.cdc.health.health import Health
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.layouts import layout
from tailrace.cdc.startup.captured import Captured
from tailrace.cdc.startup.decide import Found
from tailrace.cdc.tables.position import Progress
from tailrace.cdc.tables.registry import FIRST_RUN, TableRegistry
from tailrace.cdc.tables.schema_ids import SchemaIds, open_registry
from tailrace.cdc.tables.shapes import Tables
from tailrace.cdc.tables.stored_reads import StoredReads
from tailrace.cdc.toast.facade import Toast
from tailrace.cdc.wal.connection import Wal
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_schemas
from tailrace.sinks.kafka.producer import KafkaSink
from tailrace.snapshot.pace import Pace

log = structlog.get_logger()


class Pipeline:
    """The parts that the first copy and the stream share. `reads` is what is left to be read for the stream to take up.

    What they open is closed by `opened`, which is the caller's, as are `wal` and `sink`, the slot and the producer.
    """

    def __init__(
        self,
        config: Config,
        connection: psycopg.Connection,
        found: Found,
        captured: Captured,
        columns: ColumnOptions,
        wal: Wal,
        sink: KafkaSink,
        health: Health,
        stop: threading.Event,
        opened: ExitStack,
        stored: PositionRecord,
        reads: StoredReads,
    ) -> None:
        """Go on from `stored`."""
        topics = Topics(config.kafka.prefix)
        self.config, self.connection, self.found, self.captured = config, connection, found, captured
        self.wal, self.sink, self.health, self.stop = wal, sink, health, stop
        self.opened = opened
        self.reads = reads
        self.progress = Progress(stored)
        self.registry = TableRegistry(
            config.source,
            topics,
            columns,
            self.progress,
            partial(sink.send_plain, topics.tables),
            reads.states,
            reads.unread(),
        )
        self.registry.reads = health.reads = reads.progress()
        self.toast = Toast(config, connection, found.identity.timeline, stored, topics.progress)
        opened.callback(self.toast.close)
        stored_schemas = read_schemas(config.kafka, topics)
        registry = open_registry(config, stored_schemas, opened)
        self.tables = Tables(
            config.kafka,
            connection,
            found.server.database,
            SchemaIds(sink, topics.schemas, stored_schemas, registry),
            self.registry,
            partial(layout, connection, captured.publications.names),
            captured.partitions,
            stored.here.offsets,
            captured.relations,
            captured.keys,
            columns,
            self.toast,
            CaptureSet(config.source.tables),
            stops=config.source.on_table_error == "stop",
        )
        self.delivery = Delivery(config, sink, self.tables, self.registry, self.progress, stop)
        self.delivery.on_flushed = self._flushed
        health.begin(sink, stored, found.identity.lsn)
        log.info("going on", position=str(stored.here.position), flushed_lsn=format_lsn(stored.here.flushed_lsn))

    def _flushed(self, lsn: int) -> None:
        """Kafka holds everything committed before `lsn`."""
        self.wal.confirm(lsn)
        self.health.committed(self.progress.newest)

    def copy(self, point: int, exported: ExportedSnapshot | None) -> None:
        """Store that the slot begins at `point`, and send what its snapshot shows; what a stop leaves out is for the
        stream's windows.
        """
        self.health.state = "copying"
        if exported is None:
            self.delivery.commit(self.progress.newest.here.position, point, 0, None)
            return
        first = FirstSnapshot(self.delivery, self.tables, self.registry, self.progress, exported)
        report = Report(self.registry.reads, point, self.config.source.slot, self.connection)
        first.send(Pace(self.config.snapshot.max_bytes_per_s), report)
        left = (chunk for chunks in first.left.values() for chunk in chunks)
        self.reads = StoredReads(
            self.registry.states, {(each.table, FIRST_RUN, each.n): each.to_dict() | {"done": False} for each in left}
        )
