"""One round: a database and topics of its own, load, faults, rest, and what the checker finds afterwards."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql

from cdc.dev import postgres
from schemas.config import Config
from schemas.configfile import load
from tests.daemon import ROOT, wait_for, wait_for_state, write_config
from tests.faults.checker import Violation, check
from tests.faults.cluster import Cluster
from tests.faults.collect import SlotWatch, collect
from tests.faults.machine import Clock, SmallDisk
from tests.faults.nemesis import Nemesis
from tests.faults.plan import Plan
from tests.faults.source import Pair, Postgres
from tests.faults.supervisor import Supervisor
from tests.faults.workload import TABLES, create_tables
from tests.faults.world import World
from tests.servers import drop_database

_LOAD_S = 4.0
"""So long the load goes on at least, counted from the first fault."""

_CAUGHT_UP_S = 90.0
_SPOOL_BYTES = "16384"


@dataclass(frozen=True, slots=True)
class Round:
    """What came of a plan; `changes` is the number of journalled changes that were checked."""

    plan: Plan
    faults: Counter[str]
    transactions: int
    changes: int
    seconds: float
    violations: tuple[Violation, ...]
    folder: Path | None


@dataclass(frozen=True, slots=True)
class _Site:
    """Where a round takes place; `dsn` and `bootstrap` are the direct ways, the daemon may have others."""

    dsn: str
    bootstrap: str
    daemon_dsn: str
    daemon_bootstrap: str
    kafka: Cluster
    postgres: Postgres
    pair: Pair | None


def run_round(world: World, plan: Plan) -> Round:
    """Play a round. Its folder, with the logs and the evidence, is kept only if something was broken."""
    began = time.monotonic()
    name = f"r{plan.seed % 1_000_000}x{uuid.uuid4().hex[:6]}"
    folder = world.folder / name
    folder.mkdir()
    with ExitStack() as stack:
        site = stack.enter_context(_site(world, plan, name))
        result = _play(world, plan, name, folder, site, stack)
    faults, transactions, changes, violations = result
    if violations:
        return Round(plan, faults, transactions, changes, time.monotonic() - began, tuple(violations), folder)
    shutil.rmtree(folder, ignore_errors=True)
    return Round(plan, faults, transactions, changes, time.monotonic() - began, (), None)


def _play(
    world: World, plan: Plan, name: str, folder: Path, site: _Site, stack: ExitStack
) -> tuple[Counter[str], int, int, list[Violation]]:
    disk = SmallDisk(folder / "spool") if plan.kind == "full disk" else None
    if disk:
        stack.callback(disk.remove)
    clock = Clock(folder / "clock") if plan.kind == "clock jumps" else None
    with psycopg.connect(site.dsn, autocommit=True) as connection:
        create_tables(connection)
    path = _write_config(folder, plan, name, site, disk)
    config = load(path)
    stack.callback(_drop_topics, site.bootstrap, name)
    watch = SlotWatch(site.dsn, site.bootstrap, config)
    stack.callback(watch.stop)
    load_process = stack.enter_context(_writing(site.dsn, plan.seed, folder))
    daemon = Supervisor(path, plan.deaths, clock.environment() if clock else {}, ("--spool-bytes", _SPOOL_BYTES))
    stack.callback(daemon.end)
    nemesis = Nemesis(
        daemon,
        site.kafka,
        site.postgres,
        proxies=world.proxies if _proxied(plan.kind) else None,
        disk=disk,
        clock=clock,
        pair=site.pair,
        slot=name,
    )
    broken: list[str] = []
    transactions = 0
    try:
        if not plan.early:
            wait_for(_direct(config, site), lambda record: record.is_state, _CAUGHT_UP_S)
        first = time.monotonic()
        nemesis.work(plan.steps)
        time.sleep(max(0.0, first + _LOAD_S - time.monotonic()))
        transactions = int(load_process.communicate(b"\n", timeout=60)[0])
        daemon.disarm()
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            wait_for_state(_direct(config, site), connection, _CAUGHT_UP_S)
        if (code := daemon.stop()) != 0:
            broken.append(f"asked to stop, the daemon ended with exit code {code}")
    except AssertionError as error:
        broken.append(str(error).splitlines()[0])
    daemon.end()
    watch.stop()
    evidence = collect(config, site.dsn, site.bootstrap, watch.samples)
    violations = [Violation("alive", what) for what in (*daemon.unexpected, *broken)] + check(evidence)
    if violations:
        (folder / "evidence").write_bytes(pickle.dumps(evidence))
    faults = nemesis.done + Counter({f"kill {point}": count for point, count in daemon.died.items()})
    return faults, transactions, len(evidence.journal), violations


def _direct(config: Config, site: _Site) -> Config:
    """Return the configuration of a reader that no fault of the links concerns."""
    return config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap": site.bootstrap})})


def _proxied(kind: str) -> bool:
    return kind.endswith("links") or kind == "reset connections"


@contextmanager
def _site(world: World, plan: Plan, name: str) -> Iterator[_Site]:
    kafka = world.three if "three" in plan.kind else world.one
    if plan.kind == "promote the standby":
        pair, folder = world.pair()
        try:
            with psycopg.connect(pair.dsn("postgres"), autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            dsn = pair.dsn(name)
            yield _Site(dsn, kafka.bootstrap, dsn, kafka.bootstrap, kafka, pair.primary, pair)
        finally:
            pair.stop()
            shutil.rmtree(folder, ignore_errors=True)
        return
    server = world.dsn("postgres")
    dsn = postgres.create_database(server, name)
    try:
        if _proxied(plan.kind):
            proxied = world.proxied_dsn(name), kafka.proxied_bootstrap
        else:
            proxied = dsn, kafka.bootstrap
        yield _Site(dsn, kafka.bootstrap, *proxied, kafka, world.postgres, None)
    finally:
        drop_database(server, name)


def _write_config(folder: Path, plan: Plan, name: str, site: _Site, disk: SmallDisk | None) -> Path:
    tables = ", ".join(f'"public.{table}"' for table in TABLES)
    source = f"tables = [{tables}]\nstreaming = {str(plan.streaming).lower()}\n"
    source += f'spool_dir = "{disk.folder if disk else folder / "spool"}"\n'
    more = f"[delivery]\nmax_transaction_bytes = {plan.max_transaction_bytes}\n"
    more += f"max_transaction_ms = {plan.max_transaction_ms}\n[snapshot]\nchunk_bytes = 8192\n"
    return write_config(folder, site.daemon_dsn, site.daemon_bootstrap, name, more, source)


@contextmanager
def _writing(dsn: str, seed: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "workload.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.workload", dsn, str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _drop_topics(bootstrap: str, prefix: str) -> None:
    """A broker with the topics of two hundred rounds would be slow to start."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    ours = [topic for topic in admin.list_topics(timeout=15).topics if topic.startswith(f"{prefix}.")]
    for future in admin.delete_topics(ours, operation_timeout=15).values() if ours else ():
        future.result()
