"""Delivery with a frozen broker and without transactions: complete, in order, repeats recognizable."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.cdc.dev.state import Servers, status
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, Kafka
from tailrace.schemas.errors import SinkError
from tailrace.schemas.lsn import Position
from tailrace.sinks.kafka.admin import TopicSpec, ensure_topics
from tailrace.sinks.kafka.outbox import Destination
from tailrace.sinks.kafka.producer import KafkaSink
from tests.support.bank import TABLES, Writer, assert_equal, create_tables, source_rows
from tests.support.daemon import Daemon, events, running, wait_for, wait_for_state, wait_until, write_config
from tests.support.topics import TopicRecord, latest, read_raw, read_topic

_FROZEN_S = 35.0
"""Longer than the daemon waits for an answer."""

_AT_LEAST_ONCE = "[delivery]\nguarantee = 'at-least-once'\nmax_transaction_ms = 100\n"

_SLOW_SNAPSHOT = "[snapshot]\nchunk_bytes = 32768\nmax_bytes_per_s = 1000000\n"
"""Slow enough for some kills to come in the middle of it."""


@pytest.fixture
def bank(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        create_tables(connection)
        yield connection


@contextmanager
def frozen_broker(state_dir: Path) -> Iterator[None]:
    """Freeze the broker: its sockets stay open, but it does not answer."""
    broker = next(each.server.process.pid for each in status(state_dir) if each.server.name == "kafka")
    os.kill(broker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker, signal.SIGCONT)


@pytest.mark.timeout(600)
def test_a_frozen_broker_costs_neither_slot_nor_memory_nor_changes(
    bank: psycopg.Connection[Any], servers: Servers, state_dir: Path, database: str, prefix: str, tmp_path: Path
) -> None:
    """The slot stays active, CPU and memory stay low, and afterwards every change comes exactly once."""
    bank.execute("CREATE TABLE more (id int PRIMARY KEY, text text)")
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    config = load(path)
    with running(path, forked=False) as daemon, Writer(database, 11, pause_s=0.02).writing() as writer:
        wait_for(config, lambda record: record.is_state and writer.transactions > 200)
        process = psutil.Process(daemon.process.pid)
        with frozen_broker(state_dir):
            bank.execute("INSERT INTO more SELECT g, repeat('x', 200) FROM generate_series(1, 300000) g")
            _wait_until_idle(process)
            cpu = _cpu(process)
            began = time.monotonic()
            while time.monotonic() - began < _FROZEN_S:
                row = bank.execute(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = %s", (config.source.slot,)
                ).fetchone()
                assert row == (True,)
                time.sleep(0.5)
            cpu = _cpu(process) - cpu
        writer.stop()
        assert cpu / _FROZEN_S < 0.05
        assert daemon.peak_bytes < config.memory.limit
        wait_for_state(config, bank, 120)
        assert events(daemon, "session failed: restarting")[0]["code"] in ("TR-301", "TR-330")
        assert_equal(servers.bootstrap, config, bank)
        assert len(latest(read_topic(servers.bootstrap, prefix, "public.more"))) == 300_000
        assert daemon.stop() == 0


def _cpu(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def _wait_until_idle(process: psutil.Process) -> None:
    """Return when the daemon has filled its buffers, or after 15 s."""
    for _ in range(15):
        before = _cpu(process)
        time.sleep(1)
        if _cpu(process) - before < 0.1:
            return


def test_without_transactions_schemas_precede_rows_and_marks_follow(servers: Servers, prefix: str) -> None:
    """Schemas come before the rows that use them, and the record that rows are read comes after them."""
    kafka = Kafka(bootstrap=servers.bootstrap, prefix=prefix)
    topics = {f"{prefix}.{name}": partitions for name, partitions in (("rows", 3), ("side", 1), ("progress", 1))}
    rows, side, progress = topics
    ensure_topics(kafka, [TopicSpec(name, partitions, {}) for name, partitions in topics.items()])
    sink = KafkaSink(kafka, None, progress)
    to = Destination(rows, [0, 0, 0])

    def there(topic: str) -> list[bytes]:
        return [message.value() for message in read_raw(servers.bootstrap, topic)]

    for i in range(100):
        sink.outbox.send(to, str(i).encode(), b"row", [])
    sink.send_plain(side, b"chunk", b"read")
    sink.send_ahead(side, b"schema", b"schema")
    assert there(side) == [b"schema"]
    counts = sink.flush()
    assert len(there(rows)) == counts[rows] == 100
    assert there(side) == [b"schema", b"read"]
    sink.commit(b"position", b"here")
    assert there(progress) == [b"here"]


def test_a_fenced_producer_says_so_for_a_record_too(servers: Servers, prefix: str) -> None:
    """librdkafka refuses records of a producer that it knows to be fenced, with an error that does not say why."""
    kafka, progress = Kafka(bootstrap=servers.bootstrap, prefix=prefix), f"{prefix}.progress"
    ensure_topics(kafka, [TopicSpec(progress, 1, {})])
    first = KafkaSink(kafka, prefix, progress)
    first.send_plain(progress, b"0", b"")
    second = KafkaSink(kafka, prefix, progress)

    def knows() -> bool:
        try:
            first.producer.produce(progress, b"")
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError._FATAL)
        return False

    try:
        wait_until(knows, 60)
        with pytest.raises(SinkError, match="TR-305"):
            first.send_plain(progress, b"1", b"")
    finally:
        first.abandon()
        second.abandon()


@pytest.mark.parametrize("seed", [5])
def test_changes_that_come_twice_after_a_kill_are_recognizable(
    bank: psycopg.Connection[Any], servers: Servers, database: str, prefix: str, tmp_path: Path, seed: int
) -> None:
    path = write_config(tmp_path, database, servers.bootstrap, prefix, _AT_LEAST_ONCE + _SLOW_SNAPSHOT)
    config = load(path)
    pick = random.Random(seed)
    with Writer(database, seed).writing():
        for _ in range(4):
            daemon = Daemon(path)
            time.sleep(pick.uniform(2.0, 3.5))
            assert daemon.process.poll() is None, daemon.log.read_text()
            daemon.kill()
    with running(path) as daemon:
        assert_each_is_there(servers, config, bank)
        assert daemon.stop() == 0


def assert_each_is_there(servers: Servers, config: Config, connection: psycopg.Connection[Any]) -> None:
    """Compare every table with its topic; the writer must be at rest."""
    cut = wait_for_state(config, connection)
    for table in TABLES:
        topic = f"{config.kafka.prefix}.public.{table}"
        records = read_topic(servers.bootstrap, config.kafka.prefix, f"public.{table}", cut.offsets[topic])
        # no transaction markers in between
        assert len(records) == sum(cut.offsets[topic])
        assert latest(once(records)) == source_rows(connection, table)


def once(records: list[TopicRecord]) -> list[TopicRecord]:
    """Return the records without repetitions, which a reader recognizes by their position alone.

    A repetition has all changes of the partition since some record, in the same order; rows of finished chunks do not
    come again.
    """
    newest: defaultdict[int, Position] = defaultdict(lambda: Position(0, 0, 0))
    newest_change, change = newest.copy(), newest.copy()
    seen: dict[tuple[int, Position], TopicRecord] = {}
    kept = []
    for record in records:
        partition, position = record.partition, record.position
        if position > newest[partition]:
            # a new record never comes in the middle of a repetition
            assert change[partition] == newest_change[partition]
            newest[partition] = position
            if record.snapshot is None:
                newest_change[partition] = position
            kept.append(record)
        else:
            first = seen[partition, position]
            assert (record.key, _after(record)) == (first.key, _after(first))
        seen[partition, position] = record
        if record.snapshot is None:
            change[partition] = position
    return kept


def _after(record: TopicRecord) -> Any:
    return record.value and record.value["after"]
