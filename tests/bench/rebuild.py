"""Speed of a view's rebuild from offset 0, compared with only reading and decoding its topic.

    python -m tests.bench.rebuild [--rows 2000000] [--documents 300000] [--rounds 3] [--output FILE]

The daemon writes the topic, as its first copy of a table of 12 columns. Each round is one `tailrace views rebuild` of
three views, one after the other in one Spark session: `cold`, of that table, timed from the start of the command to the
swap; `warm`, of that table, timed by itself; `documents`, of a smaller table, in the index. The limits are measured
behind each round, because servers that have run longer are faster. Memory is that of the largest process of the job,
which is the JVM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.bench.report import report
from tests.bench.workloads import WIDE, WIDE_ROWS
from tests.support.daemon import ROOT, running, wait_for_state, write_config
from tests.support.servers import own_servers


class Peak:
    """Watches a process and its children: the peak resident memory, in MiB, of the largest one."""

    def __init__(self, pid: int) -> None:
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(psutil.Process(pid),))
        self._thread.start()

    def _watch(self, process: psutil.Process) -> None:
        while not self._stop.wait(0.2):
            try:
                each = [process, *process.children(recursive=True)]
                self.mib = max(self.mib, *(one.memory_info().rss / 2**20 for one in each))
            except psutil.NoSuchProcess:
                continue

    def end(self) -> float:
        self._stop.set()
        self._thread.join()
        return round(self.mib)


def views(folder: Path, hosts: list[str]) -> str:
    """Return the sections of the config: two views of the large table, one of the other in the index."""
    lines = [f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}/warehouse"\n']
    lines += [f"[search]\nhosts = {json.dumps(hosts)}\n"]
    lines += [f'[views.{name}]\ntable = "public.orders"\ntarget = "warehouse"\n' for name in ("cold", "warm")]
    return "".join([*lines, '[views.documents]\ntable = "public.documents"\ntarget = "search"\n'])


def rebuild(path: Path, *names: str) -> dict[str, Any]:
    """Run the command; return its seconds, the peak of its memory, and what each view's batches took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "rebuild", *names, "--config", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    swapped: dict[str, float] = {}
    batches: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        peak = Peak(process.pid)
        assert process.stderr is not None
        for text in process.stderr:
            if not text.startswith("{"):
                continue
            event = json.loads(text)
            if event["event"] == "rebuild batch applied":
                batches[event["view"]].append(event)
            elif event["event"] == "generation swapped":
                swapped[event["view"]] = time.monotonic() - began
    assert process.returncode == 0
    return {"seconds": swapped, "peak_mib": peak.end(), "batches": batches}


def limits(path: Path) -> dict[str, float]:
    """Return the rows per second of `tests.bench.rebuild_limits`: read, read and decode, index."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.rebuild_limits", str(path)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(servers: Servers, folder: Path, rows: int, documents: int, rounds: int) -> dict[str, Any]:
    """Fill the topics, then rebuild `rounds` times."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    more = views(folder, [servers.opensearch] if servers.opensearch else [])
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}", more)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, count in (("orders", rows), ("documents", documents)):
            connection.execute(WIDE.replace("orders", table).encode())
            connection.execute(WIDE_ROWS.replace("orders", table).encode(), (count,))
        with running(path):
            wait_for_state(load(path), connection, 600)
    # the first rebuild has no live generation beside it, so it does not count
    rebuild(path, "cold", "warm", "documents")
    found, limit = [], []
    for _ in range(rounds):
        found.append(rebuild(path, "cold", "warm", "documents"))
        limit.append(limits(path))
    most = {name: statistics.median(each[name] for each in limit) for name in limit[0]}

    def rate(view: str, count: int) -> int:
        spent = [sum(run["batches"][view][0]["ms"].values()) / 1000 for run in found]
        return int(count / statistics.median(spent))

    rates = {"warm": rate("warm", rows), "documents": rate("documents", documents)}
    return {
        "rows": rows,
        "cold_seconds": [round(run["seconds"]["cold"], 1) for run in found],
        "cold_rows_per_second": rate("cold", rows),
        "warm_rows_per_second": rates["warm"],
        "warm_of_read_and_decode": round(rates["warm"] / most["read_and_decode"], 2),
        "warm_ms": [run["batches"]["warm"][0]["ms"] for run in found],
        "documents": documents,
        "documents_per_second": rates["documents"],
        "documents_of_index": round(rates["documents"] / most["index"], 2),
        "documents_ms": [run["batches"]["documents"][0]["ms"] for run in found],
        "peak_mib": max(run["peak_mib"] for run in found),
        "limits_rows_per_second": most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--documents", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with own_servers(search=True) as (servers, state_dir):
        result = measure(servers, state_dir.parent, arguments.rows, arguments.documents, arguments.rounds)
    report(result, arguments.output)


if __name__ == "__main__":
    main()
