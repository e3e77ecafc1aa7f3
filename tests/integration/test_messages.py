"""Logical messages are on their topic once each, in transactions or not; the daemon's own are not.

Names in docstrings are those of Debezium's LogicalDecodingMessageIT.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.support.daemon import Daemon, events, running, wait_for, wait_for_state, write_config
from tests.support.topics import TopicRecord, assert_once_in_order, read_topic


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        # so that a few thousand rows are a large transaction
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET logical_decoding_work_mem = '64kB'".encode())
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    return write_config(tmp_path, database, servers.bootstrap, prefix)


def _emit(connection: psycopg.Connection[Any], prefix: str, content: bytes, *, transactional: bool = True) -> None:
    connection.execute("SELECT pg_logical_emit_message(%s, %s, %s::bytea)", (transactional, prefix, content))


def _messages(servers: Servers, config: Config) -> list[TopicRecord]:
    """Return all messages but those that tests emit to wait for the stream."""
    records = read_topic(servers.bootstrap, config.kafka.prefix, "message")
    assert_once_in_order(records)
    return sorted((each for each in records if each.key != ("test",)), key=lambda each: each.position)


def _contents(servers: Servers, config: Config) -> list[bytes]:
    return [each.value["message"]["content"] for each in _messages(servers, config) if each.value]


def test_messages_in_and_outside_of_transactions_are_captured(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """Transactional, non-transactional and excluded messages.

    shouldConsumeTransactionalLogicalDecodingMessages, shouldConsumeNonTransactionalLogicalDecodingMessages,
    shouldNotConsumeLogicalDecodingMessagesWhenExcluded.
    """
    config_path.write_text(config_path.read_text().replace("[kafka]", 'messages = ["*", "!secret*"]\n[kafka]'))
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        with source.transaction():
            source.execute("INSERT INTO t VALUES (1, 'a')")
            _emit(source, "outbox", b"first\x00\xff")
            source.execute("INSERT INTO t VALUES (2, 'b')")
            _emit(source, "ünï", b"")
            with source.transaction(force_rollback=True):
                _emit(source, "outbox", b"rolled back")
            _emit(source, "outbox", b"alone, sent at once", transactional=False)
            _emit(source, "secret.a", b"not for the topic")
        with source.transaction(force_rollback=True):
            _emit(source, "outbox", b"rolled back whole")
            _emit(source, "outbox", b"alone, in spite of it", transactional=False)
        _emit(source, f"tailrace:{config.source.slot}", b'["", "low", 0]')
        wait_for_state(config, source)
        assert daemon.stop() == 0
    records = _messages(servers, config)
    alone, spite = records[0].value, records[3].value
    assert [each.key for each in records] == [("outbox",), ("outbox",), ("ünï",), ("outbox",)]
    assert [each.value["message"]["content"] for each in records if each.value] == [
        b"alone, sent at once",
        b"first\x00\xff",
        b"",
        b"alone, in spite of it",
    ]
    assert alone
    assert spite
    assert (alone["op"], alone["source"]["txId"], alone["source"]["ordinal"]) == ("m", None, 0)
    assert spite["source"]["ts_ms"] > 1_700_000_000_000
    rows = read_topic(servers.bootstrap, config.kafka.prefix, "public.t")
    positions = sorted(each.position for each in [*rows, *records[1:3]])
    assert [position.ordinal for position in positions] == [0, 4, 8, 12]
    assert len({position.commit_lsn for position in positions}) == 1
    first, inserted = records[1].value, rows[0].value
    assert first
    assert inserted
    same = ("version", "connector", "name", "db", "ts_ms", "txId", "commit_lsn", "snapshot", "xmin")
    assert [first["source"][name] for name in same] == [inserted["source"][name] for name in same]
    assert first["source"]["sequence"] == f'["{first["source"]["commit_lsn"]}","{first["source"]["lsn"]}"]'


def test_messages_come_once_over_restarts_and_kills(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """A stop and kills, also right after a non-transactional message.

    shouldResumeStreamingAfterRestartWhenLastEventWasNonTransactionalMessage, and with kills in between.
    """
    config = load(config_path)
    expected = []
    daemon = Daemon(config_path)
    wait_for(config, lambda record: record.is_state)
    for n in range(8):
        expected.append(f"{n} alone".encode())
        _emit(source, "outbox", expected[-1], transactional=False)
        if n % 2:
            with source.transaction():
                source.execute("INSERT INTO t VALUES (%s)", (n,))
                expected.append(f"{n} with".encode())
                _emit(source, "outbox", expected[-1])
            daemon.kill()
        else:
            # the non-transactional message is the last record on the topics
            wait_for(config, lambda _: len(_messages(servers, config)) == len(expected))
            if n % 4:
                assert daemon.stop() == 0
            else:
                daemon.kill()
        daemon = Daemon(config_path)
    source.execute("INSERT INTO t VALUES (100)")
    wait_for_state(config, source)
    assert daemon.stop() == 0
    assert _contents(servers, config) == expected
    assert len(read_topic(servers.bootstrap, config.kafka.prefix, "public.t")) == 5


def test_messages_of_streamed_and_split_transactions_come_once(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """Transactions streamed in progress and split over several Kafka transactions; a part is rolled back."""
    text = config_path.read_text().replace("[kafka]", "streaming = true\n[kafka]")
    config_path.write_text(text + "[delivery]\nmax_transaction_bytes = 65536\n")
    config = load(config_path)
    insert = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series({}, {}) g"
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        with source.transaction():
            for n in range(4):
                source.execute(insert.format(n * 1000, n * 1000 + 999).encode())
                _emit(source, "outbox", f"large {n}".encode())
        wait_for(config, lambda record: record.open is not None)
        daemon.kill()
    with running(config_path) as daemon:
        wait_for_state(config, source)
        assert "source.streaming turned off" not in daemon.log.read_text()
        with source.transaction():
            source.execute(insert.format(10_000, 12_000).encode())
            _emit(source, "outbox", b"kept")
            with source.transaction(force_rollback=True):
                source.execute(insert.format(20_000, 22_000).encode())
                _emit(source, "outbox", b"rolled back")
            source.execute(insert.format(13_000, 15_000).encode())
        wait_for_state(config, source)
        assert daemon.stop() == 0
    assert _contents(servers, config) == [b"large 0", b"large 1", b"large 2", b"large 3", b"kept"]
    rows = read_topic(servers.bootstrap, config.kafka.prefix, "public.t")
    assert_once_in_order(rows)
    assert len(rows) == 4000 + 2 * 2001
    assert [each["code"] for each in events(daemon, "session failed: restarting")] == ["TR-212"]
