"""Tables that change before, between and after the marks of every window: topics equal the tables.

The changes come from seeds; `TAILRACE_TEST_SEEDS` sets their number.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.support import window_daemon
from tests.support.daemon import running, wait_for, wait_for_state, write_config
from tests.support.forked import Forked
from tests.support.postgres_own import own_postgres
from tests.support.topics import assert_once_in_order, latest, read_topic
from tests.support.window_daemon import LOG, POINTS, TABLES, create

SEEDS = range(int(os.environ.get("TAILRACE_TEST_SEEDS", "1")))
MORE = '[snapshot]\nchunk_bytes = 8192\nmode = "interleaved"\n[delivery]\nmax_transaction_ms = 20\n'


@pytest.fixture(scope="module")
def waiting_dsn() -> Iterator[str]:
    """A server where a commit, on request, waits for a standby that does not exist."""
    settings = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    with own_postgres(settings) as server:
        yield postgres.dsn(server)


@contextmanager
def _changing(config: Path, dsn: str, seed: int, *more: str) -> Iterator[Forked]:
    log = config.parent / "run.log"
    process = Forked(window_daemon.main, [str(config), dsn, str(seed), *more], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _equal(servers: Servers, config: Config, connection: psycopg.Connection[Any], *, once: bool = True) -> None:
    cut = wait_for_state(config, connection)
    for table in TABLES:
        topic = f"{config.kafka.prefix}.public.{table}"
        records = read_topic(servers.bootstrap, config.kafka.prefix, f"public.{table}", cut.offsets[topic])
        assert_once_in_order(records)
        assert () not in {record.key for record in records}, "nothing was emptied"
        cursor = connection.cursor(row_factory=dict_row)
        key = "(b, a)" if table == "by_two" else "id"
        rows = cursor.execute(f"SELECT * FROM {table} ORDER BY {key}".encode()).fetchall()
        columns = ("b", "a") if table == "by_two" else ("id",)
        expected = {tuple(str(row[name]) for name in columns): str(row["v"]) for row in rows}
        found = {tuple(str(row[name]) for name in columns): str(row["v"]) for row in latest(records).values()}
        assert found == expected, table
        assert len({record.key for record in records if record.snapshot}) > 10, "windows have sent rows, too"
    _equal_log(servers, config, connection, once)


def _equal_log(servers: Servers, config: Config, connection: psycopg.Connection[Any], once: bool) -> None:
    """The records after the last truncate are the rows of the table without a key, each once.

    With `once`, the rows of all processes differ, so records before it are checked, too.
    """
    cut = wait_for_state(config, connection)
    offsets = cut.offsets[f"{config.kafka.prefix}.public.{LOG}"]
    records = read_topic(servers.bootstrap, config.kafka.prefix, f"public.{LOG}", offsets)
    assert_once_in_order(records)
    between: list[Counter[int]] = [Counter()]
    for record in records:
        if record.key == ():
            between.append(Counter())
        elif record.value:
            between[-1][record.value["after"]["v"]] += 1
    assert between[-1] == Counter(v for (v,) in connection.execute(f"SELECT v FROM {LOG}".encode()))
    assert not once or {count for each in between for count in each.values()} <= {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_topics_equal_tables_that_change_around_every_mark(
    seed: int, servers: Servers, tmp_path: Path, waiting_dsn: str, prefix: str
) -> None:
    dsn = postgres.create_database(waiting_dsn, f"w{prefix}")
    path = write_config(tmp_path, dsn, servers.bootstrap, prefix, MORE)
    config = load(path)
    with psycopg.connect(dsn, autocommit=True) as connection:
        create(connection, 300)
        with _changing(path, dsn, seed, "--waiting"):
            wait_for(config, lambda record: record.is_state)
            connection.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            _equal(servers, config, connection)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_kill_at_each_step_of_a_window_loses_nothing(
    seed: int, servers: Servers, tmp_path: Path, database: str, prefix: str
) -> None:
    path = write_config(tmp_path, database, servers.bootstrap, prefix, MORE)
    config = load(path)
    with psycopg.connect(database, autocommit=True) as connection:
        create(connection, 300)
        for n, point in enumerate(POINTS):
            with _changing(path, database, 1000 * seed + n, "--kill", point) as process:
                assert process.wait(60) == -signal.SIGKILL, point
        with running(path):
            _equal(servers, config, connection, once=False)


def test_a_read_only_source_is_read_in_windows(servers: Servers, tmp_path: Path, database: str, prefix: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create(connection, 300)
        # neither marks nor anything else can be written
        read_only = f"{database}?options=-c%20default_transaction_read_only%3Don"
        path = write_config(tmp_path, read_only, servers.bootstrap, prefix, MORE)
        with _changing(path, database, 5):
            wait_for(load(path), lambda record: record.is_state)
            _equal(servers, load(path), connection)
