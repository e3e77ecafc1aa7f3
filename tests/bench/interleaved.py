"""Effect of an interleaved snapshot on the stream: latency of changes, and WAL that the slot holds.

    python -m tests.bench.interleaved [--rows 2000000] [--rate 500] [--pace BYTES] [--output FOLDER]

A table of 12 columns and `--rows` rows is read in windows (`snapshot.mode = "interleaved"`) while pgbench commits
`--rate` small transactions a second on other tables, as in `tests.bench.latency`, with the same figures. Twice a second
it asks the source for the slot's lag in bytes of WAL. --output writes interleaved.json and interleaved.svg.

PostgreSQL moves `restart_lsn` only when it logs the running transactions, every 15 s, so only a read of some minutes
shows whether the held WAL grows: --pace is `snapshot.max_bytes_per_s`; with 1500000, 2 million rows take about three.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pygal
from confluent_kafka import Producer

from tailrace.cdc.dev.postgres import binaries, create_database
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.bench import latency
from tests.bench.workloads import WIDE, WIDE_ROWS
from tests.support.daemon import running, wait_for, write_config
from tests.support.servers import own_servers

# latency is taken from the rows of public.event, of which only streamed ones may count
_SNAPSHOT = '[snapshot]\nmode = "interleaved"\nwhere = { "public.event" = "false" }\n'
_PACE = "max_bytes_per_s = {}\n"
_LONGEST_S = 3600
_BEFORE_S = 3.0
_HELD = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8,"
    " pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int8,"
    " pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8 FROM pg_replication_slots WHERE slot_name = %s"
)


class Sample(NamedTuple):
    """Seconds since the read began, and bytes of WAL: held by the slot, unconfirmed, written in total."""

    at: float
    held: int
    unconfirmed: int
    written: int


def measure(servers: Servers, folder: Path, rows: int, rate: int, pace: int | None) -> dict[str, Any]:
    """Read the table during the load; return the figures."""
    more = _SNAPSHOT + (_PACE.format(pace) if pace else "")
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}", more)
    config = load(path)
    script = folder / "transaction.sql"
    script.write_text(latency.TRANSACTION)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(latency.SETUP.encode())
        connection.execute(WIDE.encode())
        connection.execute(WIDE_ROWS.encode(), (rows,))
        connection.execute("VACUUM (FREEZE, ANALYZE) orders")
        connection.execute("CHECKPOINT")
    # a broker's first transaction creates its transaction topic, which takes most of a second
    Producer({"bootstrap.servers": servers.bootstrap, "transactional.id": "first"}).init_transactions(30)
    pgbench = [str(binaries() / "pgbench"), "-n", "-M", "prepared", "-c", "4", "-j", "1", "-R", str(rate)]
    pgbench += ["-T", str(_LONGEST_S), "-f", str(script), "-d", dsn]
    samples: list[Sample] = []
    spans: list[float] = []
    with subprocess.Popen(pgbench, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as load_process:
        time.sleep(_BEFORE_S)
        with running(path):

            def watch() -> None:
                wait_for(config, lambda record: record.incomplete_tables)
                began = time.time()
                stop = threading.Event()
                sampler = threading.Thread(target=_sample, args=(dsn, config.source.slot, began, stop, samples))
                sampler.start()
                try:
                    wait_for(config, lambda record: record.is_state, _LONGEST_S)
                finally:
                    spans.extend((began, time.time()))
                    stop.set()
                    sampler.join()
                    load_process.terminate()

            watcher = threading.Thread(target=watch)
            watcher.start()
            arrivals = latency.read_arrivals(config, load_process)  # type: ignore[arg-type]
            watcher.join()
    began, ended = spans
    late = [
        (at - began, arrived - at)
        for (arrived, _), at in zip(arrivals, latency.written_at(config, arrivals), strict=True)
        if began <= at < ended
    ]
    by_second: list[list[float]] = [[] for _ in range(int(ended - began) + 1)]
    for at, seconds in late:
        by_second[int(at)].append(seconds)
    return {
        "rows": rows,
        "seconds": round(ended - began, 1),
        "rows_per_second": round(rows / (ended - began)),
        "transactions_per_second": round(len(late) / (ended - began), 1),
        **latency.percentiles([seconds for _, seconds in late]),
        "held_wal_bytes": _held([each.held for each in samples]),
        "unconfirmed_wal_bytes": _held([each.unconfirmed for each in samples]),
        "written_wal_bytes": samples[-1].written - samples[0].written,
        "samples": [{**each._asdict(), "at": round(each.at, 2)} for each in samples],
        "by_second": [latency.percentiles(second) for second in by_second if len(second) > 1],
    }


def _sample(dsn: str, slot: str, began: float, stop: threading.Event, samples: list[Sample]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not stop.wait(0.5):
            row = connection.execute(_HELD, (slot,)).fetchone()
            if row is not None:
                samples.append(Sample(time.time() - began, *row))


def _held(samples: list[int]) -> dict[str, int]:
    """Return the median of each third of the time, which shows steady growth, and the maximum."""
    third = max(len(samples) // 3, 1)
    thirds = (samples[:third], samples[third : 2 * third], samples[-third:])
    names = ("first_third", "second_third", "last_third")
    medians = {name: round(statistics.median(part)) for name, part in zip(names, thirds, strict=True)}
    return {**medians, "most": max(samples)}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write an SVG of latency and held WAL over the time of the snapshot."""
    chart = pygal.XY(
        title=f"{result['rows']} rows read beside {result['transactions_per_second']} transactions/s",
        legend_at_bottom=True,
        show_dots=False,
        x_title="s",
    )
    chart.add("p99, ms", [(second, each["p99_ms"]) for second, each in enumerate(result["by_second"])])
    held = [(each["at"], each["held"] / 1e6) for each in result["samples"]]
    chart.add("held WAL, MB", held, secondary=True)
    chart.render_to_file(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--pace", type=int, metavar="BYTES")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with own_servers() as (servers, state_dir):
        result = measure(servers, state_dir.parent, arguments.rows, arguments.rate, arguments.pace)
    report = {"machine": platform.platform(), "cpus": os.cpu_count(), **result}
    short = {name: value for name, value in report.items() if name not in ("samples", "by_second")}
    print(json.dumps(short, indent=2))
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "interleaved.json").write_text(json.dumps(report, indent=2) + "\n")
        draw(result, arguments.output / "interleaved.svg")


if __name__ == "__main__":
    main()
