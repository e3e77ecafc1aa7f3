"""The core features on PostgreSQL 14 to 18: first snapshot under load, every kind of change, kill -9.

All other tests run on 18 only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tests.support.bank import Writer, assert_equal, create_tables
from tests.support.daemon import events, running, wait_for, wait_for_state, write_config
from tests.support.postgres_versions import OLDER, binaries, running_postgres
from tests.support.servers import fresh_database
from tests.support.topics import TopicRecord, assert_once_in_order, latest, read_topic

_ACCOUNTS = 400


@pytest.fixture(scope="module", params=[*OLDER, 18])
def server_dsn(request: pytest.FixtureRequest, servers: Servers) -> Iterator[str]:
    major = request.param
    if major == 18:
        yield servers.dsn
        return
    try:
        binaries(major)
    except ConfigError as missing:
        pytest.skip(f"no PostgreSQL {major}: {missing.message}. {missing.detail}")
    with running_postgres(major, {"fsync": "off"}) as dsn:
        with psycopg.connect(dsn) as connection:
            assert connection.info.server_version // 10_000 == major
        yield dsn


@pytest.fixture
def old_database(server_dsn: str) -> Iterator[str]:
    with fresh_database(server_dsn) as dsn:
        yield dsn


@pytest.fixture
def bank(old_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(old_database, autocommit=True) as connection:
        # so that a few thousand rows are a large transaction
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET logical_decoding_work_mem = '64kB'".encode())
        create_tables(connection, _ACCOUNTS)
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, old_database: str, prefix: str) -> Path:
    return write_config(tmp_path, old_database, servers.bootstrap, prefix)


def test_snapshot_stream_and_every_kind_of_change_equal_the_source(
    bank: psycopg.Connection[Any], servers: Servers, old_database: str, config_path: Path
) -> None:
    config = load(config_path)
    _publish(bank)
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
        bank.execute("UPDATE visit SET id = id + 300 WHERE id % 10 = 9")
        bank.execute("DELETE FROM visit WHERE id < 3")
        bank.execute("UPDATE visit SET id = id - 250 WHERE id = 251")
        bank.execute("INSERT INTO event SELECT g FROM generate_series(4, 6) g; UPDATE event SET n = -n")
        for transactional in (True, False):
            bank.execute("SELECT pg_logical_emit_message(%s, 'outbox', 'said')", (transactional,))
        writer.stop()
        assert_equal(servers.bootstrap, config, bank)
        assert daemon.stop() == 0
    records = _records(servers, config, "document")
    (deleted,) = [each for each in records if each.value and each.value["op"] == "d" and each.key == (6,)]
    assert deleted.value
    assert before
    assert deleted.value["before"] == dict(zip(("id", "title", "body", "data"), before, strict=True))
    assert {each.partition for each in _records(servers, config, "entry") if each.key == ()} == {0, 1, 2}
    visits = _records(servers, config, "visit")
    assert_once_in_order(visits)
    assert latest(visits) == _published_visits(bank)
    inserted = [each.value["after"]["n"] for each in _records(servers, config, "event") if each.value]
    assert inserted == [1, 2, 3, 4, 5, 6]
    messages = [each for each in read_topic(servers.bootstrap, config.kafka.prefix, "message") if each.key != ("test",)]
    assert [each.value and each.value["message"]["content"] for each in messages] == [b"said", b"said"]


def _publish(connection: psycopg.Connection[Any]) -> None:
    """Create the publication as an owner does; from 15 on with a column list and a row filter."""
    part = "(id, page) WHERE (id < 250)" if connection.info.server_version >= 150000 else ""
    connection.execute(
        "CREATE TABLE visit (id int PRIMARY KEY, page text, secret text) PARTITION BY RANGE (id);"
        "CREATE TABLE visit_low PARTITION OF visit FOR VALUES FROM (0) TO (200);"
        "CREATE TABLE visit_high PARTITION OF visit FOR VALUES FROM (200) TO (1000);"
        "INSERT INTO visit SELECT g, 'page ' || g, 'no' FROM generate_series(0, 299) g;"
        f"CREATE PUBLICATION tailrace FOR TABLE account, entry, document, visit {part}"
        " WITH (publish_via_partition_root = true);"
        "CREATE TABLE event (n int);"
        "INSERT INTO event VALUES (1), (2), (3);"
        "CREATE PUBLICATION tailrace_nokey FOR TABLE event WITH (publish = 'insert, truncate')".encode()
    )


def _published_visits(connection: psycopg.Connection[Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    whole = connection.info.server_version < 150000
    columns, where = ("id, page, secret", "true") if whole else ("id, page", "id < 250")
    cursor = connection.cursor(row_factory=dict_row)
    cursor.execute(f"SELECT {columns} FROM visit WHERE {where}".encode())
    return {(row["id"],): row for row in cursor}


def _large_transaction(connection: psycopg.Connection[Any]) -> None:
    """Exceed `logical_decoding_work_mem` with a part rolled back; roll another transaction back whole."""
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


def test_kills_in_mid_snapshot_and_mid_stream_lose_nothing(
    bank: psycopg.Connection[Any],
    servers: Servers,
    old_database: str,
    config_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # large transactions are streamed in progress here, and sent whole in the other test
    monkeypatch.setenv("TAILRACE__SOURCE__STREAMING", "true")
    # many chunks and commits, so that there is time to kill the daemon in between
    with config_path.open("a") as file:
        file.write("[snapshot]\nchunk_bytes = 8192\n[delivery]\nmax_transaction_ms = 10\n")
    config = load(config_path)
    with Writer(old_database, 2, _ACCOUNTS).writing() as writer:
        with running(config_path) as daemon:
            wait_for(config, lambda record: record.incomplete_tables and record.counts)
            daemon.kill()
        (begins,) = events(daemon, "first snapshot started")
        with running(config_path) as daemon:
            wait_for(config, lambda record: not record.incomplete_tables)
            wait_for_state(config, bank)
            _large_transaction(bank)
            daemon.kill()
        assert 0 < events(daemon, "snapshot resumed in windows")[0]["chunks"] < begins["chunks"]
        assert writer.transactions > 100
    with running(config_path) as daemon:
        assert_equal(servers.bootstrap, config, bank)
        assert daemon.stop() == 0
    statistics = "SELECT FROM pg_stat_replication_slots WHERE slot_name = %s AND stream_txns > 0"
    assert bank.execute(statistics, (config.source.slot,)).rowcount == 1
