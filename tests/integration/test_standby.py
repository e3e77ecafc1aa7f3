"""Two daemons for one slot: one works, the other waits and takes over if the first fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.support.bank import Writer, assert_equal, create_tables
from tests.support.daemon import Daemon, ask, events, running, wait_for, wait_until, write_config

_TAKEOVER_S = 10.0


@pytest.fixture
def bank(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        create_tables(connection)
        yield connection


@pytest.fixture
def paths(tmp_path: Path, servers: Servers, database: str, prefix: str) -> list[Path]:
    """Two configurations of one pipeline, as on two hosts."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    more = "[snapshot]\nchunk_bytes = 65536\n[delivery]\nmax_transaction_ms = 100\n"
    return [write_config(folder, database, servers.bootstrap, prefix, more) for folder in folders]


def waits(daemon: Daemon) -> bool:
    return bool(events(daemon, "waiting as standby"))


def goes_on(daemon: Daemon) -> bool:
    return bool(events(daemon, "stream resumed"))


def flushed(config: Config) -> int:
    return wait_for(config, lambda record: True).here.flushed_lsn


def test_a_killed_daemon_is_replaced_by_the_standby(
    bank: psycopg.Connection[Any], servers: Servers, database: str, paths: list[Path]
) -> None:
    config = load(paths[0])
    with Writer(database, 11).writing() as writer, running(paths[0]) as first:
        wait_for(config, lambda record: record.is_state)
        with running(paths[1]) as second:
            wait_until(lambda: waits(second))
            assert ask(second, "/readyz") == (200, f'{{"ready":true,"state":"standby","slot":"{config.source.slot}"}}')
            first.kill()
            assert wait_until(lambda: goes_on(second)) < _TAKEOVER_S
            before = flushed(config)
            wait_for(config, lambda record: record.here.flushed_lsn > before)
            writer.stop()
            assert_equal(servers.bootstrap, config, bank)
            assert '"state":"streaming"' in ask(second, "/readyz")[1]
            assert len(events(second, "waiting as standby")) == 1
            assert second.stop() == 0


def test_a_paused_daemon_is_replaced_and_fenced(
    bank: psycopg.Connection[Any], servers: Servers, database: str, paths: list[Path]
) -> None:
    config = load(paths[0])
    with Writer(database, 12).writing() as writer, running(paths[0]) as first:
        wait_for(config, lambda record: record.is_state)
        with running(paths[1]) as second:
            wait_until(lambda: waits(second))
            os.kill(first.process.pid, signal.SIGSTOP)
            took = wait_until(lambda: goes_on(second))
            print(f"taken over after {took:.1f} s")
            assert took < _TAKEOVER_S
            before = flushed(config)
            wait_for(config, lambda record: record.here.flushed_lsn > before)
            os.kill(first.process.pid, signal.SIGCONT)
            wait_until(lambda: waits(first))
            time.sleep(3)
            writer.stop()
            assert_equal(servers.bootstrap, config, bank)
            # the resumed daemon has not fenced the other one in return
            assert not events(second, "session failed: restarting")
            assert len(events(second, "stream resumed")) == 1
            assert len(events(first, "stream resumed")) == 1
            second.kill()
            wait_until(lambda: len(events(first, "stream resumed")) == 2)
            bank.execute("UPDATE account SET version = version + 1")
            assert_equal(servers.bootstrap, config, bank)


def test_of_two_daemons_started_at_once_one_waits(
    bank: psycopg.Connection[Any], servers: Servers, database: str, paths: list[Path]
) -> None:
    config = load(paths[0])
    with ExitStack() as stack:
        daemons = [stack.enter_context(running(path)) for path in paths]
        wait_for(config, lambda record: record.is_state)
        wait_until(lambda: sum(map(waits, daemons)) == 1)
        assert sum(len(events(daemon, "first snapshot started")) for daemon in daemons) == 1
        assert not any(events(daemon, "session failed: restarting") for daemon in daemons)
        bank.execute("UPDATE account SET version = version + 1")
        assert_equal(servers.bootstrap, config, bank)
        assert [daemon.stop() for daemon in daemons] == [0, 0]
