"""The daemon against real servers: topics equal the database, whatever is killed at any time."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.support.bank import Writer, assert_equal, create_tables
from tests.support.daemon import Daemon, events, running, wait_for, wait_for_state, write_config


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        create_tables(connection)
        yield connection


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
        writer.stop()
        assert_equal(servers.bootstrap, config, shop)
        assert daemon.stop() == 0


@pytest.mark.parametrize("seed", [3, 4])
def test_a_daemon_killed_in_mid_stream_loses_nothing(
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
        assert_equal(servers.bootstrap, config, shop)
        assert daemon.stop() == 0


def test_truncate_empties_the_topic(shop: psycopg.Connection[Any], servers: Servers, config_path: Path) -> None:
    config = load(config_path)
    with running(config_path):
        wait_for(config, lambda record: record.is_state)
        shop.execute("TRUNCATE entry, document")
        shop.execute("INSERT INTO entry (account, n) VALUES (1, 1)")
        assert_equal(servers.bootstrap, config, shop)


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
        # the daemon moves it at most every 10 s, from the server's keepalives every 4 s
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            confirmed = shop.execute(
                "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s",
                (row[0], config.source.slot),
            ).fetchone()
            if confirmed == (True,):
                return
            time.sleep(0.2)
        pytest.fail("the slot holds WAL back although there is nothing to read in it")


def test_the_daemon_survives_the_loss_of_its_query_connection(
    shop: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        wait_for_state(config, shop)  # so that the first copy has ended and the stream runs
        (ended,) = shop.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name = 'tailrace' AND backend_type = 'client backend' AND datname = current_database()"
        ).fetchall()
        assert ended[0] > 0
        # this makes the daemon query a shape that the stream has not shown yet
        shop.execute("UPDATE document SET title = 'new' WHERE id = 1")
        assert_equal(servers.bootstrap, config, shop)
        assert events(daemon, "session failed: restarting")
        assert daemon.stop() == 0


@pytest.mark.parametrize("level", ["debug", "warning"])
def test_the_log_has_the_events_of_the_configured_level(
    shop: psycopg.Connection[Any], config_path: Path, level: str
) -> None:
    # a pattern without a table, which is logged as a warning
    text = config_path.read_text().replace("[kafka]", 'tables = ["public.*", "!public.absent"]\n[kafka]')
    config_path.write_text(text + f'[log]\nlevel = "{level}"\n')
    with running(config_path) as daemon:
        wait_for_state(load(config_path), shop)
        assert daemon.stop() == 0
    written = [json.loads(line) for line in daemon.log.read_text().splitlines()]
    assert "!public.absent" in {each.get("pattern") for each in written if each["level"] == "warning"}
    if level == "warning":
        assert {each["level"] for each in written} <= {"warning", "error"}
    else:
        assert {"transaction committed", "shape", "table state", "stream resumed"} <= {
            each["event"] for each in written
        }
        assert {each["status"] for each in written if each["event"] == "table state"} >= {"reading", "streaming"}
