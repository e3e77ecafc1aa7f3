"""Health endpoints, metrics and log events of the daemon, in normal operation and under faults."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.cdc.dev.state import Servers, status
from tailrace.schemas.config.file import load
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.metrics import DAEMON
from tests.support.daemon import Daemon, ask, events, running, tailrace, wait_for_state, wait_until, write_config
from tests.support.servers import fresh_database, repeating
from tests.support.topics import assert_once_in_order, read_topic

_STALL_S = 15


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, t text); INSERT INTO t VALUES (0, 'before')")
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    # not the default port: another daemon on this machine could use that one and answer in our place
    more = f'[health]\nlisten = "127.0.0.1:0"\nstall_s = {_STALL_S}\n'
    return write_config(tmp_path, database, servers.bootstrap, prefix, more, source="heartbeat_s = 1\n")


def metrics(daemon: Daemon) -> dict[tuple[str, ...], float]:
    """Return the samples by name and label values."""
    code, text = ask(daemon, "/metrics")
    assert code == 200
    families = text_string_to_metric_families(text)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def ready(daemon: Daemon) -> tuple[int, dict[str, Any]]:
    code, body = ask(daemon, "/readyz")
    return code, json.loads(body or "{}")


def test_health_and_metrics_while_all_is_well(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path, prefix: str, database: str
) -> None:
    config = load(config_path)
    topic = f"{prefix}.public.t"
    with running(config_path) as daemon:
        wait_for_state(config, source)
        well = {"ready": True, "state": "streaming", "slot": prefix, "lag_seconds": 0.0}
        wait_until(lambda: ready(daemon) == (200, well))
        assert ask(daemon, "/livez")[0] == 200
        assert ask(daemon, "/")[0] == 404
        source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 500) g; DELETE FROM t WHERE id < 3")
        cut = wait_for_state(config, source)
        wait_until(lambda: metrics(daemon)["tailrace_flushed_lsn_bytes",] >= cut.flushed_lsn)
        wait_until(lambda: ("tailrace_slot_wal_status", "reserved") in metrics(daemon))
        wait_until(lambda: metrics(daemon)["tailrace_server_wal_lsn_bytes",] >= cut.flushed_lsn)
        found = metrics(daemon)
        assert found["tailrace_records_total", topic] == len(read_topic(servers.bootstrap, prefix, "public.t")) == 507
        assert found["tailrace_state", "streaming"] == 1 == sum(found["tailrace_state", each] for each in STATES)
        assert found["tailrace_ready",] == 1
        assert found["tailrace_stalled",] == 0
        assert found["tailrace_sessions_total",] == 1
        assert found["tailrace_slot_wal_status", "reserved"] == 1
        now = source.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        assert now is not None
        for name in ("source_commit", "last_commit", "complete", "looked"):
            assert now[0] - 60 < found[f"tailrace_{name}_timestamp_seconds",] <= now[0]
        assert 10**7 < found["process_resident_memory_bytes",] < 10**9
        assert not any(name.startswith("tailrace_errors_total") for name, *_ in found)
        # exactly those of the reference page, also without a sample: alerts and dashboard name no others
        described = {each.name for each in text_string_to_metric_families(ask(daemon, "/metrics")[1])}
        assert {each for each in described if each.startswith("tailrace_")} == {f"tailrace_{name}" for name in DAEMON}
        assert daemon.stop() == 0
        assert ask(daemon, "/livez")[0] == 0
    # nothing that people see there is secret
    assert database not in daemon.log.read_text()


STATES = ("starting", "copying", "streaming", "standby", "retrying")


def test_a_configured_address_that_is_taken_is_refused(source: psycopg.Connection[Any], config_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        config_path.write_text(config_path.read_text().replace("127.0.0.1:0", address))
        result = tailrace("run", cwd=config_path.parent)
    assert result.returncode == 3
    assert "ERROR  TR-112" in result.stderr
    assert address in result.stderr
    assert f"process {os.getpid()} (" in result.stderr


def test_an_empty_address_turns_the_health_server_off(source: psycopg.Connection[Any], config_path: Path) -> None:
    config_path.write_text(config_path.read_text().replace("127.0.0.1:0", ""))
    with running(config_path) as daemon:
        wait_for_state(load(config_path), source)
        assert not events(daemon, "health server started")
        assert daemon.stop() == 0


def test_readyz_names_the_transaction_that_a_start_waits_for(
    source: psycopg.Connection[Any], database: str, config_path: Path
) -> None:
    source.execute("CREATE TABLE other (id int)")
    with psycopg.connect(database) as forgotten, running(config_path) as daemon:
        forgotten.execute("INSERT INTO other VALUES (1)")
        pid = forgotten.info.backend_pid
        wait_until(lambda: ready(daemon)[1].get("reason") == "the slot is not acquired yet")
        wait_until(lambda: "stalled_since" in ready(daemon)[1], 60)
        assert f"of process {pid} (idle in transaction), open since" in ready(daemon)[1]["reason"]
        assert ask(daemon, "/livez")[0] == 200
        forgotten.rollback()
        wait_until(lambda: ready(daemon)[0] == 200)
        assert daemon.stop() == 0


def test_a_heartbeat_moves_the_slot_of_a_quiet_database(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path, prefix: str
) -> None:
    with ExitStack() as stack:
        elsewhere = stack.enter_context(fresh_database(servers.dsn))
        with psycopg.connect(elsewhere) as connection:
            connection.execute("CREATE TABLE elsewhere (t text)")
        write = "INSERT INTO elsewhere SELECT repeat('x', 100) FROM generate_series(1, 200)"
        stack.enter_context(repeating(elsewhere, write, 0.01))
        daemon = stack.enter_context(running(config_path))
        wait_for_state(load(config_path), source)
        wait_until(lambda: metrics(daemon)["tailrace_heartbeats_total",] > 0, 40)
        row = source.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        end = parse_lsn(row[0])
        wait_until(lambda: metrics(daemon).get(("tailrace_slot_confirmed_flush_lsn_bytes",), 0) > end, 40)
        assert daemon.stop() == 0
    # heartbeats are not on the message topic
    assert not [record for record in read_topic(servers.bootstrap, prefix, "message") if record.key != ("test",)]


def test_a_frozen_backend_does_not_block_the_watch(source: psycopg.Connection[Any], config_path: Path) -> None:
    def backend() -> int | None:
        row = source.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'tailrace watch'"
            " AND datname = current_database() ORDER BY backend_start DESC LIMIT 1"
        ).fetchone()
        return row[0] if row else None

    with running(config_path) as daemon:
        wait_for_state(load(config_path), source)
        frozen = backend()
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        try:
            wait_until(lambda: backend() != frozen)
            asked = metrics(daemon)["tailrace_looked_timestamp_seconds",]
            wait_until(lambda: metrics(daemon)["tailrace_looked_timestamp_seconds",] > asked)
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert daemon.stop() == 0


def test_a_frozen_broker_is_reported_as_a_stall_until_it_answers(
    source: psycopg.Connection[Any], servers: Servers, state_dir: Path, config_path: Path, prefix: str
) -> None:
    config = load(config_path)
    (kafka,) = (each.server.process for each in status(state_dir) if each.server.name == "kafka")
    with running(config_path) as daemon:
        wait_for_state(config, source)
        source.execute("INSERT INTO t VALUES (1, 'before')")
        wait_for_state(config, source)
        wait_until(lambda: ("tailrace_complete_timestamp_seconds",) in metrics(daemon))
        before = metrics(daemon)
        os.kill(kafka.pid, signal.SIGSTOP)
        try:
            source.execute("INSERT INTO t VALUES (2, 'meanwhile')")
            # visible at the daemon's next look; the stall is reported later
            wait_until(lambda: ready(daemon)[0] == 503, 10)
            assert "no answer from Kafka" in ready(daemon)[1]["reason"]
            wait_until(lambda: "stalled_since" in ready(daemon)[1], 40)
            code, body = ready(daemon)
            assert code == 503
            assert "no answer from Kafka" in body["reason"]
            # a restart would not help
            assert ask(daemon, "/livez")[0] == 200
            during = metrics(daemon)
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
        assert during["tailrace_stalled",] == 1
        assert during["tailrace_ready",] == 0
        lag = during["tailrace_looked_timestamp_seconds",] - during["tailrace_complete_timestamp_seconds",]
        assert lag > _STALL_S - 5
        assert during["tailrace_flushed_lsn_bytes",] >= before["tailrace_flushed_lsn_bytes",]
        wait_until(lambda: ready(daemon)[0] == 200)
        wait_for_state(config, source)
        assert daemon.stop() == 0
    # not again after the broker has returned, when nothing is wrong any more
    (said,) = events(daemon, "position stalled although there is WAL")
    assert "no answer from Kafka" in said["cause"]
    assert events(daemon, "stall ended")
    records = read_topic(servers.bootstrap, prefix, "public.t")
    assert_once_in_order(records)
    assert sorted(record.key for record in records) == [(0,), (1,), (2,)]


def test_a_slot_near_its_wal_limit_is_reported(
    source: psycopg.Connection[Any], servers: Servers, database: str, config_path: Path, prefix: str
) -> None:
    config = load(config_path)
    source.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '96MB'")
    source.execute("SELECT pg_reload_conf()")
    try:
        with psycopg.connect(database) as forgotten, running(config_path) as daemon:
            wait_for_state(config, source)
            assert not events(daemon, "slot close to its WAL limit")
            pid = forgotten.info.backend_pid
            forgotten.execute("INSERT INTO t VALUES (1, 'never committed')")
            for _ in range(4):
                source.execute("SELECT pg_logical_emit_message(true, 'test', 'x'), pg_switch_wal()")
            wait_until(lambda: events(daemon, "slot close to its WAL limit"))
            (said, *_) = events(daemon, "slot close to its WAL limit")
            assert said["retained_bytes"] > 48 * 2**20
            assert 0 < said["safe_wal_bytes"] < 64 * 2**20
            assert f"of process {pid} (idle in transaction)" in said["oldest"]
            found = metrics(daemon)
            assert found["tailrace_slot_safe_wal_bytes",] == said["safe_wal_bytes"]
            assert found["tailrace_slot_retained_wal_bytes",] == said["retained_bytes"]
            shown = json.loads(tailrace("status", "--json", cwd=config_path.parent).stdout)
            assert shown["source"]["seconds_to_full"] > 0
            assert "if no daemon reads it" in tailrace("status", cwd=config_path.parent).stdout
            assert daemon.stop() == 0
    finally:
        source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        source.execute("SELECT pg_reload_conf()")


def test_another_port_is_used_if_the_usual_one_is_taken(source: psycopg.Connection[Any], config_path: Path) -> None:
    """The daemon takes another port and warns: scrapers of the usual one would read another daemon."""
    config_path.write_text(config_path.read_text().replace('listen = "127.0.0.1:0"\n', ""))
    with ExitStack() as stack:
        other = stack.enter_context(socket.socket())
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 9464))
            other.listen()
            held_by: str | None = f"process {os.getpid()}"
        except OSError:
            held_by = None  # a daemon of someone else uses it: that is sufficient
        daemon = stack.enter_context(running(config_path))
        wait_for_state(load(config_path), source)
        (said,) = events(daemon, "default health port in use: another one chosen")
        assert said["level"] == "warning"
        assert said["usual"] == "127.0.0.1:9464"
        assert held_by is None or said["held_by"].startswith(held_by)
        (listening,) = events(daemon, "health server started")
        assert listening["url"] == f"http://{said['used']}"
        assert ask(daemon, "/livez")[0] == 200
        assert daemon.stop() == 0
