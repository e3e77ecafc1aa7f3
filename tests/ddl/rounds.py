"""One round: random schema changes while the daemon is killed, stopped and started; check every state."""

from __future__ import annotations

import random
import signal
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import psycopg

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, Source
from tailrace.schemas.errors import StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import PositionRecord
from tests.ddl.cases import STOP_TIMED_OUT, is_state, newest_differences, said, stop
from tests.ddl.ledger import Ledger
from tests.ddl.statements import KINDS, LISTED, SETUP, Generator, leaves, truncates
from tests.ddl.states import States
from tests.support.daemon import Daemon, wait_for, wait_for_state, write_config
from tests.support.servers import fresh_database

_FIRST_STATE_S = 90.0
_EQUAL_S = 40.0
_STATE_S = 15.0


@dataclass(slots=True)
class Round:
    """Result of a seed: the statements with their LSNs, and the findings."""

    seed: int
    settings: str = ""
    steps: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    states: int = 0
    seconds: float = 0.0
    log: str = ""

    def __str__(self) -> str:
        head = (
            f"seed {self.seed} ({self.settings}): {len(self.steps)} steps, {self.states} states, {self.seconds:.0f} s"
        )
        if not self.findings:
            return head
        return "\n  ".join([head, *self.steps, "FOUND:", *self.findings, "LOG:", self.log])


def play(
    servers: Servers, seed: int, kinds: tuple[str, ...] = KINDS, steps: int = 0, *, only_end: bool = False
) -> Round:
    """Play the round of a seed with `steps` steps, or with a number that the seed determines.

    With `only_end`, states before the end are not checked: that tells late changes from those that are never right.
    """
    pick = random.Random(seed)
    mode = pick.choice(("exported", "interleaved"))
    streaming = pick.random() < 0.5
    listed = pick.random() < 0.5
    steps = steps or pick.randint(8, 15)
    result = Round(seed, f"{mode}, streaming {streaming}, publication by list {listed}, kinds {' '.join(kinds)}")
    began = time.monotonic()
    prefix = f"t{uuid.uuid4().hex[:10]}"
    more = f'[snapshot]\nmode = "{mode}"\nchunk_bytes = 8192\n[delivery]\nmax_transaction_ms = 50\n'
    source = f'tables = ["*.*"]\nstreaming = {str(streaming).lower()}\n{_begin_anew()}'
    with fresh_database(servers.dsn) as dsn, tempfile.TemporaryDirectory() as folder:
        path = write_config(Path(folder), dsn, servers.bootstrap, prefix, more, source)
        ledger = Ledger(dsn, prefix)
        try:
            if streaming:
                name = ledger.connection.info.dbname
                ledger.connection.execute(
                    f"ALTER DATABASE {name} SET debug_logical_replication_streaming = immediate".encode()
                )
            _Play(ledger, path, pick, listed, kinds, result).run(steps, only_end=only_end)
        finally:
            ledger.close()
    result.seconds = time.monotonic() - began
    return result


def _begin_anew() -> str:
    """Configure a refill for tables whose changes readers cannot follow, where that is not the default."""
    known = get_args(Source.model_fields["on_schema_change"].annotation)
    return "" if "refill" in known else 'on_schema_change = "truncate"\n'


