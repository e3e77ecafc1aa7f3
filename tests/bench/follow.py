"""Latency of changes from COMMIT to the views; daemon and `tailrace views follow` are processes.

    python -m tests.bench.follow [--views two|six] [--rate 200] [--seconds 120] [--warm-up 180] [--rows 100000]
        [--interval-ms 250] [--output FILE]

`two` is a view of one table in the warehouse and one in the index; `six` adds two joins and two aggregates.
Transactions of one change each are committed at a steady rate. A view shows a transaction once its record on the views
topic names an LSN at or past it: that record is written after the commit to the table or the refresh of the index.
Stages are medians of the times that the job's batches log. --interval-ms is spark.trigger_interval_ms. Everything runs
on one machine.

At the end each view is compared with its query in PostgreSQL, row by row.

For some minutes the JVM compiles the code of the batches, on the same cores: half of its time in the first two. So
only changes after --warm-up seconds of the same load count.
"""

from __future__ import annotations

import argparse
import bisect
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import psycopg
from confluent_kafka import Consumer, TopicPartition

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.closes import Closes
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord
from tailrace.sinks.read.views import read_view
from tests.bench.rebuild import Peak
from tests.bench.report import report
from tests.support.daemon import ROOT, running, wait_for_state, write_config
from tests.support.servers import own_servers

SETUP = (
    "CREATE TABLE customer (id int PRIMARY KEY, name text, city text);"
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, status text, total numeric(12,2), placed timestamptz)"
)
ROWS = (
    "INSERT INTO customer SELECT g, 'name ' || g, 'city ' || g %% 50 FROM generate_series(1, %(rows)s / 10) g",
    "INSERT INTO orders SELECT g, 1 + g %% (%(rows)s / 10), 'placed', g * 1.25, now()"
    " FROM generate_series(1, %(rows)s) g",
)
_JOIN = (
    "SELECT o.id, o.status, o.total, c.name, c.city FROM public.orders o JOIN public.customer c ON c.id = o.customer"
)
_BY_CUSTOMER = "SELECT o.customer, count(*) AS orders, sum(o.total) AS total FROM public.orders o GROUP BY o.customer"
_BY_CITY = (
    "SELECT c.city, count(*) AS orders, sum(o.total) AS total FROM public.orders o"
    " JOIN public.customer c ON c.id = o.customer GROUP BY c.city"
)

VIEWS: dict[str, str] = {
    "table": 'table = "public.orders"\ntarget = "warehouse"\n',
    "documents": 'table = "public.orders"\ntarget = "search"\n',
    "joined": f'query = "{_JOIN}"\nkey = ["id"]\ntarget = "warehouse"\n',
    "joined_documents": f'query = "{_JOIN}"\nkey = ["id"]\ntarget = "search"\n',
    "by_customer": f'query = "{_BY_CUSTOMER}"\nkey = ["customer"]\ntarget = "warehouse"\n',
    "by_city": f'query = "{_BY_CITY}"\nkey = ["city"]\ntarget = "warehouse"\n',
}

Committed = list[tuple[int, float]]
"""LSN after a COMMIT, and when the COMMIT returned, in seconds since 1970; both rise."""


