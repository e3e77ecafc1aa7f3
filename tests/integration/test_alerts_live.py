"""The rules in docker/monitoring/, in a Prometheus that scrapes a daemon: a parked table makes its alert fire."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tailrace.cdc.dev.process import free_ports
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.support.daemon import ROOT, running, tailrace, wait_for_state, wait_until, write_config

_MONITORING = ROOT / "docker" / "monitoring"


@contextmanager
def _prometheus(folder: Path, daemon: str) -> Iterator[str]:
    """Run Prometheus with the shipped rules and scrape job of the daemon at this address; yield its own address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus here: apt-get install prometheus")
    shipped: dict[str, Any] = yaml.safe_load((_MONITORING / "prometheus.yaml").read_text())
    (job,) = (each for each in shipped["scrape_configs"] if each["job_name"] == "tailrace")
    job["static_configs"] = [{"targets": [daemon]}]
    often = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    rules = [str(_MONITORING / "alerts-daemon.yaml")]
    file = folder / "prometheus.yaml"
    file.write_text(yaml.safe_dump({"global": often, "rule_files": rules, "scrape_configs": [job]}))
    (port,) = free_ports([None])
    address = f"127.0.0.1:{port}"
    options = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([program, *options], stdout=log, stderr=log)
        try:
            yield address
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ask(address: str, path: str) -> Any:
    """Return the data of an answer of Prometheus' API; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=5) as answer:
            return json.loads(answer.read())["data"]
    except (urllib.error.URLError, ConnectionError):
        return None


def _firing(address: str) -> list[dict[str, str]]:
    """Return the labels of the alerts that fire."""
    found = _ask(address, "alerts")
    return [each["labels"] for each in found["alerts"] if each["state"] == "firing"] if found else []


def test_a_parked_table_fires_its_alert_until_it_is_resumed(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    (port,) = free_ports([None])
    listen = f"127.0.0.1:{port}"
    path = write_config(tmp_path, database, servers.bootstrap, prefix, f'[health]\nlisten = "{listen}"\n')
    config = load(path)
    with psycopg.connect(database, autocommit=True) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY, price numeric(9, 2))")
        with running(path), _prometheus(tmp_path, listen) as prometheus:
            wait_for_state(config, source)
            wait_until(lambda: (_ask(prometheus, "query?query=tailrace_ready") or {}).get("result"))
            assert _firing(prometheus) == []
            source.execute("INSERT INTO t VALUES (1, 'NaN')")
            wait_until(lambda: _firing(prometheus))
            (labels,) = _firing(prometheus)
            expected = {"alertname": "TailraceTableParked", "table": "public.t", "code": "TR-220"}
            assert labels.items() >= {**expected, "severity": "warning", "job": "tailrace", "instance": listen}.items()
            source.execute("UPDATE t SET price = 1")
            resumed = tailrace("table", "resume", "public.t", "--config", str(path))
            assert resumed.returncode == 0, resumed.stderr
            wait_until(lambda: _ask(prometheus, "alerts") == {"alerts": []})
