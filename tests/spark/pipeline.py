"""Stand-in for the daemon's *output*: real topics, transactions, schemas; and a model of the tables.

It has each table's rows in a dict, in the topic's form (days, microseconds, unscaled bytes), so that a view at a cut
can be compared with the tables at that cut.
"""

from __future__ import annotations

import copy
import io
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import fastavro
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from tailrace.schemas.avro import key_schema, value_schema, without_logical_types
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.encode.partition import partition_of
from tailrace.schemas.envelope import POSITION_HEADER, TRUNCATE_KEY, framing
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut, PositionRecord, position_key, states_after
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo
from tailrace.sinks.control.schema_topic import StoredSchema

_NAMES = "int4 int8 text numeric timestamp timestamptz date time uuid bytea float4 float8 bool hstore jsonb"
TYPES = {number: TypeInfo(number, name, "b") for number, name in enumerate(_NAMES.split(" "), 100)}
OID = {info.name: number for number, info in TYPES.items()}
for _base in ("int4", "text", "timestamp", "numeric"):
    _number = 200 + OID[_base]
    TYPES[_number] = TypeInfo(_number, f"_{_base}", "b", element_oid=OID[_base])
    OID[f"_{_base}"] = _number

Row = dict[str, Any]


def column(name: str, kind: str, precision: int = 0, scale: int = 0) -> Column:
    """Make a column of one of `TYPES`."""
    return Column(name, OID[kind], ((precision << 16) | scale) + 4 if precision else -1)


@dataclass
class Table:
    """A captured table: its present shape and its rows by key."""

    topic: str
    relation: Relation
    key: tuple[str, ...]
    value_id: int = 0
    key_id: int = 0
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)


class Pipeline:
    """Topics of one prefix, written as the daemon does."""

    def __init__(self, kafka: Kafka, slot: str = "tailrace", partitions: int = 3) -> None:
        self.kafka = kafka
        self.slot = slot
        self.partitions = partitions
        self.topics = Topics(kafka.prefix)
        self.tables: dict[str, Table] = {}
        self.schemas: dict[int, Any] = {}
        self.newest: dict[str, tuple[str, int]] = {}
        self.offsets: dict[str, list[int]] = {}
        self.lsn = 1000
        self.cut: Cut | None = None
        self.record: PositionRecord | None = None
        self.states: dict[int, dict[str, dict[tuple[Any, ...], Row]]] = {}
        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        self.make_topic(self.topics.progress, 1)
        self.make_topic(self.topics.schemas, 1)
        self.producer = self.new_producer()

    def new_producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "transactional.id": self.kafka.prefix,
                "linger.ms": 5,
                "log_level": 0,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        producer.init_transactions(20)
        return producer

    def make_topic(self, name: str, partitions: int, **settings: str) -> None:
        config = {
            "cleanup.policy": "compact",
            "min.compaction.lag.ms": str(self.kafka.min_compaction_lag_ms),
            "delete.retention.ms": str(self.kafka.delete_retention_ms),
            "message.timestamp.type": "LogAppendTime",
            **{setting.replace("_", "."): value for setting, value in settings.items()},
        }
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        for future in self._admin.create_topics([topic]).values():
            future.result()

    def table(self, name: str, columns: list[Column], key: tuple[str, ...], **settings: str) -> Table:
        """Create a table with its topic and schemas."""
        topic = self.topics.table("public", name)
        self.make_topic(topic, self.partitions, **settings)
        relation = Relation(len(self.tables) + 1, "public", name, ReplicaIdentity.DEFAULT, tuple(columns))
        table = self.tables[name] = Table(topic, relation, key)
        self.offsets[topic] = [0] * self.partitions
        self.reshape(name, columns)
        return table

    def reshape(self, name: str, columns: list[Column]) -> None:
        """Give a table other columns, as ALTER TABLE does; rows that are not written again stay unchanged."""
        table = self.tables[name]
        table.relation = Relation(table.relation.oid, "public", name, table.relation.replica_identity, tuple(columns))
        key_columns = [next(c for c in columns if c.name == part) for part in table.key]
        if key_columns:  # else the topic is a log, without a schema of keys
            table.key_id = self._store(f"{table.topic}-key", key_schema(key_columns, TYPES, table.topic))
        table.value_id = self._store(f"{table.topic}-value", value_schema(table.relation, TYPES, table.topic))

    def _store(self, subject: str, schema: str) -> int:
        known, number = self.newest.get(subject, ("", 0))
        if known == schema:
            return number
        stored = StoredSchema(len(self.schemas) + 1, subject, schema)
        self.newest[subject] = schema, stored.id
        self.schemas[stored.id] = fastavro.parse_schema(without_logical_types(json.loads(schema)))
        self.producer.begin_transaction()
        self.producer.produce(self.topics.schemas, stored.value(), stored.key())
        self.producer.commit_transaction()
        return stored.id

    @contextmanager
    def transaction(
        self, *, op: str = "c", state: bool = True, incomplete: tuple[str, ...] = ()
    ) -> Iterator[Transaction]:
        """Write a source transaction and its position record; abort it if the block raises `Aborted`.

        It is split unless `state`; the tables in `incomplete` are being read.
        """
        self.lsn += 10
        before = {name: copy.copy(table.rows) for name, table in self.tables.items()}
        open_transaction = Transaction(self, op)
        self.producer.begin_transaction()
        try:
            yield open_transaction
        except Aborted:
            self.producer.flush()
            self.producer.abort_transaction()
            for name, rows in before.items():
                self.tables[name].rows = rows
            return
        self.producer.flush()
        self._end(Position(0, self.lsn, max(open_transaction.ordinal - 1, 0)), state=state, incomplete=incomplete)

    def idle(self) -> None:
        """Advance without a change, as keepalives do."""
        self.lsn += 10
        self.producer.begin_transaction()
        self._end(self.record.here.position if self.record else Position(0, 0, 0), state=True)

    def _end(self, last: Position, *, state: bool, incomplete: tuple[str, ...] = ()) -> None:
        """Write the position record of a transaction whose last record is at `last`."""
        previous = self.cut
        here = Cut(last, self.lsn + 5, self.lsn * 1000, "sys", 1, copy.deepcopy(self.offsets))
        xid = None if state else 7
        states = states_after(self.record, xid, incomplete) if self.record is not None else ()
        record = self.record = PositionRecord(here, 1, xid, incomplete, previous, states)
        placed: list[int | None] = []
        self.producer.produce(
            self.topics.progress,
            record.to_json(),
            position_key(self.slot),
            on_delivery=lambda _, message: placed.append(message.offset()),
        )
        self.producer.flush()
        self.producer.commit_transaction()
        # a transaction becomes readable some time after its commit is acknowledged
        partition = TopicPartition(self.topics.progress, 0)
        (offset,) = placed
        assert offset is not None
        while self._end_of(partition) <= offset:
            time.sleep(0.005)
        if record.is_state:
            self.cut = here
        if state:
            self.states[here.flushed_lsn] = {name: dict(table.rows) for name, table in self.tables.items()}

    def _end_of(self, partition: TopicPartition) -> int:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = self._admin.list_offsets({partition: latest}, isolation_level=IsolationLevel.READ_COMMITTED)
        return int(asked[partition].result().offset)


