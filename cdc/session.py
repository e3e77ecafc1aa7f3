"""From one start of the stream to the next fault: what is opened in which order, and the loop.

Order at start: decide on what is there, own the slot, fence the producer, decide again, go on behind what Kafka holds.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import structlog

from cdc import publication, recovery, slot
from cdc.captured import capture
from cdc.connect import connect
from cdc.cut_topics import check_cut
from cdc.delivery import Delivery
from cdc.exported_snapshot import ExportedSnapshot
from cdc.first_snapshot import FirstSnapshot
from cdc.in_progress import InProgress
from cdc.layouts import layout, survey
from cdc.locked import tables_locked
from cdc.look import look
from cdc.messages import Messages
from cdc.ops.health import Health
from cdc.outage import Outage
from cdc.progress import Progress, before_slot, new_origin, origin_behind_gap
from cdc.reread import Reread
from cdc.schema_ids import SchemaIds
from cdc.shapes import FIRST_RUN, Shapes
from cdc.snapshot_report import Report
from cdc.snapshot_requests import SnapshotRequests
from cdc.spool import Spool
from cdc.start import EPOCH, decide
from cdc.stored_reads import StoredReads, stored_reads
from cdc.tables import Tables
from cdc.toast import Toast
from cdc.transaction import Assembler
from cdc.unchanged import Unchanged
from cdc.unfinished import take_up
from cdc.wal import Wal
from cdc.windows import Windows
from schemas.columns import ColumnOptions
from schemas.config import Config
from schemas.errors import StateError
from schemas.layout import Asked
from schemas.lsn import format_lsn
from schemas.progress import PositionRecord, position_key
from schemas.relation import Relation
from schemas.topics import Topics
from sinks.alone import send_alone
from sinks.kafka import KafkaSink
from sinks.progress import read_schemas
from sinks.requests import RequestTail
from snapshot.pace import Pace

log = structlog.get_logger()

_IDLE_ADVANCE_S = 10.0
"""An idle source moves the slot at most this often; each time costs a Kafka transaction."""

_STOP_S = 3.0
"""After a signal we go on to the end of the source transaction at hand for so long, then split it."""

_READ_MESSAGES = 500
_TICK_S = 0.2
"""How long the loop waits for the WAL before it looks after the rest."""


class Session:
    """Connections, producer, and what they know. `begun`: the slot and what goes with it are there."""

    def __init__(self, config: Config, stop: threading.Event, health: Health | None = None) -> None:
        self._config = config
        self._dsn = config.source.dsn.get_secret_value()
        self._stop = stop
        self._health = health or Health(config.source.slot)
        self._columns = ColumnOptions(config.source)
        self._connection = connect(self._dsn)
        self._wal: Wal | None = None
        self._sink: KafkaSink | None = None
        self._windows: Windows | None = None
        self._in_progress: InProgress | None = None
        self._toast: Toast | None = None
        self._unchanged: Unchanged | None = None
        self._tail: RequestTail | None = None
        self._idle_at = 0.0
        self.begun = False

    def start(self) -> None:
        """Own the slot, fence whoever wrote before, find the place to go on from; copy the tables of a new slot.

        SourceError TR-240 if somebody has a table for himself: nothing is lost by trying again.
        """
        # the catalog's views lock the tables that they show
        self._connection.execute("SET lock_timeout = '2s'")
        try:
            self._start()
        except psycopg.errors.LockNotAvailable:
            raise tables_locked(self._connection) from None
        self._connection.execute("RESET lock_timeout")

    def _start(self) -> None:
        slot.begin_start(self._connection, self._config.source.slot)
        try:
            self._go_on()
        except StateError as error:
            if not recovery.is_mended(self._config, error):
                raise
            log.warning("a new slot, all tables read again: a person says so", code=error.code, error=error.message)
            self._let_go()
            self._recover()
            self._follow()

    def _go_on(self) -> None:
        """Go on from what slot and topics hold, or begin. StateError if they do not fit together."""
        self._found = look(self._config, self._connection, owned=False)
        decide(self._found)
        if self._found.slot is None:
            self._first_start()
        else:
            self._own_slot()
            self._sink = self._new_sink()
            self._found = look(self._config, self._connection, owned=True)
            start = decide(self._found)
            assert start.origin is not None
            for note in start.notes:
                log.warning(note)
            self._captured = capture(self._config, self._connection, self._columns)
            self._open(start.origin, stored_reads(self._config))
        self._follow()

    def _first_start(self) -> None:
        """Make the slot and copy all tables as of its consistent point."""
        config = self._config
        self._captured = capture(config, self._connection, self._columns)
        origin = self._origin(self._found.identity.lsn)
        topic = Topics(config.kafka.prefix).progress
        send_alone(config.kafka, topic, position_key(config.source.slot), before_slot(origin).to_json())
        keyless = self._captured.without_key
        together = config.snapshot.mode == "exported"
        with self._new_slot([r for r in self._captured.relations if together or r.qualified_name in keyless]) as made:
            point, exported = made
            self._open(self._origin(point), StoredReads())
            for relation in self._captured.relations:
                if not together and relation.qualified_name not in keyless:
                    self._shapes.want(relation)
            self._first_copy(point, exported)

    @contextmanager
    def _new_slot(self, relations: Sequence[Relation]) -> Iterator[tuple[int, ExportedSnapshot | None]]:
        """Make and own a slot; give its consistent point, and the snapshot of `relations` at it if there are any."""
        version, keyless = self._found.server.version, self._captured.without_key
        point, exported = recovery.make_slot(self._config, version, relations, keyless)
        try:
            self._own_slot()
            self._sink = self._new_sink()
            yield point, exported
        finally:
            if exported is not None:
                exported.workers.close()

    def _first_copy(self, point: int, exported: ExportedSnapshot | None) -> None:
        """Store where the slot begins; copy what its snapshot is to show."""
        self.begun = True
        self._health.state = "copying"
        if exported is not None:
            self._copy(exported)
        else:
            self._delivery.commit(self._progress.newest.here.position, point, 0, None)

    def _recover(self) -> None:
        """Make the slot anew behind a gap: tables with a key are reconciled, the topics of others are filled anew."""
        config, found = self._config, self._found
        slot.end_start(self._connection, config.source.slot)
        slot.begin_start(self._connection, config.source.slot)
        if found.stored is not None:
            hint = recovery.copy_anew(found.prefix, found.slot_name if found.slot else None)
            check_cut(found.stored.here, Topics(found.prefix), found.tables, found.topics, hint)
        self._captured = capture(config, self._connection, self._columns)
        recovery.drop(self._connection, config.source.slot)
        keyless = self._captured.without_key
        refilled = [relation for relation in self._captured.relations if relation.qualified_name in keyless]
        with self._new_slot(refilled) as (point, exported):
            self._found = look(config, self._connection, owned=True)
            stored, origin = self._found.stored, self._origin(point)
            self._open(origin_behind_gap(stored, origin) if stored else origin, stored_reads(config))
            for relation in self._captured.relations:
                if relation.qualified_name not in keyless:
                    topic = Topics(config.kafka.prefix).table(relation.schema, relation.name)
                    ends = tuple(bounds.end for bounds in self._found.topics.get(topic, ()))
                    self._shapes.ask(relation, Asked(since=ends))
            position = self._progress.newest.here.position
            recovery.empty_topics(self._delivery.sink.outbox, self._tables, refilled, position)
            self._first_copy(point, exported)

    def _origin(self, consistent_point: int) -> PositionRecord:
        identity = self._found.identity
        return new_origin(
            EPOCH,
            consistent_point,
            identity.system_identifier,
            identity.timeline,
            self._captured.publications.oids,
            [relation.qualified_name for relation in self._captured.relations],
        )

    def _own_slot(self) -> None:
        source = self._config.source
        found = publication.find(self._connection, source.publication)
        names = found.names if found else [source.publication]  # without it we shall not go on
        self._wal = Wal(self._dsn, source.slot, names, streaming=source.streaming)
        slot.end_start(self._connection, source.slot)

    def _new_sink(self) -> KafkaSink:
        config, kafka = self._config, self._config.kafka
        exactly_once = config.delivery.guarantee == "exactly-once"
        name = f"tailrace-{kafka.prefix}-{config.source.slot}" if exactly_once else None
        return KafkaSink(kafka, name, Topics(kafka.prefix).progress, config.memory.queue_bytes)

    def _open(self, stored: PositionRecord, reads: StoredReads) -> None:
        """Put the parts together so that they go on from `stored`."""
        config = self._config
        assert self._sink is not None
        self._progress = Progress(stored)
        self._reads = reads
        topics = Topics(config.kafka.prefix)
        self._shapes = Shapes(
            config.source, self._columns, self._progress, partial(self._sink.send_plain, topics.tables), reads.states
        )
        self._shapes.reads = self._health.reads = reads.progress()
        self._toast = Toast(config, self._connection, self._found.identity.timeline, stored, topics.progress)
        self._tables = Tables(
            config.kafka,
            self._connection,
            self._found.server.database,
            SchemaIds(self._sink, topics.schemas, read_schemas(config.kafka, topics)),
            self._shapes,
            partial(layout, self._connection, self._captured.publications.names),
            self._captured.partitions,
            stored.here.offsets,
            self._captured.relations,
            self._captured.keys,
            self._columns,
            self._toast,
        )
        self._delivery = Delivery(config, self._sink, self._tables, self._progress, self._stop)
        self._delivery.on_flushed = self._flushed
        self._health.begin(self._sink, stored)
        log.info("going on", position=str(stored.here.position), flushed_lsn=format_lsn(stored.here.flushed_lsn))

    def _flushed(self, lsn: int) -> None:
        """Kafka holds everything committed before `lsn`."""
        assert self._wal is not None
        self._wal.confirm(lsn)
        self._health.committed(self._progress.newest)

    def _copy(self, exported: ExportedSnapshot) -> None:
        """Send all tables as of the slot's consistent point; what a stop leaves out is for the windows."""
        first = FirstSnapshot(self._delivery, self._tables, self._shapes, self._progress, exported)
        report = Report(self._shapes.reads, exported.consistent_point, self._config.source.slot, self._connection)
        first.send(Pace(self._config.snapshot.max_bytes_per_s), report)
        left = (chunk for chunks in first.left.values() for chunk in chunks)
        self._reads = StoredReads(
            self._shapes.states, {(each.table, FIRST_RUN, each.n): each.to_dict() | {"done": False} for each in left}
        )

    def _follow(self) -> None:
        """Make ready for the stream, and for the tables that are still to be read."""
        assert self._wal is not None
        assert self._sink is not None
        self._unchanged = Unchanged(Reread(self._connection), self._progress, self._tables.want)
        spool = Spool(Path(self._config.source.spool_dir or tempfile.gettempdir()), self._config.memory.spool_bytes)
        self._in_progress = InProgress(spool, parallel=self._wal.parallel)
        messages = Messages(self._config, self._found.server.database, self._tables, self._sink.outbox)
        self._assembler = Assembler(
            self._tables,
            self._sink,
            self._progress,
            self._unchanged,
            self._in_progress,
            messages,
            self._delivery.refusals,
        )
        self._wal.confirm(self._progress.flushed_lsn)
        self._windows = Windows(
            self._config,
            self._captured.publications.names,
            self._delivery,
            self._tables,
            self._shapes,
            self._progress,
            self._assembler,
            self._wal.ask,
        )
        take_up(self._captured, self._reads, self._shapes, self._progress, self._windows)
        topics = Topics(self._config.kafka.prefix)
        self._tail = RequestTail(self._config.kafka, self._config.source.slot)
        self._requests = SnapshotRequests(
            self._tail,
            partial(self._sink.send_plain, topics.requests),
            topics,
            self._connection,
            self._shapes,
            self._progress,
            lambda: publication.relations(self._connection, self._captured.publications)[0],
        )
        # what happened to tables meanwhile, or to the publication
        for found in survey(self._connection, self._captured.publications.names):
            self._shapes.look(found, self._tables.columns_ever(found.schema, found.table))

    def run(self) -> None:
        """Read, send, commit, confirm until told to stop."""
        assert self._wal is not None
        assert self._windows is not None
        deadline: float | None = None
        self._health.streaming()
        while True:
            self._health.turned_at = time.monotonic()
            more = self._assembler.release(_READ_MESSAGES) or self._read()
            self._commit_when_due(drained=not more)
            self._requests.poll()
            self._windows.poll()
            self._delivery.refusals.report()
            if self._stop.is_set():
                deadline = deadline or time.monotonic() + _STOP_S
                if self._assembler.open_xid is None or time.monotonic() > deadline:
                    self._commit()
                    self._delivery.refusals.report(now=True)
                    return
            if not more:
                self._advance_idle()
                self._wal.wait(self._delivery.rest() if self._uncommitted else _TICK_S)

    def _read(self) -> bool:
        """Send what has come; False when nothing is left for now."""
        assert self._wal is not None
        messages: list[bytes] = []
        more = self._wal.read(_READ_MESSAGES, messages)
        self._assembler.feed(messages)
        return more or self._assembler.releasing

    def _commit_when_due(self, *, drained: bool) -> None:
        """As soon as all that has come is sent; at the latest at the size or age of the configuration."""
        rested = drained and self._delivery.rest() == 0
        if self._delivery.full or (self._uncommitted and (rested or self._delivery.due())):
            self._commit()

    @property
    def _uncommitted(self) -> bool:
        """Whether whole source transactions wait for their commit."""
        assert self._sink is not None
        return self._sink.pending and self._assembler.open_xid is None

    def _commit(self) -> None:
        assembler = self._assembler
        rows = assembler.rows
        self._health.committing_since = time.time()
        self._delivery.commit(assembler.position, rows.flushed_lsn, rows.commit_us, assembler.open_xid)
        self._health.committing_since = None
        self._idle_at = 0.0
        assert self._unchanged is not None
        self._unchanged.report()

    def _advance_idle(self) -> None:
        """When nothing is in flight, all WAL up to where the server has read is done with."""
        assert self._wal is not None
        assert self._sink is not None
        assembler = self._assembler
        if self._sink.pending or assembler.open_xid is not None:
            return
        assembler.rows.flushed_lsn = max(assembler.rows.flushed_lsn, self._wal.server_wal_end)
        wait = 0.2 if self._progress.reread else _IDLE_ADVANCE_S
        now = time.monotonic()
        if assembler.rows.flushed_lsn > self._progress.flushed_lsn and now - self._idle_at >= wait:
            self._commit()
            self._idle_at = now

    def outlast_kafka(self) -> None:
        """When Kafka has failed, keep the slot until it answers; what was on its way is given up."""
        if self._sink is None or self._wal is None:
            return
        self._health.end()
        self._sink.abandon()
        outage = Outage(self._config.kafka, self._stop)
        while not outage.over():
            pass

    def close(self) -> None:
        """Let go of the slot, of the producer and of the connections."""
        self._let_go()
        self._connection.close()

    def _let_go(self) -> None:
        """Close all but the connection."""
        self._health.end()
        if self._windows is not None:
            self._windows.close()
        if self._wal is not None:
            self._wal.close()
        if self._in_progress is not None:
            self._in_progress.close()
        if self._unchanged is not None:
            self._unchanged.report(now=True)
        if self._toast is not None:
            self._toast.close()
        if self._tail is not None:
            self._tail.close()
        if self._sink is not None:
            self._sink.abandon()
        self._windows = self._wal = self._in_progress = self._unchanged = self._toast = self._tail = self._sink = None
