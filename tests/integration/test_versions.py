"""The core that also holds on PostgreSQL 14 to 17: a first snapshot under load, every kind of change, and kill -9.

All the other tests run on 18.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.dev.state import Servers
from schemas.config import Config
from schemas.configfile import load
from schemas.errors import ConfigError
from tests.bank import Writer, assert_equal, create_tables
from tests.daemon import running, wait_for, wait_for_state, write_config
from tests.postgres_versions import OLDER, running_postgres
from tests.servers import fresh_database
from tests.topics import TopicRecord, read_topic

_ACCOUNTS = 400

# Small, so that large transactions are few and yet streamed, or their rolled-back parts told, where a version does it.
_SETTINGS = {"fsync": "off", "logical_decoding_work_mem": "64kB"}


@pytest.fixture(scope="module", params=OLDER)
def server_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    server = running_postgres(request.param, _SETTINGS)
    try:
        dsn = server.__enter__()
    except ConfigError as missing:
        pytest.skip(f"no PostgreSQL {request.param}: {missing}")
    try:
        with psycopg.connect(dsn) as connection:
            assert connection.info.server_version // 10_000 == request.param
        yield dsn
    finally:
        server.__exit__(None, None, None)


@pytest.fixture
def old_database(server_dsn: str) -> Iterator[str]:
    with fresh_database(server_dsn) as dsn:
        yield dsn


@pytest.fixture
def bank(old_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(old_database, autocommit=True) as connection:
        create_tables(connection, _ACCOUNTS)
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, old_database: str, prefix: str) -> Path:
    more = "[snapshot]\nchunk_bytes = 65536\n[delivery]\nmax_transaction_ms = 100\n"
    return write_config(tmp_path, old_database, servers.bootstrap, prefix, more)


def test_snapshot_and_stream_and_every_kind_of_change(
    bank: psycopg.Connection[Any], servers: Servers, old_database: str, config_path: Path
) -> None:
    config = load(config_path)
    with Writer(old_database, 1, _ACCOUNTS).writing() as writer, running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state and writer.transactions > 100)
        bank.execute("UPDATE account SET id = id + 1000000 WHERE id > 390")
        bank.execute("UPDATE document SET title = 'the body stays out of line' WHERE id % 3 = 0")
        _large_transaction(bank)
        bank.execute("ALTER TABLE document REPLICA IDENTITY FULL")
        before = bank.execute("SELECT id, title, body, data::text FROM document WHERE id = 6").fetchone()
        bank.execute("UPDATE document SET id = 2000006, data = NULL WHERE id = 6")
        bank.execute("UPDATE document SET title = 'full' WHERE id = 9")
        bank.execute("DELETE FROM document WHERE id = 12")
        bank.execute("TRUNCATE entry")
        writer.stop()
        assert_equal(servers.bootstrap, config, bank)
        assert daemon.stop() == 0
    records = _records(servers, config, "document")
    (deleted,) = [each for each in records if each.value and each.value["op"] == "d" and each.key == (6,)]
    assert deleted.value
    assert before
    assert deleted.value["before"] == dict(zip(("id", "title", "body", "data"), before, strict=True))
    assert {each.partition for each in _records(servers, config, "entry") if each.key == ()} == {0, 1, 2}


def _large_transaction(connection: psycopg.Connection[Any]) -> None:
    """More than `logical_decoding_work_mem`, with a part rolled back, and beside it one that is rolled back whole."""
    insert = "INSERT INTO entry (account, n) SELECT 1, g FROM generate_series(%s::int, %s::int) g"
    with connection.transaction(force_rollback=True):
        connection.execute(insert, (500_001, 503_000))
    with connection.transaction():
        connection.execute("UPDATE account SET version = version + 1 WHERE id < 100")
        with connection.transaction(force_rollback=True):
            connection.execute(insert, (500_001, 503_000))
        connection.execute(insert, (600_001, 603_000))


def _records(servers: Servers, config: Config, table: str) -> list[TopicRecord]:
    return read_topic(servers.bootstrap, config.kafka.prefix, f"public.{table}")


def test_killed_in_mid_snapshot_and_mid_stream(
    bank: psycopg.Connection[Any], servers: Servers, old_database: str, config_path: Path
) -> None:
    config = load(config_path)
    with Writer(old_database, 2, _ACCOUNTS).writing() as writer:
        with running(config_path) as daemon:
            wait_for(config, lambda record: record.incomplete_tables and record.counts)
            daemon.kill()
        assert "first snapshot complete" not in daemon.log.read_text()
        with running(config_path) as daemon:
            wait_for(config, lambda record: not record.incomplete_tables)
            wait_for_state(config, bank)
            time.sleep(0.2)
            _large_transaction(bank)
            daemon.kill()
        assert writer.transactions > 100
    with running(config_path) as daemon:
        assert_equal(servers.bootstrap, config, bank)
        assert daemon.stop() == 0
    assert "snapshot goes on in windows" in daemon.log.read_text()
