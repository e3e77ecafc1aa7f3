"""Stage of a round: servers, database, topics, load, daemon and faults; and the evidence afterwards."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql

from tailrace.cdc.dev import postgres
from tailrace.cdc.operations.verify_log import verify_log
from tailrace.schemas.config.file import load
from tests.faults.checker import Violation
from tests.faults.cluster import Cluster
from tests.faults.collect import SlotWatch, collect
from tests.faults.evidence import Evidence
from tests.faults.machine import Clock, SmallDisk
from tests.faults.nemesis import Nemesis
from tests.faults.plan import Plan
from tests.faults.poison import LIMIT, POISONS, SETTINGS
from tests.faults.source import Pair, Postgres, come_true
from tests.faults.supervisor import Supervisor
from tests.faults.workload import TABLES, create_tables
from tests.faults.world import World
from tests.support.daemon import ROOT, wait_for, wait_for_state, write_config
from tests.support.servers import drop_database

CAUGHT_UP_S = 90.0
_SPOOL_BYTES = "16384"
_PROXIED = {"reset connections", "slow links", "half-open links", "narrow links"}


@dataclass(frozen=True, slots=True)
class Site:
    """The servers of a round; `dsn` and `bootstrap` are direct, the daemon's may lead through proxies."""

    dsn: str
    bootstrap: str
    daemon_dsn: str
    daemon_bootstrap: str
    kafka: Cluster
    postgres: Postgres
    pair: Pair | None


@dataclass(frozen=True, slots=True)
class Played:
    """Evidence of a plan; `broken` are violations that were seen before the check."""

    evidence: Evidence
    faults: Counter[str]
    transactions: int
    broken: tuple[Violation, ...]


class Stage:
    """All that runs from the load's first transaction to `finish`. `stack` ends it in any case."""

    def __init__(
        self, world: World, plan: Plan, kinds: Collection[str], folder: Path, stack: ExitStack, pace: float = 0.0
    ) -> None:
        """`kinds` are the faults that must be possible; database, slot and topics have the folder's name."""
        name = folder.name
        self.site = site = stack.enter_context(_site(world, kinds, name))
        disk = SmallDisk(folder / "spool") if "full disk" in kinds else None
        if disk:
            stack.callback(disk.remove)
        clock = Clock(folder / "clock") if "clock jumps" in kinds else None
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            create_tables(connection)
            if plan.poisoned:
                for each in POISONS:
                    connection.execute(each.create.encode())
                    connection.execute(f"INSERT INTO {each.table} SELECT g, g FROM generate_series(1, 50) g".encode())
        self.path = _write_config(folder, plan, name, site)
        config = load(self.path)
        # for a reader that faults of the links do not reach
        self.config = config.model_copy(update={"kafka": config.kafka.model_copy(update={"bootstrap": site.bootstrap})})
        stack.callback(_drop_topics, site.bootstrap, name)
        self._watch = SlotWatch(site.dsn, site.bootstrap, config)
        stack.callback(self._watch.stop)
        self._load = stack.enter_context(_writing(site.dsn, plan.seed, folder, pace))
        environment = clock.environment() if clock else {}
        self.daemon = Supervisor(self.path, plan.deaths, environment, ("--spool-bytes", _SPOOL_BYTES))
        stack.callback(self.daemon.end)
        self.nemesis = Nemesis(
            self.daemon,
            site.kafka,
            site.postgres,
            proxies=world.proxies if _PROXIED & set(kinds) else None,
            disk=disk,
            clock=clock,
            fail_over=partial(site.pair.fail_over, name) if site.pair is not None else None,
        )
        self._transactions = 0

    def wait_for_load(self, changes: int) -> None:
        """Return when `changes` changes are journalled."""
        with psycopg.connect(self.site.dsn, autocommit=True) as connection:

            def written() -> bool:
                return connection.execute("SELECT count(*) >= %s FROM journal", (changes,)).fetchone() == (True,)

            assert come_true(written, CAUGHT_UP_S), f"the load has not written {changes} changes"

    def wait_for_first_state(self) -> None:
        wait_for(self.config, lambda record: record.is_state, CAUGHT_UP_S)

    def come_to_rest(self) -> None:
        """End the load, wait until the daemon has caught up, and stop it; raise AssertionError if that fails."""
        self._transactions = int(self._load.communicate(b"\n", timeout=60)[0])
        self.daemon.disarm()
        with psycopg.connect(self.site.dsn, autocommit=True) as connection:
            # a daemon that has died meanwhile must read this message, too
            connection.execute("SELECT pg_logical_emit_message(true, 'end of load', '')")
            wait_for_state(self.config, connection, CAUGHT_UP_S)
        code = self.daemon.stop()
        assert code == 0, f"asked to stop, the daemon ended with exit code {code}"

    def finish(self, broken: Collection[str] = ()) -> Played:
        """Read the evidence; `broken` are violations that the caller has seen."""
        self.daemon.end()
        self._watch.stop()
        evidence = collect(self.config, self.site.dsn, self.site.bootstrap, self._watch.samples)
        found = [f"verify --log: {finding}" for finding in verify_log(self.config).tally.findings]
        died = Counter({f"kill {point}": count for point, count in self.daemon.died.items()})
        return Played(
            evidence,
            self.nemesis.done + died,
            self._transactions,
            tuple(Violation("other", what) for what in (*self.daemon.unexpected, *broken, *found)),
        )


