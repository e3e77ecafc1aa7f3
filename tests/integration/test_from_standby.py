"""A physical standby as the source: it has its own slot, is copied and streamed, and is promoted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.integration.test_start import refusal
from tests.support.bank import Writer, assert_equal, create_tables
from tests.support.daemon import Daemon, events, running, wait_for, wait_until, write_config
from tests.support.replicas import DATABASE, Replicas, replicas


@pytest.mark.parametrize(("major", "mode"), [(18, "interleaved"), (16, "exported")])
def test_a_standby_as_source_is_copied_streamed_and_promoted(
    major: int, mode: str, tmp_path: Path, servers: Servers, prefix: str
) -> None:
    with replicas(major) as pair, psycopg.connect(pair.dsn, autocommit=True) as primary:
        create_tables(primary, 200)
        pair.wait_replayed()
        more = f'[snapshot]\nmode = "{mode}"\nchunk_bytes = 16384\nmax_bytes_per_s = 100000\n'
        path = write_config(tmp_path, postgres.dsn(pair.standby, DATABASE), servers.bootstrap, prefix, more)
        config = load(path)
        _publish_as_the_hint_says(primary, refusal(config).hint)
        pair.wait_replayed()
        with (
            Writer(pair.dsn, 31, 200, pause_s=0.02).writing(),
            _replay_paused(pair) as standby,
            running(path) as daemon,
        ):
            _make_known_what_runs(daemon, primary, standby)
            wait_until(lambda: events(daemon, "first snapshot started") or events(daemon, "table read started"))
            for _ in range(5):
                # replay on a standby cancels the queries that conflict with it
                with primary.transaction():
                    primary.execute("LOCK TABLE account, entry, document")
                time.sleep(0.2)
            wait_for(config, lambda record: record.is_state)
            daemon.kill()
        primary.execute("DELETE FROM account WHERE id % 7 = 0")
        with running(path) as daemon:
            assert_equal(servers.bootstrap, config, primary)
            _promote(pair)
            with psycopg.connect(postgres.dsn(pair.standby, DATABASE), autocommit=True) as promoted:
                promoted.execute("UPDATE document SET title = 'on timeline 2' WHERE id % 3 = 0")
                assert_equal(servers.bootstrap, config, promoted)
            assert daemon.stop() == 0


def _publish_as_the_hint_says(primary: psycopg.Connection, hint: str | None) -> None:
    """Create, as the hint says, the publications on the primary that a standby cannot create."""
    assert hint
    first, *lines = hint.splitlines()
    assert first == "Have the owner of the tables run (skip what exists already):"
    statements = [each for each in "\n".join(lines).split(";") if "CREATE PUBLICATION" in each]
    assert len(statements) == 2
    for statement in statements:
        primary.execute(statement.encode())


@contextmanager
def _replay_paused(pair: Replicas) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.dsn(pair.standby, DATABASE), autocommit=True) as standby:
        standby.execute("ALTER SYSTEM SET max_standby_streaming_delay = 0")
        standby.execute("SELECT pg_reload_conf(), pg_wal_replay_pause()")
        yield standby


def _make_known_what_runs(daemon: Daemon, primary: psycopg.Connection, standby: psycopg.Connection) -> None:
    """Log a standby snapshot: without one the standby cannot create a slot, and the daemon says so."""
    wait_until(lambda: "SELECT pg_log_standby_snapshot()" in daemon.log.read_text())
    standby.execute("SELECT pg_wal_replay_resume()")
    made = "SELECT FROM pg_replication_slots WHERE confirmed_flush_lsn IS NOT NULL"
    while not standby.execute(made).rowcount:
        primary.execute("SELECT pg_log_standby_snapshot()")
        time.sleep(0.1)


def _promote(pair: Replicas) -> None:
    pair.wait_replayed()
    pair.kill_primary()
    pair.promote()
