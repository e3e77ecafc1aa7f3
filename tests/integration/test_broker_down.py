"""The daemon's log while the broker is down."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psycopg

from tailrace.cdc.dev.server import stop
from tailrace.cdc.dev.state import start_servers
from tailrace.cdc.dev.state import status as servers_status
from tailrace.schemas.config.file import load
from tests.support.daemon import running, wait_for_state, wait_until, write_config
from tests.support.servers import own_servers


def test_the_log_is_json_and_short_while_the_broker_is_down(tmp_path: Path, prefix: str) -> None:
    with own_servers() as (servers, state_dir):
        path = write_config(tmp_path, servers.dsn, servers.bootstrap, prefix, '[health]\nlisten = "127.0.0.1:0"\n')
        config = load(path)
        with psycopg.connect(servers.dsn, autocommit=True) as source, running(path) as daemon:
            source.execute("CREATE TABLE t (id int PRIMARY KEY)")
            wait_for_state(config, source)
            started = [json.loads(line) for line in daemon.log.read_text().splitlines()]
            assert not [line for line in started if line["level"] not in ("info",)]
            (kafka,) = (each.server for each in servers_status(state_dir) if each.server.name == "kafka")
            stop(kafka)
            source.execute("INSERT INTO t VALUES (1)")

            def lines() -> list[dict[str, Any]]:
                return [json.loads(line) for line in daemon.log.read_text().splitlines()][len(started) :]

            # librdkafka delivers its log only when polled, so nothing is logged before a waiting commit has given up
            wait_until(lambda: [line for line in lines() if line["level"] in ("warning", "error")], 150)
            time.sleep(20)
            assert len(lines()) <= 20
            # none if the broker went away in mid-commit: the session has then ended and logs the outage itself
            said = [line for line in lines() if line.get("kind") == "FAIL"]
            assert len(said) <= 4
            assert all(line["lines"] > 1 for line in said)
            start_servers(state_dir, search=False)
            wait_for_state(config, source)
            assert daemon.stop() == 0
            for line in daemon.log.read_text().splitlines():
                json.loads(line)
