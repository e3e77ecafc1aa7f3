"""Runs named scenarios of schema changes, each in its own schema, many with one daemon.

They share a daemon because a start costs more than a scenario. Several daemons run at once, each in its own database:
a scenario mostly waits, and the time of each step grows with the number of tables. Only scenarios that pytest has
selected run.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import PositionRecord
from tests.ddl.ledger import Contents, Ledger
from tests.ddl.states import Difference, States
from tests.support.daemon import Daemon, wait_for, wait_for_state, write_config
from tests.support.servers import fresh_database

STOP_TIMED_OUT = 8
"""The daemon's own exit code after a stop that timed out."""

_FIRST_STATE_S = 300.0
_FLUSHED_S = 60.0
_EQUAL_S = 30.0
"""The run fails when no further topic has become equal to its table for this long."""

_STATE_S = 8.0
_QUIET_S = 7.0
"""Longer than the daemon's interval between two looks at the catalog."""

_ALL_TABLES = "FOR ALL TABLES"
_MOST_CASES = 40
"""Maximum number of cases with one daemon."""

_MOST_DAEMONS = 8

_STARTING = threading.Semaphore(2)
"""Daemons that start at once: each creates the topics of its cases, and a broker that creates hundreds answers late."""


@dataclass(frozen=True, slots=True)
class Case:
    """A scenario: `setup` before the daemon starts, then `steps`; a tuple is one transaction.

    Names of further schemas begin with the case's name and two underscores. `follow` are changes of rows after the
    steps, `before` those before them: a daemon that is down reads them when the catalog has already moved on. A step
    "leave TABLE PART" allows the rows of a partition to stay on the table's topic.
    """

    setup: tuple[str, ...]
    steps: tuple[str | tuple[str, ...], ...]
    follow: tuple[str, ...] = ()
    before: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """Result of a run: differences at the end by topic (`never`), and those at cuts called states.

    `grown` are topics that were written to at rest, `stopped_by` cases at which the daemon stopped.
    """

    prefix: str
    never: dict[str, str] = field(default_factory=dict)
    states: list[Difference] = field(default_factory=list)
    grown: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    stopped_by: dict[str, str] = field(default_factory=dict)

    def assert_equal(self, case: str) -> None:
        """Assert that each topic of a case has become equal to its table and was not written to afterwards."""
        assert case not in self.stopped_by, f"the daemon has stopped: {self.stopped_by[case]}"
        assert not self.stopped, self.stopped
        never = {topic: what for topic, what in self.never.items() if self._is_of(topic, case)}
        assert not never, f"never equal: {never}"
        grown = {topic: count for topic, count in self.grown.items() if self._is_of(topic, case)}
        assert not grown, f"records written at rest: {grown}"

    def assert_states(self, case: str) -> None:
        """Assert that at each cut called a state the topics of a case were its tables at that LSN."""
        mine = [each for each in self.states if self._is_of(each.topic, case)]
        assert not mine, f"{len(mine)} cuts called states are none, first: {mine[0]}"

    def _is_of(self, topic: str, case: str) -> bool:
        schema = topic.removeprefix(f"{self.prefix}.").partition(".")[0]
        return schema.partition("__")[0] == case


@contextmanager
def stage(
    servers: Servers, more: str = "", source: str = "", publication: str = _ALL_TABLES
) -> Iterator[tuple[Ledger, Path]]:
    """Create a database with a publication of all tables or others, and a configuration for it."""
    prefix = f"t{uuid.uuid4().hex[:10]}"
    with fresh_database(servers.dsn) as dsn, tempfile.TemporaryDirectory() as folder:
        more = f"[snapshot]\nchunk_bytes = 8192\n[delivery]\nmax_transaction_ms = 50\nstart_timeout_s = 300\n{more}"
        path = write_config(Path(folder), dsn, servers.bootstrap, prefix, more, f'tables = ["*.*"]\n{source}')
        ledger = Ledger(dsn, prefix)
        ledger.connection.execute(
            "CREATE TABLE other (id int PRIMARY KEY, x int); INSERT INTO other VALUES (1, 1);"
            f"CREATE PUBLICATION tailrace {publication} WITH (publish_via_partition_root = true)".encode()
        )
        try:
            yield ledger, path
        finally:
            ledger.close()


