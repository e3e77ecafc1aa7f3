"""From one start of the stream to the next fault: what is opened in which order, and the loop.

Order at start: own the slot, then the producer, then read what Kafka holds, then go on behind it.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog

from cdc import catalog, publication, recovery, slot
from cdc.connect import connect
from cdc.delivery import Delivery
from cdc.first_snapshot import send_first_snapshot
from cdc.in_progress import InProgress
from cdc.keys import Keys
from cdc.layouts import layout, survey
from cdc.messages import Messages
from cdc.progress import Progress, new_origin, origin_behind_gap
from cdc.refusals import make_dead_topic
from cdc.reread import Reread
from cdc.schema_ids import SchemaIds
from cdc.shapes import Shapes
from cdc.snapshot_requests import SnapshotRequests
from cdc.spool import Spool
from cdc.stored_reads import StoredReads, stored_reads
from cdc.tables import Tables, make_topics
from cdc.toast import Toast
from cdc.transaction import Assembler
from cdc.unchanged import Unchanged
from cdc.wal import Wal
from cdc.windows import Windows
from schemas.columns import ColumnOptions
from schemas.config import Config
from schemas.errors import StateError
from schemas.layout import Asked
from schemas.lsn import format_lsn
from schemas.progress import PositionRecord
from schemas.relation import Relation
from schemas.topics import Topics
from sinks.kafka import KafkaSink
from sinks.progress import read_position, read_schemas
from sinks.requests import RequestTail

log = structlog.get_logger()

_EPOCH = 1
_IDLE_ADVANCE_S = 10.0
"""An idle source moves the slot at most this often; each time costs a Kafka transaction."""

_STOP_S = 3.0
"""After a signal we go on to the end of the source transaction at hand for so long, then split it."""

_READ_MESSAGES = 500
_SPOOL_BYTES = 33_554_432
_TICK_S = 0.2
"""How long the loop waits for the WAL before it looks after the rest."""


class Session:
    """Connections, producer, and what they know."""

    def __init__(self, config: Config, stop: threading.Event) -> None:
        self._config = config
        self._dsn = config.source.dsn.get_secret_value()
        self._stop = stop
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

    def start(self) -> None:
        """Own the slot, fence whoever wrote before, find the place to go on from; copy the tables of a new slot."""
        config, source = self._config, self._config.source
        self._server = catalog.server(self._connection)
        self._publications = publication.ensure(self._connection, source.publication, source.tables)
        captured, insert_only = publication.relations(self._connection, self._publications)
        catalog.refuse_row_security(self._connection, captured)
        publication.log_left_out(self._connection, self._publications, captured, insert_only)
        self._keys = Keys(self._connection, source.keys, insert_only)
        self._keys.check(captured)
        # without a key first: their snapshot cannot be gone on with
        self._relations = sorted(captured, key=lambda relation: bool(self._keys.of(relation)))
        self._check_columns()
        self._partitions = make_topics(config.kafka, self._relations, self._keys)
        if source.on_error == "divert":
            make_dead_topic(config)
        self._tail = RequestTail(config.kafka, source.slot)
        try:
            self._go_on()
        except StateError as error:
            if error.code not in recovery.MENDED or not self._tail.asks_for_recovery:
                raise
            log.warning("a new slot, all tables read again: a person has said so", code=error.code, error=error.message)
            self._recover()
        self._follow()

    def _go_on(self) -> None:
        """Go on from what slot and topics hold. StateError if they do not fit together."""
        found = slot.inspect(self._connection, self._config.source.slot)
        if found is None:
            self._first_start()
            return
        slot.check(found, self._server.database, None)
        self._own_slot()
        stored = self._stored_for(found)
        self._open(stored, stored_reads(self._config))
        self._refuse_windows_without_key(self._shapes.keyless & self._progress.incomplete)

    def _check_columns(self) -> None:
        """Refuse column options that cannot be before anything is made; a pattern without a column may be a slip."""
        for relation in self._relations:
            self._columns.applied(relation, self._keys.of(relation))
        for key, pattern, nearest in self._columns.unmatched(self._relations):
            log.warning("no captured column matches", key=key, pattern=pattern, did_you_mean=nearest)

    def _first_start(self) -> None:
        """Make the slot and copy all tables as of its consistent point, or have them read while the stream runs."""
        config = self._config
        if read_position(config.kafka, Topics(config.kafka.prefix), config.source.slot) is not None:
            raise StateError(
                "TR-402",
                f'slot "{config.source.slot}" is gone, but its topics are there',
                detail="Changes since the slot was dropped are not in the WAL that a new one would read.",
                hint=slot.REFILL,
            )
        self._sink = self._new_sink()
        interleaved = [relation for relation in self._relations if self._is_interleaved(relation)]
        self._make_slot([relation for relation in self._relations if relation not in interleaved])
        with self._workers_closed():
            self._open(self._origin(self._point), StoredReads())
            for relation in interleaved:
                self._shapes.want(relation)
        self._first_copy()

    def _is_interleaved(self, relation: Relation) -> bool:
        return self._config.snapshot.mode == "interleaved" and bool(self._keys.of(relation))

    def _make_slot(self, relations: Sequence[Relation]) -> None:
        self._point, self._exported = recovery.make_slot(self._config, self._server.version, relations)

    @contextmanager
    def _workers_closed(self) -> Iterator[None]:
        """Let go of the exported snapshot if something fails before it is copied."""
        try:
            yield
        except BaseException:
            if self._exported is not None:
                self._exported.workers.close()
            raise

    def _first_copy(self) -> None:
        """Store where the new slot begins, copy what its snapshot is to show, then read the stream."""
        if self._exported is not None:
            send_first_snapshot(self._delivery, self._tables, self._shapes, self._progress, self._exported)
        else:
            self._delivery.commit(self._progress.newest.here.position, self._point, 0, None)
        self._own_slot()

    def _recover(self) -> None:
        """Make a slot anew behind a gap: tables with a key are reconciled, the topics of others are filled anew."""
        config, topics = self._config, Topics(self._config.kafka.prefix)
        self._let_go()
        with recovery.alone(self._connection, config.source.slot):
            self._sink = self._new_sink()
            stored = read_position(config.kafka, topics, config.source.slot)
            keyless = [relation for relation in self._relations if not self._keys.of(relation)]
            self._make_slot(keyless)
            with self._workers_closed():
                origin = self._origin(self._point)
                self._open(origin_behind_gap(stored, origin) if stored else origin, stored_reads(config))
                offsets = self._progress.newest.here.offsets
                for relation in self._relations:
                    if relation not in keyless:
                        since = tuple(offsets.get(topics.table(relation.schema, relation.name), []))
                        self._shapes.ask(relation, Asked(since=since))
                recovery.empty_topics(self._sink.outbox, self._tables, keyless, self._progress.newest.here.position)
            self._first_copy()

    def _origin(self, consistent_point: int) -> PositionRecord:
        return new_origin(
            _EPOCH,
            consistent_point,
            self._server.system_identifier,
            self._server.timeline,
            self._publications.oids,
            [relation.qualified_name for relation in self._relations],
        )

    def _own_slot(self) -> None:
        source = self._config.source
        self._wal = Wal(self._dsn, source.slot, self._publications.names, streaming=source.streaming)

    def _new_sink(self) -> KafkaSink:
        kafka, slot_name = self._config.kafka, self._config.source.slot
        return KafkaSink(kafka, f"tailrace-{kafka.prefix}-{slot_name}", Topics(kafka.prefix).progress)

    def _stored_for(self, found: slot.Slot) -> PositionRecord:
        """Fence the last producer, then read what it has left; nothing at all means that it never got to writing."""
        kafka = self._config.kafka
        self._sink = self._new_sink()
        stored = read_position(kafka, Topics(kafka.prefix), found.name)
        if stored is None:
            return self._origin(found.confirmed_flush_lsn)
        slot.check(found, self._server.database, stored.here.flushed_lsn)
        if stored.here.system_identifier != self._server.system_identifier:
            raise StateError(
                "TR-403",
                "this is not the server that the topics were filled from",
                detail=f"System identifier {self._server.system_identifier}, topics have"
                f" {stored.here.system_identifier}.",
                hint=f"Check source.dsn. If the data has moved to this server: {slot.REFILL}",
            )
        self._publications.check((stored.publication_oid, stored.nokey_oid))
        return stored

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
        self._toast = Toast(config, self._connection, self._server.timeline, stored, topics.progress)
        self._tables = Tables(
            config.kafka,
            self._connection,
            self._server.database,
            SchemaIds(self._sink, topics.schemas, read_schemas(config.kafka, topics)),
            self._shapes,
            partial(layout, self._connection, self._publications.names),
            self._partitions,
            stored.here.offsets,
            self._relations,
            self._keys,
            self._columns,
            self._toast,
        )
        self._shapes.keyless |= {r.qualified_name for r in self._relations if not self._keys.of(r)}
        self._delivery = Delivery(config, self._sink, self._tables, self._progress, self._stop)
        log.info("going on", position=str(stored.here.position), flushed_lsn=format_lsn(stored.here.flushed_lsn))

    def _follow(self) -> None:
        """Make ready for the stream, and for the tables that are still to be read."""
        assert self._wal is not None
        assert self._sink is not None
        self._unchanged = Unchanged(Reread(self._connection), self._progress, self._tables.want)
        spool = Spool(Path(self._config.source.spool_dir or tempfile.gettempdir()), _SPOOL_BYTES)
        self._in_progress = InProgress(spool, parallel=self._wal.parallel)
        messages = Messages(self._config, self._server.database, self._tables, self._sink.outbox)
        self._assembler = Assembler(
            self._tables,
            self._sink,
            self._progress,
            self._unchanged,
            self._in_progress,
            messages,
            self._delivery.refusals,
        )
        self._delivery.on_flushed = self._wal.confirm
        self._wal.confirm(self._progress.flushed_lsn)
        self._windows = Windows(
            self._config,
            self._publications.names,
            self._delivery,
            self._tables,
            self._shapes,
            self._progress,
            self._assembler,
            self._wal.ask,
        )
        relations = {relation.qualified_name: relation for relation in self._relations}
        for name in self._progress.incomplete - relations.keys():
            self._shapes.gone(name)
        for name, relation in relations.items():
            state = self._shapes.states.get(name)
            if name in self._progress.incomplete and state is None:
                self._shapes.want(relation)  # cut short before anything of it was stored
            elif state is not None and (name in self._progress.incomplete or state.asked is not None):
                self._windows.resume(relation, self._reads.left(name))
        assert self._tail is not None
        self._requests = SnapshotRequests(
            self._tail,
            partial(self._sink.send_plain, Topics(self._config.kafka.prefix).requests),
            Topics(self._config.kafka.prefix),
            self._connection,
            self._shapes,
            self._progress,
            lambda: publication.relations(self._connection, self._publications)[0],
        )
        # what happened to tables meanwhile, or to the publication
        for found in survey(self._connection, self._publications.names):
            self._shapes.look(found, self._tables.columns_ever(found.schema, found.table))

    def _refuse_windows_without_key(self, tables: Collection[str]) -> None:
        """Rows that the stream and a window both bring can be told apart by their key only."""
        for table in sorted(tables):
            raise StateError(
                "TR-405",
                f'the first snapshot was cut short in table "{table}", which has no key',
                detail="Rows of such a table would come twice, or not at all, if they were read anew.",
                hint=slot.REFILL,
            )

    def run(self) -> None:
        """Read, send, commit, confirm until told to stop."""
        assert self._wal is not None
        assert self._windows is not None
        deadline: float | None = None
        while True:
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
        self._delivery.commit(assembler.position, rows.flushed_lsn, rows.commit_us, assembler.open_xid)
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

    def close(self) -> None:
        """Let go of the slot, of the producer and of the connections."""
        self._let_go()
        if self._tail is not None:
            self._tail.close()
        self._connection.close()

    def _let_go(self) -> None:
        """Close all but the connection and the requests."""
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
        if self._sink is not None:
            self._sink.abandon()
        self._windows = self._wal = self._in_progress = self._unchanged = self._toast = self._sink = None
