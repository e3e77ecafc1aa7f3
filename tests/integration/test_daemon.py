"""The daemon against real servers: what is on the topics is what is in the database, whatever is killed when."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.dev.state import Servers
from schemas.config import Config
from schemas.configfile import load
from tests.daemon import Daemon, running, wait_for, wait_for_state, write_config
from tests.topics import assert_once_in_order, latest, read_topic

_TABLES = ("account", "entry", "document")


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Tables with a sum that every transaction keeps, a composite key, and values out of line."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE account (id int PRIMARY KEY, balance numeric(12,2) NOT NULL, version int NOT NULL);"
            "CREATE TABLE entry (account int, n int, amount numeric(12,2), at timestamptz DEFAULT clock_timestamp(),"
            " tags text[], PRIMARY KEY (account, n));"
            "CREATE TABLE document (id int PRIMARY KEY, title text, body text, data jsonb);"
            "ALTER TABLE document ALTER body SET STORAGE EXTERNAL;"
            "INSERT INTO account SELECT g, 100, 0 FROM generate_series(1, 2000) g;"
            "INSERT INTO entry SELECT 1 + g % 2000, g, g / 7.0, now(), ARRAY['a', NULL, 'b\"c']"
            " FROM generate_series(1, 30000) g;"
            "INSERT INTO document SELECT g, 'document ' || g, CASE WHEN g % 3 = 0 THEN repeat(g::text, 3000) END,"
            " jsonb_build_object('n', g) FROM generate_series(1, 1000) g"
        )
        yield connection


class Writer:
    """Transactions over several tables from a seed: transfers, key changes, deletes, updates beside a TOAST value."""

    def __init__(self, dsn: str, seed: int) -> None:
        self._dsn = dsn
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.transactions = 0
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self._stop.is_set():
                self._transaction(connection)
                if self._random.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                self.transactions += 1
                time.sleep(0.002)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        pick = self._random
        giver, taker = pick.sample(range(1, 2001), 2)
        amount = pick.randint(1, 500) / 100
        move = "UPDATE account SET balance = balance + %s, version = version + 1 WHERE id = %s"
        connection.execute(move, (-amount, giver))
        connection.execute(move, (amount, taker))
        n = 100_000 + self.transactions
        connection.execute("INSERT INTO entry (account, n, amount) VALUES (%s, %s, %s)", (giver, n, amount))
        if pick.random() < 0.3:
            connection.execute("DELETE FROM entry WHERE n = %s", (pick.randint(1, n),))
        if pick.random() < 0.3:
            connection.execute("UPDATE entry SET n = n + 10000000 WHERE n = %s", (pick.randint(1, n),))
        if pick.random() < 0.3:
            connection.execute("UPDATE document SET title = title || '!' WHERE id = %s", (pick.randint(1, 1000),))
        if pick.random() < 0.05:
            connection.execute(
                "INSERT INTO document (id, title, body) VALUES (%s, 'new', repeat('y', 9000))"
                " ON CONFLICT (id) DO UPDATE SET body = excluded.body, title = 'again'",
                (pick.randint(900, 1100),),
            )

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()


def source_rows(connection: psycopg.Connection[Any], table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return a table by key as psycopg reads it; jsonb as text, as it is on the topic."""
    key = {"entry": ("account", "n")}.get(table, ("id",))
    columns = "id, title, body, data::text" if table == "document" else "*"
    cursor = connection.execute(f"SELECT {columns} FROM {table}".encode())
    assert cursor.description
    names = [column.name for column in cursor.description]
    rows = (dict(zip(names, row, strict=True)) for row in cursor)
    return {tuple(row[name] for name in key): row for row in rows}


def assert_equal(servers: Servers, config: Config, connection: psycopg.Connection[Any]) -> None:
    """Compare every table with its topic, row by row, with the writer at rest."""
    cut = wait_for_state(config, connection)
    for table in _TABLES:
        topic = f"{config.kafka.prefix}.public.{table}"
        records = read_topic(servers.bootstrap, config.kafka.prefix, f"public.{table}", cut.offsets[topic])
        assert_once_in_order(records)
        rows, expected = latest(records), source_rows(connection, table)
        assert rows.keys() == expected.keys()
        different = [key for key, row in expected.items() if rows[key] != row]
        assert not different, f"{table} {different[0]}: {rows[different[0]]} is not {expected[different[0]]}"


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    more = "[snapshot]\nchunk_bytes = 65536\n[delivery]\nmax_transaction_ms = 100\n"
    return write_config(tmp_path, database, servers.bootstrap, prefix, more)


def test_snapshot_and_stream_equal_the_source(
    shop: psycopg.Connection[Any], servers: Servers, database: str, config_path: Path
) -> None:
    config = load(config_path)
    with Writer(database, 1).writing() as writer, running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state and writer.transactions > 500)
        writer._stop.set()
        writer._thread.join()
        assert_equal(servers, config, shop)
        assert daemon.stop() == 0


def test_killed_in_mid_snapshot(
    shop: psycopg.Connection[Any], servers: Servers, database: str, config_path: Path
) -> None:
    config = load(config_path)
    with Writer(database, 2).writing():
        with running(config_path) as daemon:
            wait_for(config, lambda record: record.incomplete_tables and record.counts)
            daemon.kill()
        assert "first snapshot complete" not in daemon.log.read_text()
        with running(config_path):
            wait_for(config, lambda record: not record.incomplete_tables)
        # the rows of finished chunks are not read again: those of the second run stand elsewhere
    with running(config_path) as daemon:
        assert_equal(servers, config, shop)
        assert "snapshot goes on in windows" in daemon.log.read_text()


@pytest.mark.parametrize("seed", [3, 4])
def test_killed_in_mid_stream(
    shop: psycopg.Connection[Any], servers: Servers, database: str, config_path: Path, seed: int
) -> None:
    config = load(config_path)
    pick = random.Random(seed)
    with Writer(database, seed).writing() as writer:
        with running(config_path):
            wait_for(config, lambda record: not record.incomplete_tables)
        for _ in range(4):
            daemon = Daemon(config_path)
            time.sleep(pick.uniform(1.0, 2.5))
            assert daemon.process.poll() is None, daemon.log.read_text()
            daemon.kill()
        assert writer.transactions > 100
    with running(config_path) as daemon:
        assert_equal(servers, config, shop)
        assert daemon.stop() == 0


def test_truncate_empties_the_topic(shop: psycopg.Connection[Any], servers: Servers, config_path: Path) -> None:
    config = load(config_path)
    with running(config_path):
        wait_for(config, lambda record: record.is_state)
        shop.execute("TRUNCATE entry, document")
        shop.execute("INSERT INTO entry (account, n) VALUES (1, 1)")
        assert_equal(servers, config, shop)


def test_slot_moves_while_captured_tables_are_idle(
    shop: psycopg.Connection[Any], database: str, servers: Servers, config_path: Path
) -> None:
    config = load(config_path)
    with running(config_path):
        wait_for(config, lambda record: record.is_state)
        shop.execute("CREATE UNLOGGED TABLE elsewhere (x int); DROP TABLE elsewhere")
        shop.execute("SELECT pg_switch_wal()")
        row = shop.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            confirmed = shop.execute(
                "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s",
                (row[0], config.source.slot),
            ).fetchone()
            if confirmed == (True,):
                return
            time.sleep(0.2)
        pytest.fail("the slot holds WAL back although there is nothing to read in it")
