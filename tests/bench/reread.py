"""Latency of a table's changes to its views before, while and after another table is read again.

Four phases: `before`; `during`, while the table is read; `catch_up`, until the view that joins it shows the newest
state; `after`. The ratios are those of the latency to `before`.

    python -m tests.bench.reread [--rows 5000000] [--read-seconds 120] [--seconds 60] [--warm-up 120] [--rate 20]
        [--output FILE]

The large table has `--rows` rows; an ALTER TABLE causes all of them to be read again, at a rate that takes about
`--read-seconds`. Meanwhile rows of a small table are changed, one a transaction. Three views are followed: two of the
small table (its rows, and a sum of groups), and one that joins it with the large one, and does not advance while that
is incomplete. A view shows a transaction once its record on the views topic names an LSN at or past it. The report has
what `status` and the job say about the join meanwhile (`says_why`: whether they name the large table), and the load
average at the end of each phase. The job says it once the join is at the newest state before the ALTER TABLE: give the
read more seconds than a batch takes. The run fails if the join advances to a cut after the ALTER TABLE before the read
is complete, or if a view differs from PostgreSQL at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import psycopg

from tailrace.cdc.cli.status_page import status_lines
from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.read_status import read_status
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import PositionTail
from tests.bench.follow import Committed, Watch, check, latencies, percentiles, wait_for_views
from tests.bench.report import report
from tests.support.daemon import ROOT, running, wait_for, wait_for_state, write_config
from tests.support.servers import own_servers

_SMALL_ROWS = 1000
_SETUP = (
    "CREATE TABLE large (id int PRIMARY KEY, name text, city text);CREATE TABLE small (id int PRIMARY KEY, n int)",
    "INSERT INTO large SELECT g, 'name ' || g, 'city ' || g %% 50 FROM generate_series(1, %(rows)s) g",
    f"INSERT INTO small SELECT g, 0 FROM generate_series(1, {_SMALL_ROWS}) g",
)
_JOIN = "SELECT s.id, s.n, l.name FROM public.small s JOIN public.large l ON l.id = s.id"
_SUMS = "SELECT s.id % 10 AS digit, count(*) AS rows, sum(s.n) AS total FROM public.small s GROUP BY s.id % 10"
_VIEWS = (
    f'[views.small]\ntable = "public.small"\n[views.sums]\nquery = "{_SUMS}"\nkey = ["digit"]\n'
    f'[views.joined]\nquery = "{_JOIN}"\nkey = ["id"]\n'
)
_OTHERS = ["small", "sums"]
_NAMES = [*_OTHERS, "joined"]


class Load:
    """Commits changes of the small table at a steady rate, and watches whether the large one is complete."""

    def __init__(self, connection: psycopg.Connection[Any], tail: PositionTail, rate: float) -> None:
        self.committed: Committed = []
        self._connection = connection
        self._tail = tail
        self._pause = 1 / rate

    def run(self, seconds: float, until: Callable[[PositionRecord | None], bool] | None = None) -> None:
        """Commit for `seconds`, or until `until(newest position record)`, for at most ten times `seconds`."""
        began = time.time()
        deadline = began + seconds * (1 if until is None else 10)
        while (now := time.time()) < deadline:
            self._connection.execute(
                "UPDATE small SET n = n + 1 WHERE id = %s", (1 + len(self.committed) * 7 % _SMALL_ROWS,)
            )
            row = self._connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
            assert row is not None
            self.committed.append((parse_lsn(row[0]), time.time()))
            if until is not None and until(self._tail.newest()):
                return
            time.sleep(max(0.0, now + self._pause - time.time()))
        assert until is None, "it has not come to its end"


def measure(servers: Servers, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the load against a daemon and a job of its own and return the figures."""
    dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
    more = f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}/warehouse"\n{_VIEWS}'
    path = write_config(folder, dsn, servers.bootstrap, f"b{uuid.uuid4().hex[:8]}", more)
    config = load(path)
    command = [sys.executable, "-m", "tailrace.cdc.cli.main", "views", "follow", "--config", str(path)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in _SETUP:
            connection.execute(statement.encode(), {"rows": arguments.rows} if "%" in statement else None)
        with running(path):
            wait_for_state(config, connection, 600)
        row = connection.execute("SELECT sum(length(large::text)) FROM large").fetchone()
        assert row is not None
        limit = max(1024, int(row[0] / arguments.read_seconds))
        path.write_text(f"{path.read_text()}[snapshot]\nmax_bytes_per_s = {limit}\n")
        with running(path), (folder / "follow.log").open("wb") as log:
            first = wait_for_state(config, connection, 300).flushed_lsn
            with (
                Watch(config) as watch,
                PositionTail(config.kafka, Topics(config.kafka.prefix), config.source.slot) as tail,
                subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process,
            ):
                try:
                    wait_for_views(process, lambda: watch.reached(first, _NAMES), 600)
                    changes = Load(connection, tail, arguments.rate)
                    phases = _phases(config, connection, changes, watch, arguments)
                    last = wait_for_state(config, connection).flushed_lsn
                    wait_for_views(process, lambda: watch.reached(last, _NAMES), 300)
                finally:
                    process.terminate()
            for name in _NAMES:
                check(connection, config, name)
        said = _said((folder / "follow.log").read_bytes())
    says_why = {"status": "public.large" in str(phases.status), "job": "public.large" in str(said["waiting"])}
    return {"read_bytes_per_s": limit, **_figures(changes.committed, phases, watch), "says_why": says_why, **said}


_SPANS = ("before", "during", "catch_up", "after")


@dataclass(frozen=True, slots=True)
class _Phases:
    """Commits at which phases begin, and the last one ends; when the large table was incomplete.

    No cut from `altered_lsn`, an LSN after the ALTER TABLE, to `incomplete_lsn` is a state of the large table.
    """

    starts: Sequence[int]
    loads: Sequence[float]
    altered: float
    altered_lsn: int
    incomplete_lsn: int
    complete: float
    status: Sequence[str]


def _phases(
    config: Config, connection: psycopg.Connection[Any], changes: Load, watch: Watch, arguments: argparse.Namespace
) -> _Phases:
    starts: list[int] = []
    loads: list[float] = []

    def end_phase() -> None:
        starts.append(len(changes.committed))
        loads.append(os.getloadavg()[0])

    changes.run(arguments.warm_up)
    end_phase()
    changes.run(arguments.seconds)
    end_phase()
    altered = time.time()
    connection.execute("ALTER TABLE large ADD note text DEFAULT 'note'")
    row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    altered_lsn = parse_lsn(row[0])
    wait_for(config, lambda record: record.incomplete_tables)
    changes.run(arguments.read_seconds / 4)
    status = [text.strip() for text in status_lines(read_status(config)) if "waits for" in text]
    incomplete: list[int] = [altered_lsn]

    def is_complete(record: PositionRecord | None) -> bool:
        if record is not None and record.incomplete_tables:
            incomplete[0] = record.here.flushed_lsn
        return record is not None and not record.incomplete_tables

    changes.run(arguments.read_seconds, is_complete)
    complete = time.time()
    end_phase()
    first = changes.committed[-1][0]
    changes.run(arguments.seconds, lambda _: watch.reached(first, ["joined"]))
    end_phase()
    changes.run(arguments.seconds)
    end_phase()
    return _Phases(starts, loads, altered, altered_lsn, incomplete[0], complete, status)


def _figures(committed: Committed, phases: _Phases, watch: Watch) -> dict[str, Any]:
    """Return the latencies of the small table's views in each phase, and how long the join paused."""
    shown = watch.seen["joined"]
    joined = [at for at, _ in shown if at > phases.altered]
    moved = [at for at in joined if at < phases.complete]
    early = [lsn for _, lsn in shown if phases.altered_lsn <= lsn <= phases.incomplete_lsn]
    assert not early, "the join has advanced to a cut that is no state of the large table"
    return {
        "read_s": round(phases.complete - phases.altered, 1),
        **{name: _view_figures(committed, phases, watch.seen[name]) for name in _OTHERS},
        "joined": {
            "last_moved_s_after_the_alter": round(max(moved) - phases.altered, 1) if moved else None,
            "moved_again_s_after_the_read": round(
                min(at for at in joined if at >= phases.complete) - phases.complete, 1
            ),
        },
        "status": phases.status,
    }


def _view_figures(committed: Committed, phases: _Phases, shown: list[tuple[float, int]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, (begin, end), average in zip(_SPANS, pairwise(phases.starts), phases.loads[1:], strict=True):
        span = committed[begin:end]
        batches = sum(span[0][1] <= at <= span[-1][1] for at, _ in shown)
        seconds = round(span[-1][1] - span[0][1], 1)
        figures[name] = {
            **(percentiles(latencies(span, shown, 0)) if len(span) > 1 else {}),
            "seconds": seconds,
            "batches": batches,
            "load_average": round(average, 1),
        }
    base = figures["before"]
    for name in _SPANS[1:]:
        each = figures[name]
        if "p50_s" in each:
            each["to_before"] = {of: round(each[of] / max(base[of], 0.01), 2) for of in ("p50_s", "p99_s")}
    return figures


def _said(log: bytes) -> dict[str, Any]:
    """Return what the job has logged about the join: what it waited for, and its longest batch."""
    events = [orjson.loads(text) for text in log.splitlines() if text.startswith(b"{")]
    own = [event for event in events if event.get("view") == "joined"]
    batches = [event for event in own if event["event"] == "batch applied"]
    longest: dict[str, Any] = max(batches[1:], key=lambda event: sum(event["ms"].values()), default={})
    return {
        "waiting": [event for event in own if event["event"] == "view waiting"],
        "longest_batch": {name: longest.get(name) for name in ("rows", "ms")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--read-seconds", type=float, default=120)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=120)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with own_servers() as (servers, state_dir):
        result = measure(servers, state_dir.parent, arguments)
    report({"rows": arguments.rows, **result}, arguments.output)


if __name__ == "__main__":
    main()
