"""Growth of a batch's cost with its table: 1,000 scattered changes to tables of different sizes.

    python -m tests.bench.growth [--rows 200000,1000000,5000000] [--changes 1000] [--warm-up 150] [--rounds 30]
        [--views table,joined,by_customer] [--output FILE]

For each size, views of one table in the warehouse, of the same joined with a small one, and of an aggregate. The daemon
and `tailrace views follow` run as processes; a round is one transaction of scattered updates, waited for in all views.
The figures are medians of the milliseconds that the batches log, by stage, without the first batches: in these the JVM
compiles, and the files of the first copy are compacted and indexed. `alone` is the time that a view would take if it
were the only one. `cpu_s` is the median of the seconds of CPU that a round takes in all processes of the job, which
other load on the machine changes little.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import orjson
import psutil
import psycopg

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.lsn import parse_lsn
from tests.bench.follow import ROWS, SETUP, VIEWS, Watch, wait_for_views
from tests.bench.rebuild import Peak
from tests.bench.report import report
from tests.support.daemon import ROOT, running, wait_for_state, write_config
from tests.support.servers import own_servers

_NAMES = ["table", "joined", "by_customer"]


def measure(servers: Servers, folder: Path, rows: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Update views of a table of `rows` rows, round by round; return the figures."""
    folder.mkdir()
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    # one view at a time, so that each is timed by itself
    more = "[spark]\nviews_at_once = 1\n"
    more += f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}/warehouse"\n'
    names: list[str] = arguments.views
    more += "".join(f"[views.{name}]\n{VIEWS[name]}" for name in names)
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}", more)
    config = load(path)
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "follow", "--config", str(path)]
    batches: dict[str, list[dict[str, int]]] = {name: [] for name in names}
    cpu: list[float] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        for statement in ROWS:
            connection.execute(statement.encode(), {"rows": rows})
        with running(path), (folder / "follow.log").open("wb") as log:
            reached = wait_for_state(config, connection, 900).flushed_lsn
            with (
                Watch(config) as watch,
                subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process,
            ):
                peak = Peak(process.pid)
                wait_for_views(process, lambda: watch.reached(reached, names), 900)
                for number in range(arguments.warm_up + arguments.rounds):
                    before = cpu_seconds(process.pid)
                    connection.execute(
                        "UPDATE orders SET total = total + 1 WHERE id IN"
                        " (SELECT 1 + (g * 7919::bigint + %s) %% %s FROM generate_series(1, %s) g)",
                        (number, rows, arguments.changes),
                    )
                    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
                    assert row is not None
                    reached = parse_lsn(row[0])
                    wait_for_views(process, lambda: watch.reached(reached, names), 300)  # noqa: B023
                    cpu.append(cpu_seconds(process.pid) - before)
                process.terminate()
        for text in (folder / "follow.log").read_bytes().splitlines():
            event = orjson.loads(text) if text.startswith(b"{") else {}
            if event.get("event") == "batch applied" and event["rows"]:
                batches[event["view"]].append(event["ms"])
    views = {name: _medians(each[-arguments.rounds :]) for name, each in batches.items()}
    # the first query of a round updates the base tables for all; alone, each query would have to do that
    shared = sum(views[name]["read"] for name in names if "query" in VIEWS[name])
    for name, stages in views.items():
        stages["alone"] = stages["apply"] + (shared if "query" in VIEWS[name] else stages["read"])
    return {"views": views, "cpu_s": round(statistics.median(cpu[-arguments.rounds :]), 3), "peak_mib": peak.end()}


def cpu_seconds(pid: int) -> float:
    """Return the seconds of CPU that a process and its children have taken, also those that have ended."""
    process = psutil.Process(pid)
    times = [process.cpu_times(), *(each.cpu_times() for each in process.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def _medians(batches: list[dict[str, int]]) -> dict[str, float]:
    stages = {stage for batch in batches for stage in batch}
    return {stage: statistics.median(batch.get(stage, 0) for batch in batches) for stage in sorted(stages)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="200000,1000000,5000000")
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=150)
    parser.add_argument("--views", type=lambda text: text.split(","), default=_NAMES)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.rows.split(",")]
    with own_servers() as (servers, state_dir):
        results = {size: measure(servers, state_dir.parent / str(size), size, arguments) for size in sizes}
    first, last = results[sizes[0]]["views"], results[sizes[-1]]["views"]
    ratios = {name: round(last[name]["alone"] / first[name]["alone"], 2) for name in arguments.views}
    ratios["cpu_s"] = round(results[sizes[-1]]["cpu_s"] / results[sizes[0]]["cpu_s"], 2)
    report({"results": results, "ratios": ratios}, arguments.output)


if __name__ == "__main__":
    main()