def change(dsn: str, rows: int, rate: int, seconds: float) -> Committed:
    """Commit `rate` changes per second: updates of orders, and every 20th of a customer."""
    done: Committed = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.time()
        for number in range(round(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.time()))
            if number % 20:
                connection.execute("UPDATE orders SET total = total + 1 WHERE id = %s", (1 + number * 7919 % rows,))
            else:
                connection.execute("UPDATE customer SET name = name || '.' WHERE id = %s", (1 + number % (rows // 10),))
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
            assert row is not None
            done.append((parse_lsn(row[0]), time.time()))
    return done


class Watch(Closes):
    """Reads the views topic and notes the time at which each record was read."""

    def __init__(self, config: Config) -> None:
        self.seen: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._consumer = Consumer({"bootstrap.servers": config.kafka.bootstrap, "group.id": "bench"})
        self._consumer.assign([TopicPartition(Topics(config.kafka.prefix).views, 0, 0)])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            record = ViewRecord.from_value(message.value() or b"")
            if record.error is not None:
                self.failed.append(record.error)
            if record.cut is not None:
                self.seen[record.view].append((time.time(), record.cut.flushed_lsn))

    def reached(self, lsn: int, views: list[str]) -> bool:
        """Whether all views show the LSN. AssertionError if one has failed."""
        assert not self.failed, self.failed
        return all(self.seen[view] and self.seen[view][-1][1] >= lsn for view in views)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()


def check(connection: psycopg.Connection[Any], config: Config, name: str) -> None:
    """Compare a view with its query's result in PostgreSQL. AssertionError if they differ."""
    declared = config.views[name]
    rows = connection.execute(f"SELECT * FROM ({declared.query or f'TABLE {declared.table}'}) AS it".encode())
    columns = [column.name for column in rows.description or ()]
    expected = Counter(tuple(map(_plain, row)) for row in rows)
    found = Counter(tuple(_plain(row[name]) for name in columns) for row in read_view(config, name).rows)
    assert found == expected, (
        f"{name}: {(found - expected).total()} rows too many, {(expected - found).total()} missing"
    )


def _plain(value: Any) -> Any:
    """Return a value as topics and views represent it; all decimals here have scale 2."""
    if isinstance(value, Decimal):
        return int(value.scaleb(2))
    if isinstance(value, bytes):
        return int.from_bytes(value, signed=True)
    return round(value.timestamp() * 1_000_000) if isinstance(value, datetime) else value


def latencies(committed: Committed, seen: list[tuple[float, int]], after: float) -> list[float]:
    """Return the seconds from each COMMIT since `after` to the first record at or past its LSN."""
    lsns = [lsn for _, lsn in seen]
    return [seen[bisect.bisect_left(lsns, lsn)][0] - at for lsn, at in committed if at >= after]


def percentiles(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50_s": round(cuts[49], 2), "p99_s": round(cuts[98], 2), "max_s": round(max(values), 2)}


def measure(servers: Servers, folder: Path, names: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the load against a daemon and a job of its own and return the figures."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    more = f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}/warehouse"\n'
    more += f'[search]\nhosts = ["{servers.opensearch}"]\n'
    more += f"[spark]\ntrigger_interval_ms = {arguments.interval_ms}\n"
    more += "".join(f"[views.{name}]\n{VIEWS[name]}" for name in names)
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}", more)
    config = load(path)
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "follow", "--config", str(path)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        for statement in ROWS:
            connection.execute(statement.encode(), {"rows": arguments.rows})
        with running(path), (folder / "follow.log").open("wb") as log:
            first = wait_for_state(config, connection, 300).flushed_lsn
            with (
                Watch(config) as watch,
                subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process,
            ):
                peak = Peak(process.pid)
                try:
                    wait_for_views(process, lambda: watch.reached(first, names), 600)
                    began = time.time()
                    committed = change(dsn, arguments.rows, arguments.rate, arguments.seconds + arguments.warm_up)
                    wait_for_views(process, lambda: watch.reached(committed[-1][0], names), 300)
                finally:
                    process.terminate()
            for name in names:
                check(connection, config, name)
    stages = _stages((folder / "follow.log").read_bytes(), names)
    after = began + arguments.warm_up
    found = {name: latencies(committed, watch.seen[name], after) for name in names}
    return {
        "changes_per_second": round(len(committed) / (committed[-1][1] - committed[0][1]), 1),
        "all": percentiles([late for each in found.values() for late in each]),
        "views": {name: {**percentiles(found[name]), **stages[name]} for name in names},
        "peak_mib": peak.end(),
    }


def wait_for_views(process: subprocess.Popen[bytes], reached: Callable[[], bool], seconds: float) -> None:
    """Wait until `reached` returns true; AssertionError if the job ends, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None, "the job has ended"
        assert time.monotonic() < deadline, f"not reached in {seconds} s"
        time.sleep(0.1)


def _stages(log: bytes, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return medians of each stage in the later half of the batches; the first is the whole table."""
    batches: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for text in log.splitlines():
        event = orjson.loads(text) if text.startswith(b"{") else {}
        if event.get("event") == "batch applied":
            batches[event["view"]].append(event)
    found = {}
    for name, events in batches.items():
        events = events[len(events) // 2 :]
        stages = {stage for event in events for stage in event["ms"]}
        ms = {stage: statistics.median(event["ms"].get(stage, 0) for event in events) for stage in sorted(stages)}
        found[name] = {"rows_per_batch": statistics.median(event["rows"] for event in events), "ms": ms}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", choices=("two", "six"), default="two")
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--warm-up", type=float, default=180)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--interval-ms", type=int, default=250)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    names = list(VIEWS)[: 2 if arguments.views == "two" else 6]
    with own_servers(search=True) as (servers, state_dir):
        result = measure(servers, state_dir.parent, names, arguments)
    report(result, arguments.output)


if __name__ == "__main__":
    main()
