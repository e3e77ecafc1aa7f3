"""Modules that `tailrace run` must not import before its first change: each import delays it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import psycopg

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.support.daemon import ROOT, wait_for_state, write_config

_LATER: Final = {
    # the HTTP server
    "click",
    "prometheus_client",
    "starlette",
    "uvicorn",
    "tailrace.cdc.operations.status",
    "tailrace.cdc.page",
    # a terminal, and structlog's tracebacks
    "pygments",
    "rich.console",
    # decoding of records
    "fastavro",
    # options and other commands
    "tailrace.cdc.cli.dev",
    "tailrace.cdc.cli.inspect",
    "tailrace.cdc.cli.snapshot",
    "tailrace.cdc.cli.views",
    "confluent_kafka.schema_registry",
    "duckdb",
    "jinja2",
    "opensearchpy",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "sqlglot",
    "tailrace.cdc.check",
    "tailrace.cdc.dev",
    "tailrace.sinks.iceberg",
    "tailrace.sinks.opensearch",
}
"""These modules and all in them; a package is as slow as all that it imports."""

_SERVER: Final = ("http-start", "http")
"""Threads that load the HTTP server, after the first change or at the latest after a second."""


def test_a_start_imports_nothing_that_its_first_change_does_not_need(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    path = write_config(tmp_path, database, servers.bootstrap, prefix, '[health]\nlisten = "127.0.0.1:0"\n')
    recorded = tmp_path / "imports"
    command = [sys.executable, "-m", "tests.support.recorded_imports", str(recorded), "run", "--config", str(path)]
    with psycopg.connect(database, autocommit=True) as connection, (tmp_path / "run.log").open("w") as log:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)")
        with subprocess.Popen(command, cwd=ROOT, stderr=log) as daemon:
            try:
                wait_for_state(load(path), connection)
                imported = [line.split("\t") for line in recorded.read_text(encoding="utf-8").splitlines()]
            finally:
                daemon.kill()
    before = {module for thread, module in imported if thread not in _SERVER}
    assert "tailrace.cdc.daemon.stream" in before
    assert {each for each in before if any(each == name or each.startswith(f"{name}.") for name in _LATER)} == set()
