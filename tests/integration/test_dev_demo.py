"""The demo shop has the promised rows and types, and its load survives a lost connection."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import psycopg
import pytest

from tailrace.cdc.dev.demo import load
from tailrace.cdc.dev.process import Process, started_at, wait_until
from tailrace.cdc.dev.shop import create_shop


@pytest.fixture
def shop(database: str) -> str:
    create_shop(database)
    return database


def test_the_shop_is_created_fast_and_only_once(database: str) -> None:
    began = time.monotonic()
    counts = create_shop(database)
    assert time.monotonic() - began < 10  # 0.5 s when measured
    assert 90_000 < sum(counts.values()) < 110_000
    assert min(counts.values()) == counts["countries"] == 20
    assert create_shop(database) == counts


def test_the_shop_has_what_is_hard_to_capture(shop: str) -> None:
    with psycopg.connect(shop) as connection:
        types = connection.execute(
            "SELECT table_name || '.' || column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = 'public'"
        ).fetchall()
        assert {
            ("orders.status", "USER-DEFINED"),
            ("orders.total", "numeric"),
            ("products.attributes", "jsonb"),
            ("products.labels", "ARRAY"),
            ("orders.placed_at", "timestamp with time zone"),
        } <= set(types)
        key = connection.execute(
            "SELECT indnkeyatts FROM pg_index WHERE indrelid = 'order_items'::regclass AND indisprimary"
        ).fetchone()
        assert key == (2,)
        # Longer than 8 kB and stored out of line: the row itself has only a pointer.
        long, out_of_line = connection.execute(
            "SELECT count(*), count(*) FILTER (WHERE pg_column_toast_chunk_id(description) IS NOT NULL)"
            " FROM products WHERE length(description) > 8192"
        ).fetchone() or (0, 0)
        assert long == out_of_line == 200


def changes(dsn: str, *columns: str) -> tuple[int, ...]:
    with psycopg.connect(dsn) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(
            f"SELECT {', '.join(columns)} FROM pg_stat_database WHERE datname = current_database()".encode()
        ).fetchone()
    return tuple(row or ())


def test_the_load_inserts_updates_deletes_moves_keys_and_rolls_back(shop: str) -> None:
    columns = ("tup_inserted", "tup_updated", "tup_deleted", "xact_rollback")
    with psycopg.connect(shop) as connection:
        before_items = connection.execute("SELECT order_id, line FROM order_items").fetchall()
    before = changes(shop, *columns)
    stop = threading.Event()
    threading.Timer(3, stop.set).start()
    began = time.monotonic()
    done = load(shop, 400, stop, seed=3)
    seconds = time.monotonic() - began
    assert 0 < done < 1.1 * 400 * seconds
    grown = [after - first for after, first in zip(changes(shop, *columns), before, strict=True)]
    assert all(number > 0 for number in grown), dict(zip(columns, grown, strict=True))
    with psycopg.connect(shop) as connection:
        after_items = connection.execute("SELECT order_id, line FROM order_items").fetchall()
        # An order with a new number keeps its old date.
        moved = connection.execute(
            "SELECT count(*) FROM orders WHERE id > 25000 AND note IS DISTINCT FROM 'demo'"
        ).fetchone()
    assert set(after_items) != set(before_items)
    assert moved is not None
    assert moved[0] > 0


def test_the_load_survives_a_lost_connection(shop: str) -> None:
    stop = threading.Event()
    result: list[int] = []
    loader = threading.Thread(target=lambda: result.append(load(shop, 200, stop)))
    loader.start()
    try:
        time.sleep(1)
        with psycopg.connect(shop) as connection:
            ended = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            ).fetchone()
            assert ended == (1,)
        before = changes(shop, "xact_commit")
        deadline = time.monotonic() + 30
        while changes(shop, "xact_commit")[0] <= before[0] + 20:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        stop.set()
        loader.join(10)
    assert result[0] > 20


def has_new_orders(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT FROM orders WHERE note = 'demo' LIMIT 1").fetchone() is not None


def test_the_load_as_a_program_ends_at_sigterm(shop: str) -> None:
    command = [sys.executable, "-m", "tailrace.cdc.dev.demo", "load", "--dsn", shop, "--rate", "100"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        me = Process(program.pid, started_at(program.pid) or "")
        # by new rows: autovacuum changes counters, too, and the program may not have its signal handlers yet
        assert wait_until(lambda: has_new_orders(shop), me, 20)
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate(timeout=10)
    assert program.returncode == 0
    assert "rows changed" in said
