"""The daemon's memory over time, under all that could make it grow, and CPU while Kafka is frozen.

    python -m tests.bench.memory [--minutes 10] [--tables 3000] [--output FOLDER]

Narrow rows are inserted all the time. The phases: a steady flow; the broker stopped (a fifth of the time); frozen, with
its sockets open; slow, running for a tenth of the time; rows of 15 MiB; a transaction of a million rows; the daemon
killed and started again; and last, another daemon with `--tables` tables. With --output, the figures are written there
as memory.json and drawn as memory.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pygal
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers, start_servers, status
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SinkError
from tests.support.daemon import Daemon, wait_for, wait_for_state, write_config
from tests.support.servers import own_servers, repeating

_MIB = 2**20
_SAMPLE_S = 0.1
_FLOW = "INSERT INTO flow (text) SELECT md5(g::text) FROM generate_series(1, 1000) g"
_NOISE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 15 * 32768))"


class Samples:
    """Samples of the current daemon's resident memory, each with its phase; a thread takes them."""

    def __init__(self) -> None:
        self.process: psutil.Process | None = None
        self.phase = "start"
        self.taken: list[tuple[float, int, str]] = []
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            process = self.process
            try:
                if process is not None:
                    self.taken.append((time.monotonic() - self._began, process.memory_info().rss, self.phase))
            except psutil.Error:
                continue

    def cpu(self) -> float:
        """CPU seconds of the process so far."""
        assert self.process is not None
        return sum(self.process.cpu_times()[:2])

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def _broker(state_dir: Path) -> int:
    return next(each.server.process.pid for each in status(state_dir) if each.server.name == "kafka")


def measure(servers: Servers, state_dir: Path, seconds: float) -> dict[str, Any]:
    """Run the phases in about `seconds`; at the end, everything written is on the topics."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    path = write_config(state_dir.parent, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}")
    config = load(path)
    samples = Samples()
    with psycopg.connect(dsn, autocommit=True) as connection:
        _make_tables(connection)
    with psycopg.connect(dsn, autocommit=True) as connection, repeating(dsn, _FLOW, 0.1):
        daemon = Daemon(path, forked=False)
        try:
            samples.process = psutil.Process(daemon.process.pid)
            wait_for(config, lambda record: record.is_state)
            samples.phase = "flow"
            time.sleep(seconds / 10)
            samples.phase = "broker stopped"
            os.kill(_broker(state_dir), signal.SIGKILL)
            time.sleep(seconds / 5)
            start_servers(state_dir, search=False)
            samples.phase = "behind it"
            _caught_up(config, connection)
            samples.phase = "broker frozen"
            cpu_percent = _frozen(_broker(state_dir), samples, seconds / 10)
            samples.phase = "broker slow"
            _slowed(_broker(state_dir), seconds / 10)
            samples.phase = "behind it"
            _caught_up(config, connection)
            samples.phase = "rows of 15 MiB"
            for _ in range(max(int(seconds / 30), 3)):
                connection.execute(f"INSERT INTO huge (text) SELECT {_NOISE}".encode())
            wait_for_state(config, connection, 300)
            samples.phase = "a million rows"
            connection.execute("INSERT INTO flow (text) SELECT md5(g::text) FROM generate_series(1, 1000000) g")
            wait_for_state(config, connection, 300)
            samples.phase = "killed, and started again"
            daemon.kill()
            time.sleep(seconds / 20)
            daemon = Daemon(path, forked=False)
            samples.process = psutil.Process(daemon.process.pid)
            wait_for_state(config, connection, 300)
            samples.phase = "flow"
            time.sleep(seconds / 10)
        finally:
            daemon.kill()
            samples.end()
    peaks: dict[str, float] = {}
    for _, rss, phase in samples.taken:
        peaks[phase] = max(peaks.get(phase, 0.0), round(rss / _MIB, 1))
    return {
        "limit_mib": config.memory.limit // _MIB,
        "peak_mib": max(peaks.values()),
        "peak_mib_by_phase": peaks,
        "cpu_percent_while_frozen": round(cpu_percent, 2),
        "rss": [(round(at, 1), round(rss / _MIB, 1), phase) for at, rss, phase in samples.taken[::10]],
    }


def _frozen(pid: int, samples: Samples, seconds: float) -> float:
    """Stop a process for 10 s, then `seconds` more; return the daemon's CPU percentage in the latter."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(10)
    cpu, began = samples.cpu(), time.monotonic()
    time.sleep(seconds)
    percent = 100 * (samples.cpu() - cpu) / (time.monotonic() - began)
    os.kill(pid, signal.SIGCONT)
    return percent


