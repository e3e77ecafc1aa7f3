"""Latency of small transactions from the source to a reader of the topics, with a daemon process.

    python -m tests.bench.latency [--rate 1000] [--seconds 60] [--output FOLDER]

pgbench commits `--rate` transactions a second, as a Poisson process. Each moves money between two accounts and writes
a row with clock_timestamp(), the last statement before COMMIT; a read_committed consumer notes when it receives that
row. So the figures include the COMMIT itself, with its fsync. Everything runs on one machine, and all servers have
their default settings for durability. With --output, the figures are written there as latency.json and drawn as
latency.svg.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import fastavro
import psutil
import psycopg
import pygal
from confluent_kafka import Consumer, TopicPartition

from tailrace.cdc.dev.postgres import binaries, create_database
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_schemas
from tests.support.daemon import running, wait_for, write_config
from tests.support.servers import own_servers

_ACCOUNTS = 10_000
_WARM_UP_S = 5.0
SETUP = (
    "CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL);"
    "CREATE TABLE event (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int NOT NULL, at timestamptz);"
    f"INSERT INTO account SELECT g, 0 FROM generate_series(1, {_ACCOUNTS}) g"
)
TRANSACTION = f"""\
\\set giver random(1, {_ACCOUNTS})
\\set taker random(1, {_ACCOUNTS})
BEGIN;
UPDATE account SET balance = balance - 1 WHERE id = :giver;
UPDATE account SET balance = balance + 1 WHERE id = :taker;
INSERT INTO event (account, at) VALUES (:giver, clock_timestamp());
END;
"""

Arrivals = list[tuple[float, bytes]]
"""When the reader received a record, in seconds since 1970, and the record's value."""


def measure(servers: Servers, folder: Path, rate: int, seconds: float) -> dict[str, Any]:
    """Run the load against a daemon of its own and return the figures."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}")
    config = load(path)
    script = folder / "transaction.sql"
    script.write_text(TRANSACTION)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
    pgbench = [str(binaries() / "pgbench"), "-n", "-M", "prepared", "-c", "8", "-j", "1", "-R", str(rate)]
    pgbench += ["-T", str(round(seconds + _WARM_UP_S)), "-f", str(script), "-d", dsn]
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        process = psutil.Process(daemon.process.pid)
        cpu, machine = sum(process.cpu_times()[:2]), psutil.cpu_times()
        with subprocess.Popen(pgbench, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as load_process:
            began = time.time()
            arrivals = read_arrivals(config, load_process)
            assert load_process.stdout
            said = load_process.stdout.read()
        assert load_process.returncode == 0, said
        cpu = sum(process.cpu_times()[:2]) - cpu
        stolen = stolen_percent(machine, psutil.cpu_times())
    written = written_at(config, arrivals)
    latencies = [(at - began, arrived - at) for (arrived, _), at in zip(arrivals, written, strict=True)]
    return {"stolen_cpu_percent": stolen, **summary(latencies, seconds, cpu)}


def stolen_percent(before: Any, after: Any) -> float:
    """Return the percentage of CPU that the host stole between two `psutil.cpu_times()`, if reported."""
    total: float = sum(after) - sum(before)
    stolen: float = getattr(after, "steal", 0.0) - getattr(before, "steal", 0.0)
    return round(100 * stolen / total, 1)


def read_arrivals(config: Config, load_process: subprocess.Popen[str]) -> Arrivals:
    """Read the topic of events until the load has ended and no more records come."""
    consumer = Consumer(
        {
            "bootstrap.servers": config.kafka.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    topic = Topics(config.kafka.prefix).table("public", "event")
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(config.kafka.partitions)])
    arrivals: Arrivals = []
    while True:
        message = consumer.poll(1.0)
        now = time.time()
        if message is None:
            if load_process.poll() is not None:
                break
            continue
        assert message.error() is None, message.error()
        value = message.value()
        assert value is not None
        arrivals.append((now, value))
    consumer.close()
    return arrivals


def written_at(config: Config, arrivals: Arrivals) -> list[float]:
    """Return when the rows were written, as they record it themselves, in seconds since 1970."""
    parsed = {
        stored.id: fastavro.parse_schema(json.loads(stored.schema))
        for stored in read_schemas(config.kafka, Topics(config.kafka.prefix))
    }

    def at(value: bytes) -> float:
        row: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed[int.from_bytes(value[1:5], "big")], None)
        return float(row["after"]["at"].timestamp())

    return [at(value) for _, value in arrivals]


def summary(latencies: list[tuple[float, float]], seconds: float, cpu: float) -> dict[str, Any]:
    """Return percentiles in milliseconds, overall and by second, without the warm-up."""
    counted = [(at - _WARM_UP_S, late) for at, late in latencies if _WARM_UP_S <= at < _WARM_UP_S + seconds]
    by_second: list[list[float]] = [[] for _ in range(int(seconds))]
    for at, late in counted:
        by_second[min(int(at), len(by_second) - 1)].append(late)
    return {
        "transactions_per_second": round(len(counted) / seconds, 1),
        "daemon_cpu_percent": round(100 * cpu / (seconds + _WARM_UP_S), 1),
        **percentiles([late for _, late in counted]),
        "by_second": [percentiles(second) for second in by_second if second],
    }


def percentiles(latencies: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(latencies, n=1000, method="inclusive")
    names = {"p50_ms": cuts[499], "p90_ms": cuts[899], "p99_ms": cuts[989], "max_ms": max(latencies)}
    return {name: round(value * 1000, 1) for name, value in names.items()}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write an SVG of the percentiles of each second."""
    chart = pygal.Line(
        title=f"ms from the source to a reader, {result['transactions_per_second']} transactions/s",
        legend_at_bottom=True,
        show_dots=False,
        x_title="s",
        include_x_axis=True,
    )
    for name in ("p50_ms", "p90_ms", "p99_ms"):
        chart.add(name, [second[name] for second in result["by_second"]])
    chart.render_to_file(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with own_servers() as (servers, state_dir):
        result = measure(servers, state_dir.parent, arguments.rate, arguments.seconds)
    report = {"machine": platform.platform(), "cpus": os.cpu_count(), **result}
    print(json.dumps({name: value for name, value in report.items() if name != "by_second"}, indent=2))
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "latency.json").write_text(json.dumps(report, indent=2) + "\n")
        draw(result, arguments.output / "latency.svg")


if __name__ == "__main__":
    main()
