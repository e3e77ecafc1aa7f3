"""Time and CPU time of the daemon from `tailrace run` to the first change on its topic.

    python -m tests.bench.start [--rounds 5] [--output FILE]

`first`: no slot exists, and the row is copied. `restart`: a row is committed while no daemon runs, and the slot exists.
A read_committed consumer waits for the row. CPU time is the daemon's, without the servers', up to that moment. Modules
are compiled to bytecode in a start that is not counted, as installers do, even with PYTHONDONTWRITEBYTECODE set here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import psycopg
from confluent_kafka import Consumer, TopicPartition

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.topics import Topics
from tests.bench.report import report
from tests.support.daemon import write_config
from tests.support.servers import fresh_database, own_servers

_LIMIT_S = 60.0

Start = tuple[float, float]
"""Seconds and CPU seconds from the start of the process to the first change."""


def measure(servers: Servers, folder: Path, rounds: int) -> dict[str, list[Start]]:
    """Return the starts of each kind."""
    found: dict[str, list[Start]] = {"first": [], "restart": []}
    for _ in range(rounds + 1):
        prefix = f"s{uuid.uuid4().hex[:8]}"
        with fresh_database(servers.dsn) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
            path = write_config(folder, dsn, servers.bootstrap, prefix, '[health]\nlisten = "127.0.0.1:0"\n')
            connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
            for records, values in enumerate(found.values(), start=1):
                connection.execute("INSERT INTO item SELECT count(*) FROM item")
                values.append(one_start(load(path), path, records))
    return {kind: starts[1:] for kind, starts in found.items()}


def one_start(config: Config, path: Path, records: int) -> Start:
    """Run the daemon until the topic has `records` records; it is stopped in an orderly way."""
    consumer = Consumer(
        {
            "bootstrap.servers": config.kafka.bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            # the topic of a first start does not exist yet
            "topic.metadata.refresh.interval.ms": 50,
        }
    )
    topic = Topics(config.kafka.prefix).table("public", "item")
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(config.kafka.partitions)])
    try:
        with (path.parent / "run.log").open("ab") as log:
            began = time.monotonic()
            command = [str(Path(sys.executable).parent / "tailrace"), "run", "--config", str(path)]
            with subprocess.Popen(command, stderr=log, env=_environment()) as daemon:
                try:
                    while records:
                        assert time.monotonic() - began < _LIMIT_S, f"not within {_LIMIT_S} s: {log.name}"
                        message = consumer.poll(0.1)
                        records -= message is not None and message.error() is None
                    return time.monotonic() - began, sum(psutil.Process(daemon.pid).cpu_times()[:2])
                finally:
                    daemon.terminate()
    finally:
        consumer.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def summary(starts: list[Start]) -> dict[str, Any]:
    """Return the medians of a kind and all its starts."""
    seconds, cpu = ([round(each, 2) for each in values] for values in zip(*starts, strict=True))
    return {
        "median_s": statistics.median(seconds),
        "median_cpu_s": statistics.median(cpu),
        "seconds": seconds,
        "cpu_s": cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with own_servers() as (servers, state_dir):
        found = measure(servers, state_dir.parent, arguments.rounds)
    report({kind: summary(starts) for kind, starts in found.items()}, arguments.output)


if __name__ == "__main__":
    main()
