"""This revision continues all work of an earlier one that is killed: stream, snapshot, views, rebuild."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.cdc.operations.read_status import read_shares
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, read_views
from tailrace.sinks.read.views import read_view
from tests.spark.conftest import INTERPRETED, REVISION_BEFORE, spark_conf
from tests.spark.test_job_processes import following
from tests.support.bank import Writer, create_tables
from tests.support.daemon import ROOT, running, tailrace, wait_for, wait_for_state, wait_until, write_config
from tests.support.terminal import alive_in

_ACCOUNTS = 300
_BIG = "public.big"
# The load and the batches are in progress all the time, but most of this test's work is the continuation, not those:
# a round of batches takes 1 s of CPU, and `follow` runs for minutes.
_PAUSE_S = 0.2
_SECTIONS = f"""[snapshot]
chunk_bytes = 8192
max_bytes_per_s = 200000
[warehouse]
uri = "jdbc:sqlite:{{folder}}/catalog.db"
location = "{{folder}}/warehouse"
[spark]
trigger_interval_ms = 10000
[spark.conf]
"spark.driver.extraJavaOptions" = "{SMALL_SPARK}"
{spark_conf(INTERPRETED)}[views.accounts]
table = "public.account"
[views.versions]
table = "public.account"
shape = "history"
[views.parked]
query = "SELECT id, 10 / n AS share FROM public.ratio"
key = ["id"]
"""


@dataclass
class Before:
    """The program of the earlier revision, run from its source files without compiled modules."""

    source: Path
    config: Path

    @contextmanager
    def running(self, *command: str) -> Iterator[None]:
        """Run a command in its own session; kill all of it at the end, as a power cut would."""
        with (self.config.parent / "before.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cdc.cli.main", *command, "--config", str(self.config)],
                stdout=log,
                stderr=log,
                cwd=self.config.parent,
                env={**os.environ, "PYTHONPATH": str(self.source)},
                start_new_session=True,
            )
        try:
            yield
            assert process.poll() is None, self._log()
        finally:
            for each in alive_in(process.pid):
                each.kill()
            process.wait(30)

    def _log(self) -> str:
        return (self.config.parent / "before.log").read_text()[-5000:]


@pytest.fixture
def before(servers: Servers, database: str, prefix: str, tmp_path: Path) -> Before:
    archive = subprocess.run(["git", "archive", REVISION_BEFORE], cwd=ROOT, capture_output=True, check=True).stdout
    source = tmp_path / "before"
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(source, filter="data")
    sections = _SECTIONS.format(folder=tmp_path)
    return Before(source, write_config(tmp_path, database, servers.bootstrap, prefix, sections))


def _views(config: Config) -> dict[str, ViewRecord]:
    return read_views(config.kafka, Topics(config.kafka.prefix))


def _built(config: Config) -> bool:
    found = _views(config)
    return all(name in found and found[name].cut is not None for name in config.views)


def _metadata(folder: Path, view: str) -> str:
    """Return the metadata file of a view's table; it is another one after each commit."""
    with sqlite3.connect(folder / "catalog.db") as catalog:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        (location,) = catalog.execute(query, (view,)).fetchone()
    return str(location)


def _create_tables(source: psycopg.Connection[Any]) -> None:
    create_tables(source, _ACCOUNTS)
    source.execute("CREATE TABLE ratio (id int PRIMARY KEY, n int NOT NULL)")
    source.execute("INSERT INTO ratio SELECT g, g FROM generate_series(1, 10) g")
    source.execute("CREATE TABLE big (id int PRIMARY KEY, label text)")
    source.execute("INSERT INTO big SELECT g, repeat('row ', 20) || g FROM generate_series(1, 20000) g")


def _leave_everything_in_flight(before: Before, config: Config, source: psycopg.Connection[Any]) -> None:
    """Return with a view parked, a generation staged, a rebuild interrupted, and a table half read."""
    with before.running("views", "follow"):
        wait_until(lambda: _built(config), 300)
        source.execute("UPDATE ratio SET n = 0 WHERE id = 1")
        wait_until(lambda: _views(config)["parked"].error, 300)
    folder = before.config.parent
    live = _metadata(folder, "versions")
    # the first view is staged to its end, the second is interrupted: nobody else maintains them now
    with before.running("views", "rebuild", "--no-swap", "accounts", "versions"):
        wait_until(lambda: _metadata(folder, "versions") != live, 300)
    source.execute("ALTER TABLE big ADD note text DEFAULT 'note'")
    source.execute("UPDATE big SET label = 'new' WHERE id = 1")
    wait_for(config, lambda record: 0 < read_shares(config, record).get(_BIG, 0) < 0.6, 120)


def _run(*command: str, config: Path) -> None:
    done = tailrace(*command, "--config", str(config), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(1200)
def test_work_in_flight_of_the_earlier_revision_is_continued(before: Before, database: str) -> None:
    path, config = before.config, load(before.config)
    with psycopg.connect(database, autocommit=True) as source:
        _create_tables(source)
        with Writer(database, 7, _ACCOUNTS, pause_s=_PAUSE_S).writing() as writer:
            with before.running("run"):
                wait_for_state(config, source)
                _leave_everything_in_flight(before, config, source)
            assert _BIG in wait_for(config, lambda record: True).incomplete_tables
            with running(path), following(path):
                source.execute("UPDATE ratio SET n = 1 WHERE id = 1")
                wait_for_state(config, source, 120)
                _run("views", "resume", "parked", config=path)
                _run("views", "swap", "accounts", config=path)
                _run("views", "rebuild", "versions", config=path)
                _run("verify", config=path)
                writer.stop()
                _run("wait", config=path)
                assert sorted(row["id"] for row in read_view(config, "parked").rows) == list(range(1, 11))
                _run("verify", config=path)
                _run("verify", "--log", config=path)
    assert not any(each.error for each in _views(config).values())