class _Play:
    def __init__(
        self, ledger: Ledger, path: Path, pick: random.Random, listed: bool, kinds: tuple[str, ...], result: Round
    ) -> None:
        self._ledger = ledger
        self._path = path
        self._config: Config = load(path)
        self._pick = pick
        self._listed = listed
        self._result = result
        self._generator = Generator(ledger.connection, pick, listed, kinds)
        self._daemon: Daemon | None = None

    def run(self, steps: int, *, only_end: bool) -> None:
        connection = self._ledger.connection
        connection.execute(SETUP.encode())
        which = f"FOR TABLE {LISTED}" if self._listed else "FOR ALL TABLES"
        connection.execute(f"CREATE PUBLICATION tailrace {which} WITH (publish_via_partition_root = true)".encode())
        if self._listed:
            connection.execute("CREATE PUBLICATION tailrace_nokey FOR TABLE bare WITH (publish = 'insert, truncate')")
        for statement in self._generator.fill():
            connection.execute(statement.encode())
        self._ledger.run("SELECT 'set up'")
        try:
            self._daemon = Daemon(self._path)
            # a first copy that is interrupted in a table without a key cannot be resumed
            wait_for_state(self._config, connection, _FIRST_STATE_S)
            for _ in range(steps):
                if not self._step():
                    break
            else:
                self._finish()
        except AssertionError as error:
            self._result.findings.append(str(error).splitlines()[0][:400])
        finally:
            if self._daemon is not None:
                self._daemon.kill()
        if not only_end:
            self._judge()
        if self._result.findings:
            self._result.log = said(self._path)

    def _step(self) -> bool:
        """Alter and change tables, and do something to the daemon; return False if it has stopped by itself."""
        pick = self._pick
        drawn = pick.random()
        if drawn < 0.15 and self._daemon is not None:
            self._note("kill")
            self._daemon.kill()
            self._daemon = None
        elif drawn < 0.25 and self._daemon is not None:
            self._note("stop")
            code = stop(self._daemon)
            # the daemon may not have installed its signal handlers yet
            expected = (0, STOP_TIMED_OUT, -signal.SIGTERM)
            assert code in expected, f"the daemon has ended with exit code {code} when it was stopped"
            self._daemon = None
        if pick.random() < 0.3:
            self._run(self._generator.changes(pick.randint(1, 3)))
        self._run(self._generator.alteration())
        if pick.random() < 0.5:
            self._run(self._generator.changes(pick.randint(1, 4)))
        if self._daemon is None and pick.random() < 0.6:
            self._note("start")
            self._daemon = Daemon(self._path)
        for _ in range(pick.choice((0, 1, 3))):
            self._ledger.connection.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
            time.sleep(0.1)
        if self._daemon is not None and pick.random() < 0.4:
            self._note("wait for a state")
            self._wait_for_state()
        return not self._stopped()

    def _run(self, statements: list[str]) -> None:
        """Run statements one by one, or in one transaction, which may be rolled back."""
        drawn = self._pick.random()
        together = drawn < 0.55 and not any(statement.startswith("VACUUM") for statement in statements)
        rolled_back = together and drawn < 0.06
        extra = self._generator.changes(1) if together and self._pick.random() < 0.4 else []
        before = self._generator.changes(1) if together and self._pick.random() < 0.3 else []
        for each in [[*before, *statements, *extra]] if together else [[statement] for statement in statements]:
            failed = ""
            try:
                self._ledger.run(*each, rolled_back=rolled_back, before_each=None if rolled_back else self._leave)
            except psycopg.Error as error:
                failed = f"  -- refused: {str(error).splitlines()[0]}"
            entry = self._ledger.entries[-1]
            self._note(f"{format_lsn(entry.before)} {format_lsn(entry.after)} {entry.what[:1000]}{failed}")

    def _leave(self, statement: str) -> None:
        """Allow the present rows of a partition that a statement takes away to stay on the topic."""
        part = leaves(statement) or truncates(statement)
        if part is None:
            return
        row = self._ledger.connection.execute(
            "SELECT n.nspname || '.' || c.relname FROM pg_partition_ancestors(to_regclass(%s)) a"
            " JOIN pg_class c ON c.oid = a.relid JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE NOT c.relispartition",
            [part],
        ).fetchone()
        if row is not None and leaves(statement):
            self._ledger.leave(row[0], part)
        elif row is not None:
            self._ledger.truncate(row[0], part)

    def _note(self, what: str) -> None:
        self._result.steps.append(what)

    def _wait_for_state(self) -> None:
        """Wait a limited time for a state that includes everything: the first copy and pending work take time."""
        row = self._ledger.connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None
        self._ledger.connection.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
        deadline = time.monotonic() + _STATE_S
        while time.monotonic() < deadline and not self._stopped():
            try:
                wait_for(self._config, lambda p: self._is_state(p) and p.here.flushed_lsn >= int(row[0]), 1.0)
                self._ledger.seen()
                return
            except AssertionError:
                continue

    def _is_state(self, position: PositionRecord) -> bool:
        return is_state(self._config, self._ledger, position)

    def _stopped(self) -> bool:
        code = None if self._daemon is None else self._daemon.process.poll()
        if code is None:
            return False
        # a start that meets a publication without some kinds of change is refused, and nothing can be said of the rest
        if code != StateError.exit_code or "TR-426" not in said(self._path):
            self._result.findings.append(f"the daemon has stopped with exit code {code}")
        return True

    def _finish(self) -> None:
        if self._daemon is None:
            self._note("start")
            self._daemon = Daemon(self._path)
        deadline = time.monotonic() + _EQUAL_S
        while True:
            wrong = newest_differences(self._ledger, self._config)
            if not wrong or time.monotonic() > deadline or self._stopped():
                break
            time.sleep(0.5)
        self._result.findings += [f"never equal: {topic}: {what}" for topic, what in wrong.items()]

    def _judge(self) -> None:
        tables = {topic for entry in self._ledger.entries for topic in entry.tables}
        states = States(self._config, tables)
        keyed = {topic.removeprefix(f"{self._config.kafka.prefix}.") for topic in tables}
        complete = (keyed - set(each.incomplete_tables) for _, each in states.positions if each.open is None)
        self._result.states = sum(bool(names) for names in complete)
        found = list(states.check(self._ledger))
        if found:
            topics = sorted({each.topic for each in found})
            self._result.findings.append(f"{len(found)} times not the table at a cut called a state, of {topics}")
            firsts = {each.topic: each for each in reversed(found)}
            self._result.findings += [str(each) for each in firsts.values()]
