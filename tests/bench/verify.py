"""Time and memory of `tailrace verify` for a large table: its view of all rows, and a query over it.

    python -m tests.bench.verify [--rows 5000000] [--views table by_customer joined] [--output FILE]

The daemon writes the topic, as its first copy of the table; `tailrace views follow` builds the views, and both run on.
Each comparison is a process: `verify table` compares source, topic and view, `verify by_customer` starts Spark and
compares the table's base table and the view with their content from the topic. It is measured while all is equal, then
one row of each view is changed, and the same comparisons must name it. Memory is the peak resident memory of each kind
of process that the command consists of; `disk_mib` is the peak of the files that they have in their temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.spark_job import job
from tailrace.schemas.closes import Closes
from tailrace.schemas.config.file import load
from tailrace.spark_jobs.jobs.command import opened
from tailrace.spark_jobs.maintain.open_view import open_view
from tests.bench.follow import VIEWS, Watch, wait_for_views
from tests.bench.report import report
from tests.support.daemon import ROOT, running, wait_for_state, write_config
from tests.support.servers import own_servers

_SETUP = (
    "CREATE TABLE customer (id int PRIMARY KEY, name text, city text);"
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, status text, total numeric(12,2), placed timestamptz)"
)
_CUSTOMERS = "INSERT INTO customer SELECT g, 'name ' || g, 'city ' || g %% 50 FROM generate_series(1, %(rows)s / 10) g"
_ROWS = (
    "INSERT INTO orders SELECT g, 1 + g %% (%(rows)s / 10), 'order ' || g, g %% 100000 * 1.25,"
    " now() + g * interval '1 ms' FROM generate_series(1, %(rows)s) g"
)
_SPOILED = {
    "table": "UPDATE {} SET status = 'spoiled' WHERE id = 4711",
    "by_customer": "UPDATE {} SET orders = orders + 1 WHERE customer = 4711",
    "joined": "UPDATE {} SET name = 'spoiled' WHERE id = 4711",
}
_DEFAULT = ("table", "by_customer")
_TIMEOUT_S = 3600


class Peaks(Closes):
    """Watches a process and its children: the peak resident memory of each kind of process, and of a folder's files."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.mib: dict[str, float] = {}
        self.disk_mib = 0.0
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(psutil.Process(pid),))
        self._thread.start()

    def _watch(self, process: psutil.Process) -> None:
        while not self._stop.wait(0.2):
            self.disk_mib = max(self.disk_mib, _size(self._folder) / 2**20)
            try:
                for one in [process, *process.children(recursive=True)]:
                    kind = "command" if one == process else "jvm" if one.name() == "java" else "python of the job"
                    self.mib[kind] = max(self.mib.get(kind, 0), one.memory_info().rss / 2**20)
            except psutil.NoSuchProcess:
                continue

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def _size(folder: Path) -> int:
    """Return the bytes that the files in a folder take on disk, also those that end while it is read."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def verify(path: Path, view: str, folder: Path) -> dict[str, Any]:
    """Run the command; return its seconds, the peaks of its memory and disk, and the comparisons."""
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", "verify", view, "--json", f"--timeout={_TIMEOUT_S}"]
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
    began = time.monotonic()
    with (
        subprocess.Popen([*command, "--config", str(path)], stdout=subprocess.PIPE, env=environment) as process,
        Peaks(process.pid, folder) as peaks,
    ):
        text, _ = process.communicate()
    results = [json.loads(line) for line in text.splitlines()]
    assert process.returncode == (0 if all(each["equal"] for each in results) else 7)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "peak_mib": {kind: round(mib) for kind, mib in peaks.mib.items()},
        "disk_mib": round(peaks.disk_mib),
        "comparisons": {
            each["compared"]: {name: each[name] for name in ("left_rows", "right_rows", "differing")}
            for result in results
            for each in result["comparisons"]
        },
        "compared_in_s": [result["seconds"] for result in results],
    }


def spoil(path: Path) -> None:
    """Change one row of each view, as another writer would."""
    config = load(path)
    os.environ.update(job(config, "follow", []).environment)
    with opened(config) as shared:
        for name in config.views:
            view = open_view(shared, name)
            with view.lease.held(_TIMEOUT_S) as mine:
                assert mine
                shared.session.sql(_SPOILED[name].format(view.batch.target.table()))  # type: ignore[attr-defined]


@contextmanager
def pipeline(servers: Servers, folder: Path, rows: int, views: Sequence[str]) -> Iterator[Path]:
    """Yield the configuration of a pipeline that runs during the block; its views are complete."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    more = f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}/warehouse"\n'
    more += "".join(f"[views.{name}]\n{VIEWS[name]}" for name in views)
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}", more)
    config = load(path)
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "follow", "--config", str(path)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_SETUP)
        for statement in (_CUSTOMERS, _ROWS):
            connection.execute(statement, {"rows": rows})
        with running(path), (folder / "follow.log").open("wb") as log:
            reached = wait_for_state(config, connection, _TIMEOUT_S).flushed_lsn
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            with Watch(config) as watch, subprocess.Popen(command, stderr=log, env=environment) as process:
                try:
                    wait_for_views(process, lambda: watch.reached(reached, list(views)), _TIMEOUT_S)
                    yield path
                finally:
                    process.terminate()


def measure(servers: Servers, folder: Path, rows: int, views: Sequence[str]) -> dict[str, Any]:
    """Compare the views while they are equal, and with a spoiled row each."""
    with pipeline(servers, folder, rows, views) as path:
        found: dict[str, Any] = {view: verify(path, view, folder / f"equal-{view}") for view in views}
        assert all(not each["differing"] for one in found.values() for each in one["comparisons"].values())
        subprocess.run([sys.executable, "-m", "tests.bench.verify", "--spoil", str(path)], check=True, cwd=ROOT)
        for view in views:
            spoiled = verify(path, view, folder / f"spoiled-{view}")
            assert sum(each["differing"] for each in spoiled["comparisons"].values()) == 1
            found[f"{view}, one row spoiled"] = spoiled
    return {"rows": rows, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--views", nargs="+", choices=_SPOILED, default=_DEFAULT)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--spoil", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.spoil:
        spoil(arguments.spoil)
        return
    with own_servers() as (servers, state_dir):
        result = measure(servers, state_dir.parent, arguments.rows, arguments.views)
    report(result, arguments.output)


if __name__ == "__main__":
    main()