@contextmanager
def _site(world: World, kinds: Collection[str], name: str) -> Iterator[Site]:
    kafka = world.three if any("three" in kind for kind in kinds) else world.one
    if "promote the standby" in kinds:
        pair, folder = world.pair()
        try:
            with psycopg.connect(pair.dsn("postgres"), autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            dsn = pair.dsn(name)
            yield Site(dsn, kafka.bootstrap, dsn, kafka.bootstrap, kafka, pair.primary, pair)
        finally:
            pair.stop()
            shutil.rmtree(folder, ignore_errors=True)
        return
    server = world.dsn("postgres")
    dsn = postgres.create_database(server, name)
    try:
        if _PROXIED & set(kinds):
            proxied = world.proxied_dsn(name), kafka.proxied_bootstrap
        else:
            proxied = dsn, kafka.bootstrap
        yield Site(dsn, kafka.bootstrap, *proxied, kafka, world.postgres, None)
    finally:
        drop_database(server, name)


def _write_config(folder: Path, plan: Plan, name: str, site: Site) -> Path:
    poisons = POISONS if plan.poisoned else ()
    tables = ", ".join(f'"public.{table}"' for table in (*TABLES, *(each.table for each in poisons)))
    source = f"tables = [{tables}]\nstreaming = {str(plan.streaming).lower()}\n"
    source += f'spool_dir = "{folder / "spool"}"\ntoast = "{plan.toast}"\n'
    more = ""
    if plan.poisoned:
        source, more = source + SETTINGS, LIMIT
    more += f"[delivery]\nmax_transaction_bytes = {plan.max_transaction_bytes}\n"
    more += f"max_transaction_ms = {plan.max_transaction_ms}\n[snapshot]\nchunk_bytes = 8192\n"
    return write_config(folder, site.daemon_dsn, site.daemon_bootstrap, name, more, source)


@contextmanager
def _writing(dsn: str, seed: int, folder: Path, pace: float) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "workload.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.workload", dsn, str(seed), str(pace)],
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
    """Delete the topics of a prefix: with those of two hundred rounds, a broker would start slowly."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    ours = [topic for topic in admin.list_topics(timeout=15).topics if topic.startswith(f"{prefix}.")]
    for future in admin.delete_topics(ours, operation_timeout=15).values() if ours else ():
        future.result()
