"""A promoted standby: the daemon continues if it has all that the topics have; else it names the loss."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psycopg
import pytest

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import Server
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tests.integration.test_start import refusal, start_and_stop
from tests.support.bank import Writer, assert_equal, create_tables
from tests.support.daemon import running, wait_for, wait_for_state, write_config
from tests.support.postgres_versions import binaries
from tests.support.refused import assert_found, assert_refused
from tests.support.replicas import DATABASE, Replicas, replicas


def _configure(folder: Path, pair: Replicas, servers: Servers, prefix: str) -> tuple[Path, Config]:
    with psycopg.connect(pair.dsn, autocommit=True) as connection:
        create_tables(connection, 200)
    path = write_config(folder, pair.dsn, servers.bootstrap, prefix, "[delivery]\nmax_transaction_ms = 50\n")
    return path, load(path)


def _only(path: Path, server: Server, servers: Servers, prefix: str) -> Config:
    """Write a configuration that names only one of the two servers."""
    write_config(path.parent, postgres.dsn(server, DATABASE), servers.bootstrap, prefix)
    return load(path)


def test_the_daemon_continues_with_the_promoted_standby(tmp_path: Path, servers: Servers, prefix: str) -> None:
    """By itself, with the changes that the topics lacked, none twice. The old primary is then refused."""
    # so that the topics never have changes that the standby lacks
    with replicas(primary_settings={"synchronized_standby_slots": "standby"}) as pair:
        path, config = _configure(tmp_path, pair, servers, prefix)
        with Writer(pair.dsn, 21, 200).writing() as writer, running(path) as daemon:
            wait_for(config, lambda record: record.is_state)
            pair.sync(config.source.slot)
            standby = _only(path, pair.standby, servers, prefix)
            assert_found(standby, "TR-232")
            error = refusal(standby)
            assert (error.code, error.exit_code) == ("TR-232", 4)
            # the daemon is not up to date at the promotion
            os.kill(daemon.process.pid, signal.SIGSTOP)
            before = writer.transactions
            while writer.transactions < before + 20:
                time.sleep(0.05)
            writer.stop()
            pair.wait_replayed()
            pair.kill_primary()
            pair.promote()
            os.kill(daemon.process.pid, signal.SIGCONT)
            writer = Writer(pair.dsn, 22, 200)
            writer.transactions = 1_000_000  # so that it uses keys of its own
            with writer.writing():
                wait_for(config, lambda record: record.here.timeline == 2 and writer.transactions > 1_000_050)
            with psycopg.connect(pair.dsn, autocommit=True) as connection:
                assert_equal(servers.bootstrap, config, connection)
            assert daemon.stop() == 0
        assert any("The server was promoted at" in line for line in daemon.log.read_text().splitlines())
        # a second start must not use the first timeline again
        start_and_stop(standby)
        pair.start_primary()
        former = _only(path, pair.primary, servers, prefix)
        assert_found(former, "TR-421")
        error = refusal(former)
        assert (error.code, error.exit_code) == ("TR-421", 6)
        assert "timeline 1 does not descend from timeline 2" in error.message


def test_a_promoted_standby_that_lacks_changes_is_refused(tmp_path: Path, servers: Servers, prefix: str) -> None:
    with replicas() as pair:
        path, config = _configure(tmp_path, pair, servers, prefix)
        with psycopg.connect(pair.dsn, autocommit=True) as connection, running(path) as daemon:
            wait_for_state(config, connection)
            pair.sync(config.source.slot)
            pair.stop_standby()
            connection.execute("UPDATE account SET balance = balance + 1 WHERE id = 1")
            wait_for_state(config, connection)
            pair.kill_primary()
            pair.start_standby()
            pair.promote()
            assert daemon.process.wait(30) != 0
        text = daemon.log.read_text()
        for word in ('"code": "TR-421"', "server lacks their newest transaction", "snapshot start --all --reconcile"):
            assert word in text
        assert_refused(path, "TR-421", 6, "bytes of WAL further")


def test_a_standby_promoted_without_the_slot_is_refused(tmp_path: Path, servers: Servers, prefix: str) -> None:
    with replicas() as pair:
        path, config = _configure(tmp_path, pair, servers, prefix)
        start_and_stop(config)
        pair.wait_replayed()
        pair.kill_primary()
        pair.promote()
        assert_refused(path, "TR-402", 6, "The server was promoted at", "sync_replication_slots")


def test_before_17_a_promoted_standby_has_no_slot(tmp_path: Path, servers: Servers, prefix: str) -> None:
    try:
        binaries(16)
    except ConfigError as missing:
        pytest.skip(f"no PostgreSQL 16: {missing.message}. {missing.detail}")
    with replicas(16) as pair:
        path, config = _configure(tmp_path, pair, servers, prefix)
        start_and_stop(config)
        pair.wait_replayed()
        pair.kill_primary()
        pair.promote()
        assert_refused(path, "TR-402", 6, "Before PostgreSQL 17", "are not on the topics")
