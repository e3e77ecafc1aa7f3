"""The patterns of ``source.tables`` decide what is captured, whatever the publication has besides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.dev.state import Servers
from schemas.config import Config
from schemas.configfile import load
from tests.daemon import Daemon, running, wait_for, wait_for_state, write_config
from tests.topics import all_bytes, assert_once_in_order, latest, read_topic

_SECRET = "s3cr3t-of-others"

_TABLES = f"""
CREATE SCHEMA shop; CREATE SCHEMA hr;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text);
CREATE TABLE shop.items (id int PRIMARY KEY, note text);
CREATE TABLE shop.audit_log (id int PRIMARY KEY, note text);
CREATE TABLE hr.people (id int PRIMARY KEY, note text);
INSERT INTO shop.orders SELECT g, 'o' || g FROM generate_series(1, 5) g;
INSERT INTO shop.items SELECT g, 'i' || g FROM generate_series(1, 5) g;
INSERT INTO shop.audit_log VALUES (1, '{_SECRET}');
INSERT INTO hr.people VALUES (1, '{_SECRET}');
"""

_PUBLICATIONS = {
    "tables": "FOR TABLE shop.orders, shop.items, shop.audit_log, hr.people",
    "all tables": "FOR ALL TABLES",
    "schemas": "FOR TABLES IN SCHEMA shop, hr",
}


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES.encode())
        yield connection


def _config(folder: Path, servers: Servers, database: str, prefix: str, tables: str, more: str = "") -> Path:
    return write_config(folder, database, servers.bootstrap, prefix, source=f"tables = {tables}\n{more}")


def _publish(source: psycopg.Connection[Any], what: str) -> None:
    source.execute(f"CREATE PUBLICATION tailrace {what} WITH (publish_via_partition_root = true)".encode())


def _assert_equal(source: psycopg.Connection[Any], servers: Servers, config: Config, *tables: str) -> None:
    for table in tables:
        records = read_topic(servers.bootstrap, config.kafka.prefix, table)
        assert_once_in_order(records)
        rows = source.execute(f"SELECT id, note FROM {table}".encode()).fetchall()
        assert {key[0]: row["note"] for key, row in latest(records).items()} == dict(rows)


def _assert_nothing_of_others(servers: Servers, config: Config, daemon: Daemon) -> None:
    raw = all_bytes(servers.bootstrap, config.kafka.prefix)
    assert b"orders" in raw
    assert _SECRET.encode() not in raw
    assert _SECRET not in daemon.log.read_text()


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize("what", _PUBLICATIONS)
def test_patterns_decide_over_a_publication_that_is_there(
    tmp_path: Path,
    servers: Servers,
    database: str,
    prefix: str,
    source: psycopg.Connection[Any],
    what: str,
    streaming: str,
) -> None:
    """First copy, single changes, truncates and large transactions: nothing of other tables leaves the process."""
    _publish(source, _PUBLICATIONS[what])
    source.execute(f"ALTER DATABASE {source.info.dbname} SET logical_decoding_work_mem = '64kB'".encode())
    path = _config(
        tmp_path, servers, database, prefix, '["shop.*", "!shop.audit_log"]', f"streaming = {streaming}\n"
    )
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute(
            f"BEGIN; INSERT INTO shop.audit_log VALUES (2, '{_SECRET}'); INSERT INTO shop.orders VALUES (6, 'six');"
            f"UPDATE hr.people SET note = note || '{_SECRET}'; UPDATE shop.orders SET note = 'seven' WHERE id = 1;"
            "DELETE FROM shop.audit_log WHERE id = 1; TRUNCATE shop.audit_log, shop.items;"
            "INSERT INTO shop.items VALUES (9, 'nine'); COMMIT".encode()
        )
        source.execute(
            f"BEGIN; INSERT INTO shop.audit_log SELECT g, '{_SECRET}' || repeat('x', 500) FROM"
            " generate_series(10, 3000) g; INSERT INTO shop.orders SELECT g, 'large' FROM generate_series(10, 3000) g;"
            f"SAVEPOINT a; UPDATE hr.people SET note = '{_SECRET}'; ROLLBACK TO a;"
            f"INSERT INTO hr.people SELECT g, '{_SECRET}' || repeat('x', 500) FROM generate_series(10, 3000) g;"
            "UPDATE shop.orders SET note = 'last' WHERE id = 2; COMMIT".encode()
        )
        wait_for_state(config, source)
        _assert_equal(source, servers, config, "shop.orders", "shop.items")
        _assert_nothing_of_others(servers, config, daemon)
        assert daemon.stop() == 0


def test_renames_into_and_out_of_the_patterns(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """A table is captured while its name is taken; when it returns, its topic lacks changes and begins again."""
    _publish(source, "FOR ALL TABLES")
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit*"]')
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute("ALTER TABLE shop.items SET SCHEMA hr; ALTER TABLE shop.orders RENAME TO audit_orders")
        source.execute(f"UPDATE hr.items SET note = '{_SECRET}'; DELETE FROM hr.items WHERE id = 1")
        source.execute(f"INSERT INTO shop.audit_orders VALUES (50, '{_SECRET}')")
        source.execute("CREATE TABLE shop.other (id int PRIMARY KEY, note text); INSERT INTO shop.other VALUES (1, '')")
        wait_for_state(config, source)
        _assert_nothing_of_others(servers, config, daemon)
        # in one transaction, too: out, a change, in again
        source.execute(
            f"BEGIN; ALTER TABLE shop.other RENAME TO audit; INSERT INTO shop.audit VALUES (2, '{_SECRET}');"
            "UPDATE shop.audit SET note = 'public' WHERE id = 2; ALTER TABLE shop.audit RENAME TO other; COMMIT"
        )
        source.execute("INSERT INTO shop.other VALUES (3, 'three')")
        source.execute("UPDATE hr.items SET note = 'public'; ALTER TABLE hr.items SET SCHEMA shop")
        source.execute("INSERT INTO shop.items VALUES (60, 'sixty')")
        wait_for_state(config, source)
        _assert_equal(source, servers, config, "shop.items", "shop.other")
        source.execute("DELETE FROM shop.audit_orders WHERE id = 50; ALTER TABLE shop.audit_orders RENAME TO orders")
        source.execute("UPDATE shop.orders SET note = 'again'")
        wait_for_state(config, source)
        _assert_equal(source, servers, config, "shop.orders", "shop.items", "shop.other")
        _assert_nothing_of_others(servers, config, daemon)
        assert daemon.stop() == 0
