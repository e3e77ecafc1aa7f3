"""Lag in each place that reports it: 0 while no change is missing, else the age of the oldest one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tailrace.cdc.cli.status_page import status_lines
from tailrace.cdc.dev.state import Servers, status
from tailrace.cdc.operations.read_status import read_status
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_position
from tailrace.sinks.control.views_topic import ViewRecord, ViewsTopic, now_ms
from tests.support.daemon import Daemon, ask, running, tailrace, wait_for_state, wait_until, write_config
from tests.support.servers import drop_slot, repeating

_IDLE_S = 15.0
_EVERY_S = 0.3
_LOAD_S = 6.0
_HEALTHY_S = 3.0
_BATCH_S = 1.0
_VIEWS = {"t": ["t"], "u": ["u"], "both": ["t", "u"]}
_DECLARED = """[views.t]
table = "public.t"
[views.u]
table = "public.u"
[views.both]
query = "SELECT t.id FROM public.t t JOIN public.u u ON u.id = t.id"
key = ["id"]
"""


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, t text); INSERT INTO t VALUES (0, 'before')")
        connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    warehouse = f'[warehouse]\nuri = "jdbc:sqlite:{tmp_path}/c.db"\nlocation = "{tmp_path}"\n'
    more = f'[health]\nlisten = "127.0.0.1:0"\n{warehouse}{_DECLARED}'
    tables = 'tables = ["public.t", "public.u"]\n'
    return write_config(tmp_path, database, servers.bootstrap, prefix, more, source=tables)


def metric(daemon: Daemon, name: str = "tailrace_lag_seconds") -> float | None:
    families = text_string_to_metric_families(ask(daemon, "/metrics")[1])
    return next((each.value for family in families for each in family.samples if each.name == name), None)


def places(daemon: Daemon, config: Config) -> dict[str, Any]:
    """Return the lag in each place: status of topics and view, /metrics and /readyz."""
    now = time.time()
    complete = metric(daemon, "tailrace_complete_timestamp_seconds")
    found = read_status(config)
    return {
        "topics": found.topics.lag_seconds,
        "view": found.views[0].lag_seconds,
        "metric": metric(daemon),
        # `now` is from before the scrape, so that its duration does not count as lag
        "old metric": max(0.0, round(now - (complete or 0), 1)),
        "ready": json.loads(ask(daemon, "/readyz")[1]).get("lag_seconds"),
    }


def show(config: Config) -> str:
    return "\n".join(status_lines(read_status(config)))


def apply_all(config: Config) -> None:
    """Publish that each view has applied everything, as `views follow` would."""
    topics = Topics(config.kafka.prefix)
    record = read_position(config.kafka, topics, config.source.slot)
    assert record is not None
    assert record.state is not None
    views, now = ViewsTopic(config.kafka, topics), now_ms()
    for name, tables in _VIEWS.items():
        read = {topics.table("public", table): record.state.offsets[topics.table("public", table)] for table in tables}
        views.publish(ViewRecord(name, "warehouse", 1, replace(record.state, offsets=read), now))


def test_an_idle_system_has_no_lag_and_one_under_load_little(
    source: psycopg.Connection[Any], database: str, config_path: Path
) -> None:
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for_state(config, source)
        apply_all(config)
        wait_until(lambda: metric(daemon) == 0)
        began = time.monotonic()
        samples = []
        while time.monotonic() - began < _IDLE_S:
            # WAL without a captured change
            source.execute("INSERT INTO other SELECT coalesce(max(id), 0) + 1 FROM other")
            samples.append(places(daemon, config))
            time.sleep(_EVERY_S)
        assert len(samples) > 20
        assert {key: {sample[key] for sample in samples} for key in samples[0]} == {
            "topics": {0.0},
            "view": {0.0},
            "metric": {0.0},
            "old metric": {0.0},
            "ready": {0.0},
        }
        assert "lag 0 s" in show(config)
        with (
            repeating(database, "INSERT INTO t SELECT max(id) + 1, 'load' FROM t", 0.02),
            repeating(database, "INSERT INTO u SELECT coalesce(max(id), 0) + 1 FROM u", 0.02),
        ):
            the_lag_stays_low(daemon)
            the_views_at_one_lsn_have_one_lag(config)
        wait_until(lambda: metric(daemon) == 0)
        assert daemon.stop() == 0


def the_lag_stays_low(daemon: Daemon) -> None:
    """Sample the lag as an alert would see it, under steady load."""
    began, lags = time.monotonic(), list[float | None]()
    while time.monotonic() - began < _LOAD_S:
        now = time.time()
        complete = metric(daemon, "tailrace_complete_timestamp_seconds")
        lags += [metric(daemon), now - (complete or 0)]
    assert len(lags) > 20
    assert all(lag is not None and lag < _HEALTHY_S for lag in lags), lags


def the_views_at_one_lsn_have_one_lag(config: Config) -> None:
    """Lags of views that stand still at one LSN while their tables change: they differ by less than a batch."""
    apply_all(config)
    for _ in range(6):
        views = read_status(config).views
        assert len({view.flushed_lsn for view in views}) == 1
        lags = [view.lag_seconds for view in views if view.lag_seconds is not None]
        assert len(lags) == 3
        assert max(lags) - min(lags) < _BATCH_S, lags
    assert min(lags) > 0


def test_the_lag_is_the_age_of_the_missing_change(
    source: psycopg.Connection[Any], servers: Servers, state_dir: Path, config_path: Path
) -> None:
    config = load(config_path)
    (kafka,) = (each.server.process for each in status(state_dir) if each.server.name == "kafka")
    with running(config_path) as daemon:
        wait_for_state(config, source)
        apply_all(config)
        wait_until(lambda: metric(daemon) == 0)
        os.kill(kafka.pid, signal.SIGSTOP)
        try:
            committed = time.time()
            source.execute("INSERT INTO t VALUES (1, 'meanwhile')")
            for _ in range(10):
                time.sleep(0.5)
                waited, found = time.time() - committed, metric(daemon)
                assert found is not None
                assert abs(found - waited) < 0.5
            waited = time.time() - committed
            assert abs(json.loads(ask(daemon, "/readyz")[1])["lag_seconds"] - waited) < 0.5
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
        wait_until(lambda: metric(daemon) == 0)
        # the topics have the change, the view does not
        shown = read_status(config)
        assert shown.topics.lag_seconds == 0
        lag = shown.views[0].lag_seconds
        assert lag is not None
        assert abs(lag - (time.time() - committed)) < 1
        apply_all(config)
        assert read_status(config).views[0].lag_seconds == 0
        assert daemon.stop() == 0


def test_the_lag_is_known_without_the_daemon_s_http_endpoint(
    source: psycopg.Connection[Any], config_path: Path
) -> None:
    """The daemon has no HTTP endpoint; the server knows its position."""
    config_path.write_text(config_path.read_text().replace('"127.0.0.1:0"', '""'))
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for_state(config, source)
        for _ in range(10):
            source.execute("INSERT INTO other SELECT coalesce(max(id), 0) + 1 FROM other")
            assert read_status(config).topics.lag_seconds == 0
            time.sleep(_EVERY_S)
        assert daemon.stop() == 0


def test_a_stopped_daemon_is_reported_with_the_true_lag(source: psycopg.Connection[Any], config_path: Path) -> None:
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for_state(config, source)
        wait_until(lambda: f"(process {daemon.process.pid})" in show(config))
        assert "daemon   runs on" in show(config)
        assert tailrace("status", cwd=config_path.parent).returncode == 0
        assert daemon.stop() == 0
    assert tailrace("status", cwd=config_path.parent).returncode == 0
    source.execute("INSERT INTO other VALUES (1)")
    shown = show(config)
    assert "daemon   does not run: it was stopped at" in shown
    assert read_status(config).topics.lag_seconds == 0
    assert "lag 0 s" in shown
    committed = time.time()
    source.execute("INSERT INTO t VALUES (1, 'waits')")
    for _ in range(3):
        time.sleep(0.7)
        lag = read_status(config).topics.lag_seconds
        assert lag is not None
        assert abs(lag - (time.time() - committed)) < 0.5
    # reading the status has not moved the slot
    with running(config_path) as daemon:
        wait_for_state(config, source)
        wait_until(lambda: f"(process {daemon.process.pid})" in show(config))
        daemon.kill()
    wait_until(lambda: "it ended without reporting why (killed?)" in show(config))


def test_a_failed_daemon_is_reported_with_its_error_code(
    source: psycopg.Connection[Any], config_path: Path, prefix: str
) -> None:
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for_state(config, source)
        assert daemon.stop() == 0
    drop_slot(source, prefix)
    assert tailrace("run", cwd=config_path.parent).returncode == 6
    assert "is MISSING, but" in show(config)
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (prefix,))
    shown = show(config)
    assert "daemon   does not run: it failed at" in shown
    assert "TR-402" in shown
    answered = tailrace("status", "--json", cwd=config_path.parent)
    assert answered.returncode == 7
    found = json.loads(answered.stdout)
    assert found["daemon"]["state"] == "failed"
    assert found["daemon"]["code"] == "TR-402"
