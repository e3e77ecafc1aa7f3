"""`tailrace check` reports what a start refuses, before the start, and changes nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.cdc.check.finding import Finding, Severity
from tailrace.cdc.check.run_check import check
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.integration.test_start import Pipeline, refusal, start_and_stop
from tests.support.daemon import running, tailrace, wait_for, write_config
from tests.support.servers import fresh_database

_TABLES = "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); INSERT INTO t VALUES (1)"


def stops(config: Config) -> dict[str, Finding]:
    """Return what stops a start, by id."""
    return {each.id: each for each in check(config) if each.severity is Severity.STOP}


@pytest.fixture
def fresh(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Iterator[Pipeline]:
    """A pipeline that has never run."""
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES)
        yield Pipeline(path, load(path), connection, AdminClient({"bootstrap.servers": servers.bootstrap}))


def _everything(pipeline: Pipeline) -> object:
    """Return all that a start would create: slots, publications, topics, files, and the transaction counter."""
    catalog = pipeline.connection.execute(
        "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication)"
    ).fetchone()
    return catalog, set(pipeline.admin.list_topics(timeout=10).topics), sorted(pipeline.path.parent.rglob("*"))


def test_a_healthy_pipeline_has_no_stop_and_nothing_is_changed(fresh: Pipeline) -> None:
    """Before the first start, after it, and while the daemon runs."""
    before = _everything(fresh)
    assert stops(fresh.config) == {}
    assert _everything(fresh) == before
    with running(fresh.path) as daemon:
        wait_for(fresh.config, lambda record: record.is_state)
        found = {each.id: each for each in check(fresh.config)}
        assert "TR-913" in found, "a daemon reads the slot"
        assert not [each for each in found.values() if each.severity is Severity.STOP]
        assert daemon.stop() == 0
    before = _everything(fresh)
    done = tailrace("check", "--config", str(fresh.path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing stops a start" in done.stdout
    assert _everything(fresh) == before