def play_modes(
    servers: Servers, modes: Mapping[str, Mapping[str, Case]], publication: str = _ALL_TABLES
) -> dict[tuple[str, str], Outcome]:
    """Run the cases of each mode, several daemons at once; return the outcome for each mode and case."""
    groups = []
    for mode, cases in modes.items():
        count = -(-len(cases) // _MOST_CASES)
        groups += [(mode, dict(list(cases.items())[n::count])) for n in range(count)]
    with ThreadPoolExecutor(_MOST_DAEMONS) as pool:
        outcomes = list(pool.map(lambda group: play(servers, group[1], group[0], publication), groups))
    return {(mode, case): outcome for (mode, cases), outcome in zip(groups, outcomes, strict=True) for case in cases}


def play(servers: Servers, cases: Mapping[str, Case], mode: str, publication: str = _ALL_TABLES) -> Outcome:
    """Run cases in one mode with one daemon.

    "idle"; "followed" by changes of rows; while the daemon is "stopped" or "killed"; or "restarted" after a look at the
    catalog.
    """
    with stage(servers, publication=publication) as (ledger, path):
        config = load(path)
        outcome = Outcome(config.kafka.prefix)
        create(ledger, cases)
        daemon = None
        try:
            with _STARTING:
                daemon = Daemon(path)
                wait_for_state(config, ledger.connection, _FIRST_STATE_S)
            if mode in ("stopped", "killed"):
                stop(daemon) if mode == "stopped" else daemon.kill()
            patience = _STATE_S
            for name, case in cases.items():
                if mode in ("idle", "followed") and not wait_for_any_state(config, ledger, patience):
                    patience = 1.0
                # a statement about a publication that lists its tables concerns the other cases', too
                run_steps(ledger, name, case, mode, apart=publication == _ALL_TABLES)
                if mode in ("idle", "followed") and daemon.process.poll() is not None:
                    outcome.stopped_by[name] = said(path)
                    daemon = Daemon(path)
            if mode == "restarted":
                time.sleep(_QUIET_S)
                stop(daemon)
            if daemon.process.poll() is not None:
                daemon = Daemon(path)
            _finish(ledger, config, daemon, outcome)
        except AssertionError as error:
            outcome.stopped = f"{str(error)[:300]}\n{said(path)}"
        finally:
            if daemon is not None:
                daemon.kill()
        outcome.states = state_differences(ledger, config)
        return outcome


def create(ledger: Ledger, cases: Mapping[str, Case]) -> None:
    """Create the schemas and tables of cases, and record their first contents."""
    for name, case in cases.items():
        ledger.connection.execute(f'CREATE SCHEMA "{name}"; SET search_path = "{name}"'.encode())
        for statement in case.setup:
            ledger.connection.execute(statement.encode())
    ledger.run("SELECT 'set up'")


def stop(daemon: Daemon) -> int:
    """Stop a daemon, or kill it if it does not stop in time on a busy machine; return its exit code."""
    try:
        return daemon.stop()
    except subprocess.TimeoutExpired:
        daemon.kill()
        return STOP_TIMED_OUT


def said(path: Path) -> str:
    """Return the end of the daemon's log."""
    return (path.parent / "run.log").read_text()[-3000:]


def run_steps(ledger: Ledger, name: str, case: Case, mode: str, *, apart: bool = True) -> None:
    """Run the statements of a case in a mode of `play`; `apart`: they change no table of another case."""
    ledger.connection.execute(f'SET search_path = "{name}"'.encode())
    if apart:
        ledger.within(name)
    at_rest, is_down = mode in ("idle", "restarted"), mode in ("stopped", "killed")
    for statement in case.before if not at_rest else ():
        ledger.run(statement)
    for step in case.steps:
        if isinstance(step, str) and step.startswith("leave "):
            _, table, part = step.split()
            ledger.leave(f"{name}.{table}", part)
            continue
        ledger.run(*([step] if isinstance(step, str) else step))
        if not is_down:
            emit(ledger)
    for statement in case.follow if not at_rest else ():
        ledger.run(statement)


def emit(ledger: Ledger) -> None:
    """Cause cuts after the step although no table changes: such cuts may be called states too early."""
    for _ in range(2):
        ledger.connection.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
        time.sleep(0.12)


def is_state(config: Config, ledger: Ledger, position: PositionRecord) -> bool:
    """Whether a cut is a state of all tables of which all changes are published."""
    names, now = Names(config), ledger.now()
    expected = (table for table in position.incomplete_tables if _is_published(now.get(names.topic(table))))
    return position.open is None and not any(expected)


def _is_published(contents: Contents | None) -> bool:
    return contents is None or contents.published


def wait_for_any_state(config: Config, ledger: Ledger, seconds: float) -> bool:
    """Wait a limited time for the newest cut to be a state; without one, the next step must show why."""
    with suppress(AssertionError):
        wait_for(config, lambda record: is_state(config, ledger, record), seconds)
        return True
    return False


def _finish(ledger: Ledger, config: Config, daemon: Daemon, outcome: Outcome) -> None:
    """Wait until all topics equal their tables, then check that nothing more is written."""
    deadline = time.monotonic() + _EQUAL_S
    while True:
        before, outcome.never = outcome.never, newest_differences(ledger, config)
        assert daemon.process.poll() is None, f"the daemon has stopped with exit code {daemon.process.poll()}"
        if len(outcome.never) < len(before):
            deadline = time.monotonic() + _EQUAL_S
        if not outcome.never or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    counts = States(config, ledger.now()).counts()
    time.sleep(_QUIET_S)
    after = States(config, ledger.now()).counts()
    outcome.grown = {topic: count - counts[topic] for topic, count in after.items() if count != counts[topic]}
    outcome.never |= newest_differences(ledger, config)


def newest_differences(ledger: Ledger, config: Config, tables: Sequence[str] | None = None) -> dict[str, str]:
    """Compare the newest cut that includes all changes with the tables; tables called incomplete differ."""
    row = ledger.connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
    assert row is not None
    target = int(row[0])
    ledger.connection.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
    wait_for(config, lambda record: record.here.flushed_lsn >= target and record.open is None, _FLUSHED_S)
    expected = ledger.now() if tables is None else {topic: ledger.now()[topic] for topic in tables}
    states = States(config, expected)
    position = next(p for _, p in reversed(states.positions) if p.here.flushed_lsn >= target and p.open is None)
    names = Names(config)
    incomplete = {names.topic(table) for table in position.incomplete_tables}
    unpublished = {topic for topic, each in expected.items() if not each.published}
    aside = unpublished & (incomplete | expected.keys() - position.here.offsets.keys())
    wrong = states.at(position.here, {topic: each for topic, each in expected.items() if topic not in aside})
    for topic in incomplete - unpublished:
        wrong[topic] = f"incomplete at {format_lsn(position.here.flushed_lsn)}"
    return wrong


class Names:
    """Map qualified table names to topics."""

    def __init__(self, config: Config) -> None:
        self._prefix = config.kafka.prefix

    def topic(self, table: str) -> str:
        return f"{self._prefix}.{table}"


def state_differences(ledger: Ledger, config: Config) -> list[Difference]:
    """Return the differences at all cuts called states so far."""
    tables = {topic for entry in ledger.entries for topic in entry.tables}
    return list(States(config, tables).check(ledger))


def refused(ledger: Ledger, statement: str) -> bool:
    """Run a statement; return whether PostgreSQL refuses it."""
    try:
        ledger.run(statement)
    except psycopg.Error:
        return True
    return False
