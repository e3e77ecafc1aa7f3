"""One session of the daemon, from a start to the next fault: ownership of the slot and the producer.

Order at start: inspect and decide, own the slot, fence earlier producers, decide again, resume after Kafka's position.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg
import structlog

from tailrace.cdc.backfill.exported_snapshot import ExportedSnapshot
from tailrace.cdc.daemon.outage import KafkaOutage, RegistryOutage
from tailrace.cdc.daemon.pipeline import Held, Pipeline
from tailrace.cdc.daemon.stream import Stream
from tailrace.cdc.health.health import Health
from tailrace.cdc.postgres import slot
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.lock_policy import tables_locked
from tailrace.cdc.startup import recovery
from tailrace.cdc.startup.captured import Captured, capture
from tailrace.cdc.startup.cut_topics import lost_topics
from tailrace.cdc.startup.decide import EPOCH, Found, Start
from tailrace.cdc.startup.observe import look
from tailrace.cdc.startup.renew_topics import renew_topics
from tailrace.cdc.startup.settled import settled
from tailrace.cdc.tables.position import before_slot, new_origin, origin_behind_gap
from tailrace.cdc.tables.registry import states_before_slot
from tailrace.cdc.tables.schema_ids import check_registry
from tailrace.cdc.tables.stored_reads import StoredReads, stored_reads
from tailrace.cdc.wal.connection import Wal
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import StateError, TailraceError
from tailrace.schemas.records.layout import Asked
from tailrace.schemas.records.position import PositionRecord, position_key, table_key
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation
from tailrace.sinks.http.registry import REGISTRY_FAILED
from tailrace.sinks.kafka.one_shot import send_alone
from tailrace.sinks.kafka.producer import KafkaSink

log = structlog.get_logger()


class Session:
    """Owner of a slot. `begun`: set-up is complete or a copy has started; later errors are retryable."""

    def __init__(self, config: Config, stop: threading.Event, health: Health | None = None) -> None:
        self._config = config
        self._stop = stop
        self._health = health or Health(config.source.slot)
        self._connection = connect(config.source.dsn.get_secret_value())
        self._wal: Wal | None = None
        self._sink: KafkaSink | None = None
        self._opened = ExitStack()
        self._pipeline: Pipeline | None = None
        self._stream: Stream | None = None
        self.begun = False

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline from slot to producer, available after `start`."""
        assert self._pipeline is not None
        return self._pipeline

    def start(self) -> None:
        """Own the slot, fence earlier producers, find the position; copy the tables of a new slot.

        Raises SourceError TR-240 if another session holds a conflicting table lock: a retry loses nothing.
        """
        # the catalog's views lock the tables that they show
        self._connection.execute("SET lock_timeout = '2s'")
        try:
            slot.begin_start(self._connection, self._config.source.slot)
            try:
                self._stream = Stream(self._go_on())
            except StateError as error:
                self._stream = self._mend(error)
        except psycopg.errors.LockNotAvailable:
            raise tables_locked(self._connection) from None
        self._connection.execute("RESET lock_timeout")
        self.begun = True

    def _mend(self, error: StateError) -> Stream:
        """Recover from `error` if an operator has requested it, else raise it."""
        if not recovery.is_mended(self._config, error):
            raise error
        log.warning("recovery requested: new slot, full snapshot", code=error.code, error=error.message)
        self._let_go()
        return Stream(self._recover())

    def _go_on(self) -> Pipeline:
        """Resume from slot and topics, or start for the first time. StateError if they do not match."""
        config = self._config
        found, start = settled(config, self._connection, owned=False)
        if found.slot is None:
            _log_notes(start)
            return self._first_start(found)
        # the start is refused later if there is no publication
        self._own_slot(found.publications.names if found.publications else [config.source.publication])
        renew_topics(config, found, start.lost, self._transactional_id(), self._health, self._stop)
        self._fence()
        found, start = settled(config, self._connection, owned=True)
        assert start.origin is not None
        _log_notes(start)
        reads = stored_reads(config)
        captured = capture(config, self._connection, found, reads.states, start.lost)
        return self._open(captured, start.origin, reads)

    def _first_start(self, found: Found) -> Pipeline:
        """Create the slot and copy all tables as of its consistent point."""
        config = self._config
        check_registry(config)
        captured = capture(config, self._connection, found, None)
        topics, name = Topics(config.kafka.prefix), config.source.slot
        origin = before_slot(_origin(captured, found.identity.lsn))
        states = states_before_slot(captured.catalog.survey(), captured.columns)
        records = {
            topics.progress: {position_key(name): origin.to_json()},
            topics.tables: {table_key(name, each): states[each].to_json() for each in states},
        }
        send_alone(config.kafka, records)
        keyless = captured.without_key
        together = config.snapshot.mode == "exported"
        exported = [each for each in captured.relations if together or each.qualified_name in keyless]
        with self._new_slot(found, captured, exported) as (point, snapshot):
            pipeline = self._open(captured, _origin(captured, point), StoredReads(states))
            for relation in captured.relations:
                if relation not in exported:
                    pipeline.registry.want(relation)
            self._copy(pipeline, point, snapshot)
        return pipeline

    @contextmanager
    def _new_slot(
        self, found: Found, captured: Captured, relations: Sequence[Relation]
    ) -> Iterator[tuple[int, ExportedSnapshot | None]]:
        """Create and own a slot; yield its consistent point and, if any, the snapshot of `relations` at it."""
        point, exported = recovery.make_slot(self._config, found.server, relations, captured.without_key)
        try:
            self._own_slot(captured.catalog.publications.names)
            self._fence()
            yield point, exported
        finally:
            if exported is not None:
                exported.workers.close()

    def _recover(self) -> Pipeline:
        """Recreate the slot after a gap: reconcile the tables with a key, refill the topics of the others."""
        config, connection = self._config, self._connection
        found = look(config, connection, owned=False)
        slot.end_start(connection, config.source.slot)
        slot.begin_start(connection, config.source.slot)
        lost: dict[str, StateError] = {}
        if found.stored is not None:
            hint = recovery.copy_anew(found.prefix, found.slot_name if found.slot else None)
            own = Topics(found.prefix)
            lost = lost_topics(found.stored.here, own, found.tables, found.topics, found.bootstrap, hint)
        captured = capture(config, connection, found, stored_reads(config).states, lost)
        recovery.drop(connection, config.source.slot)
        keyless = captured.without_key
        refilled = [relation for relation in captured.relations if relation.qualified_name in keyless]
        with self._new_slot(found, captured, refilled) as (point, exported):
            found = look(config, connection, owned=True)
            stored, origin = found.stored, _origin(captured, point)
            if stored is not None:
                origin = origin_behind_gap(stored, origin)
            pipeline = self._open(captured, origin, stored_reads(config))
            for relation in captured.relations:
                if relation not in refilled:
                    topic = Topics(config.kafka.prefix).table(relation.schema, relation.name)
                    ends = tuple(bounds.end for bounds in found.topics.get(topic, ()))
                    pipeline.registry.ask(relation, Asked(since=ends))
            position = pipeline.progress.newest.here.position
            recovery.empty_topics(pipeline.sink.outbox, pipeline.tables, refilled, position)
            self._copy(pipeline, point, exported)
        return pipeline

    def _own_slot(self, publications: list[str]) -> None:
        """Start streaming from the slot: from here on, no other session can."""
        source = self._config.source
        self._wal = Wal(source.dsn.get_secret_value(), source.slot, publications, streaming=source.streaming)
        self._opened.callback(self._wal.close)
        slot.end_start(self._connection, source.slot)

    def _fence(self) -> None:
        """Create the producer; with exactly-once delivery, it fences earlier producers."""
        config, kafka = self._config, self._config.kafka
        exactly_once = config.delivery.guarantee == "exactly-once"
        name = self._transactional_id() if exactly_once else None
        self._sink = KafkaSink(kafka, name, Topics(kafka.prefix).progress, config.memory.queue_bytes)
        self._opened.callback(self._sink.abandon)

    def _transactional_id(self) -> str:
        return f"tailrace-{self._config.kafka.prefix}-{self._config.source.slot}"

    def _open(self, captured: Captured, stored: PositionRecord, reads: StoredReads) -> Pipeline:
        assert self._wal is not None
        assert self._sink is not None
        held = Held(self._wal, self._sink, self._opened)
        self._pipeline = Pipeline(self._config, captured, held, self._health, self._stop, stored, reads)
        return self._pipeline

    def _copy(self, pipeline: Pipeline, point: int, exported: ExportedSnapshot | None) -> None:
        self.begun = True
        pipeline.copy(point, exported)

    def run(self) -> None:
        """Read, send, commit and confirm until asked to stop."""
        assert self._stream is not None
        try:
            self._stream.run()
        except StateError as error:
            self._stream = self._mend(error)
            self._stream.run()

    def outlast(self, error: TailraceError) -> None:
        """Hold the slot until Kafka or the schema registry answers again; records in flight are abandoned."""
        if self._sink is None or self._wal is None:
            return
        self._health.end()
        self._sink.abandon()
        outage: KafkaOutage | RegistryOutage
        if error.code == REGISTRY_FAILED:
            outage = RegistryOutage(self._config, self._stop, error)
        else:
            outage = KafkaOutage(self._config.kafka, self._stop)
        while not outage.over():
            pass

    def close(self) -> None:
        """Release the slot, the producer and the connections."""
        self._let_go()
        self._connection.close()

    def _let_go(self) -> None:
        """Close everything except the catalog connection."""
        self._health.end()
        self._opened.close()
        self._wal = self._sink = None


def _origin(captured: Captured, consistent_point: int) -> PositionRecord:
    """Return the position record of a slot from which nothing has been read."""
    identity = captured.identity
    return new_origin(
        EPOCH,
        consistent_point,
        identity.system_identifier,
        identity.timeline,
        captured.catalog.publications.oids,
        [relation.qualified_name for relation in captured.relations],
    )


def _log_notes(start: Start) -> None:
    for note in start.notes:
        log.warning(note)
