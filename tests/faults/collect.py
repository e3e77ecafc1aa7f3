"""Reads the evidence of a round from the servers at rest, and samples the slot during the round."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.position import PositionRecord, position_key
from tailrace.schemas.records.topics import Topics
from tests.faults.evidence import Change, Evidence, Key, Row, SlotSample
from tests.faults.workload import KEYS, TABLES
from tests.support.topics import TopicRecord, decode, parse_schemas, read_all

_EVERY_S = 0.05

_ELECTION_S = 1.0
"""Time until a paused broker knows that it is not the leader any more: before, its answers are old."""


def collect(config: Config, dsn: str, bootstrap: str, samples: list[SlotSample]) -> Evidence:
    """Read the topics, the journal and the tables. The writers and the daemon have ended."""
    prefix = config.kafka.prefix
    topics = Topics(prefix)
    by_table = {table: topics.table("public", table) for table in TABLES}
    messages = read_all(bootstrap, [topics.progress, topics.schemas, *by_table.values()])
    by_id = parse_schemas(messages[topics.schemas])
    key = position_key(config.source.slot)
    with psycopg.connect(dsn) as connection:
        return Evidence(
            prefix,
            {table: _digested(decode(messages[topic], by_id)) for table, topic in by_table.items()},
            [
                (message.offset(), PositionRecord.from_json(message.value()))
                for message in messages[topics.progress]
                if message.key() == key
            ],
            _journal(connection),
            {table: _source(connection, table) for table in TABLES},
            samples,
        )


def _digested(records: list[TopicRecord]) -> list[TopicRecord]:
    for record in records:
        after = record.value["after"] if record.value else None
        if after is not None and "body" in after:
            after["body"] = hashlib.md5(after["body"].encode()).hexdigest()
    return records


def _journal(connection: psycopg.Connection[Any]) -> list[Change]:
    return [
        Change(xid, parse_lsn(lsn), table, op, _key(table, old), _key(table, new), new)
        for xid, lsn, table, op, old, new in connection.execute(
            "SELECT xid, lsn::text, tab, op, old, new FROM journal ORDER BY seq"
        )
    ]


def _key(table: str, row: Row | None) -> Key | None:
    return None if row is None else tuple(row[name] for name in KEYS[table])


def _source(connection: psycopg.Connection[Any], table: str) -> dict[Key, Row]:
    rows = connection.execute(f"SELECT to_jsonb(t) FROM {table} t".encode()).fetchall()
    found: dict[Key, Row] = {}
    for (row,) in rows:
        if "body" in row:
            row["body"] = hashlib.md5(row["body"].encode()).hexdigest()
        key = _key(table, row)
        assert key is not None
        found[key] = row
    return found


class SlotWatch:
    """Samples the slot's confirmation and the end of Kafka's progress topic, up to twenty times a second.

    It asks for the confirmation first: a record that allows it is in Kafka's log by then, or was written too late.
    """

    def __init__(self, dsn: str, bootstrap: str, config: Config) -> None:
        self.samples: list[SlotSample] = []
        self._dsn = dsn
        self._slot = config.source.slot
        self._several_brokers = "," in bootstrap
        self._partition = TopicPartition(Topics(config.kafka.prefix).progress, 0)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "slot-watch",
                "isolation.level": "read_uncommitted",
                "log_level": 0,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="slot-watch")
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=2) as connection:
                    while not self._stop.wait(_EVERY_S):
                        self._sample(connection)
            except psycopg.Error:
                self._stop.wait(_EVERY_S)
        self._consumer.close()

    def _sample(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
            " WHERE slot_name = %s AND confirmed_flush_lsn IS NOT NULL",
            (self._slot,),
        ).fetchone()
        if row is None or (self.samples and parse_lsn(row[0]) == self.samples[-1].confirmed):
            return  # the earliest sample of a value is the strictest
        while not self._stop.is_set():
            try:
                end = self._end()
            except KafkaException:
                # the daemon cannot store anything meanwhile either; without a broker the error comes at once, and each
                # request costs librdkafka memory: gigabytes without a pause
                self._stop.wait(_EVERY_S)
                continue
            self.samples.append(SlotSample(parse_lsn(row[0]), end))
            return

    def _end(self) -> int:
        """Return the topic's end. One of several brokers may be an old leader: ask again after an election."""
        _, end = self._consumer.get_watermark_offsets(self._partition, timeout=1)
        if self._several_brokers:
            self._stop.wait(_ELECTION_S)
            end = max(end, self._consumer.get_watermark_offsets(self._partition, timeout=1)[1])
        return int(end)

    def stop(self) -> None:
        """Stop sampling; return when the thread has ended."""
        self._stop.set()
        self._thread.join()