class Aborted(Exception):
    """Raised inside a transaction to abort it."""


class Transaction:
    """Changes of one source transaction."""

    def __init__(self, pipeline: Pipeline, op: str) -> None:
        self._pipeline = pipeline
        self._op = op
        self.ordinal = 0

    def put(self, name: str, row: Row, op: str | None = None) -> None:
        """Insert or update a row."""
        table = self._pipeline.tables[name]
        full = {c.name: row.get(c.name) for c in table.relation.columns}
        key = tuple(full[part] for part in table.key)
        table.rows[key] = full
        self._send(table, self._key(table, key), self._value(table, full, op or self._op))

    def delete(self, name: str, *key: Any) -> None:
        """Delete a row: the event and the tombstone."""
        table = self._pipeline.tables[name]
        before = table.rows.pop(key)
        raw = self._key(table, key)
        self._send(table, raw, self._value(table, before, "d"))
        self._send(table, raw, None)

    def compacted_delete(self, name: str, *key: Any) -> None:
        """Delete a row, leaving what compaction does: the tombstone."""
        table = self._pipeline.tables[name]
        del table.rows[key]
        self._send(table, self._key(table, key), None)

    def change_key(self, name: str, old: tuple[Any, ...], row: Row) -> None:
        self.delete(name, *old)
        self.put(name, row)

    def truncate(self, name: str) -> None:
        table = self._pipeline.tables[name]
        table.rows.clear()
        for partition in range(self._pipeline.partitions):
            self._send(table, TRUNCATE_KEY, self._value(table, {}, "t"), partition)

    def _key(self, table: Table, key: tuple[Any, ...]) -> bytes:
        schema = self._pipeline.schemas[table.key_id]
        names = [f["name"] for f in schema["fields"]]
        return framing(table.key_id) + _encode(schema, dict(zip(names, key, strict=True)))

    def _value(self, table: Table, row: Row, op: str) -> bytes:
        schema = self._pipeline.schemas[table.value_id]
        source = dict.fromkeys(("snapshot", "txId", "xmin", "lsn", "sequence"))
        source |= {"version": "1", "connector": "t", "name": "t", "db": "d", "schema": "public"}
        source |= {"ts_ms": self._pipeline.lsn, "table": table.relation.name}
        source |= {"commit_lsn": self._pipeline.lsn, "ordinal": self.ordinal}
        fields = _row_fields(schema)
        image = {fields[name]: value for name, value in row.items() if name in fields} if row else None
        gone = op in "dt"
        envelope = {
            "before": image if gone else None,
            "after": None if gone else image,
            "source": source,
            "op": op,
            "ts_ms": 0,
        }
        return framing(table.value_id) + _encode(schema, envelope)

    def _send(self, table: Table, key: bytes, value: bytes | None, partition: int | None = None) -> None:
        pipeline = self._pipeline
        where = partition_of(key, pipeline.partitions) if partition is None else partition
        position = Position(0, pipeline.lsn, self.ordinal)
        self.ordinal += 1

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                pipeline.offsets[table.topic][where] = max(pipeline.offsets[table.topic][where], message.offset() + 1)

        headers: list[tuple[str, str | bytes | None]] = [(POSITION_HEADER, position.to_bytes())]
        pipeline.producer.produce(table.topic, value, key, where, headers=headers, on_delivery=delivered)
        pipeline.producer.poll(0)


def _row_fields(schema: Any) -> dict[str, str]:
    before = next(f for f in schema["fields"] if f["name"] == "before")
    row = next(branch for branch in before["type"] if branch != "null")
    return {f.get("column", f["name"]): f["name"] for f in row["fields"]}


def _encode(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, value)
    return buffer.getvalue()