def _slowed(pid: int, seconds: float) -> None:
    """Let a process run for a tenth of the time."""
    for _ in range(int(seconds * 2)):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.45)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


@retry(retry=retry_if_exception_type(SinkError), stop=stop_after_delay(120), wait=wait_fixed(1), reraise=True)
def _caught_up(config: Config, connection: psycopg.Connection[Any]) -> None:
    """Wait for a state, with retries: a broker that has just started may not know its partitions yet."""
    wait_for_state(config, connection, 300)


def _make_tables(connection: psycopg.Connection[Any]) -> None:
    for table in ("flow", "huge"):
        connection.execute(
            f"CREATE TABLE {table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text);"
            f"ALTER TABLE {table} ALTER text SET STORAGE EXTERNAL".encode()
        )


def many_tables(servers: Servers, state_dir: Path, tables: int) -> dict[str, Any]:
    """Start a daemon with `tables` tables, twice; insert a row into each table each time."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    folder = state_dir.parent / "many"
    folder.mkdir()
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}")
    path.write_text(path.read_text().replace("partitions = 3", "partitions = 1"))
    config = load(path)
    result: dict[str, Any] = {"tables": tables}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for n in range(tables):
            connection.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, a text, b numeric(9,2))".encode())
        for start in ("first_start", "restart"):
            began = time.monotonic()
            daemon = Daemon(path, forked=False)
            try:
                wait_for(config, lambda record: record.is_state and record.here.offsets, 900)
                for n in range(tables):
                    connection.execute(f"INSERT INTO t{n} VALUES ({start == 'restart':d}, 'x', 1)".encode())
                wait_for_state(config, connection, 900)
                seconds = round(time.monotonic() - began, 1)
                result[start] = {"seconds": seconds, "peak_mib": daemon.peak_bytes // _MIB}
            finally:
                daemon.kill()
    return result


def draw(result: dict[str, Any], path: Path) -> None:
    """Write an SVG of resident memory over time, a line for each phase, and the limit."""
    chart = pygal.XY(title="resident memory, MiB", x_title="s", show_dots=False, legend_at_bottom=True)
    phases: dict[str, list[tuple[float, float] | None]] = {}
    before = None
    for at, mib, phase in result["rss"]:
        points = phases.setdefault(phase, [])
        if phase != before and points:
            points.append(None)
        points.append((at, mib))
        before = phase
    for phase, points in phases.items():
        chart.add(phase, points)
    end = result["rss"][-1][0]
    chart.add("memory.limit", [(0, result["limit_mib"]), (end, result["limit_mib"])])
    chart.render_to_file(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tables", type=int, default=3000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with own_servers() as (servers, state_dir):
        result = measure(servers, state_dir, arguments.minutes * 60)
        if arguments.tables:
            result["many_tables"] = many_tables(servers, state_dir, arguments.tables)
    report = {"machine": platform.platform(), "cpus": os.cpu_count(), **result}
    print(json.dumps({name: value for name, value in report.items() if name != "rss"}, indent=2))
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "memory.json").write_text(json.dumps(report, indent=2) + "\n")
        draw(result, arguments.output / "memory.svg")


if __name__ == "__main__":
    main()
