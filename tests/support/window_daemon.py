"""`tailrace run` with changes at each step of each window, and optionally a crash, for tests.

Arguments: CONFIG DSN SEED [--waiting] [--kill POINT].
The changes come from a seed. With `--waiting` some of them wait for a synchronous standby that does not exist: they are
streamed, but invisible until they are released some steps later. `--kill` names the step at which it kills itself.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tailrace.cdc.backfill.windows import Windows
from tailrace.cdc.changes.delivery import Delivery
from tailrace.cdc.cli.run import run
from tailrace.snapshot.window import ChunkRead
from tailrace.snapshot.window_reader import ReadRequest, WindowReader

TABLES = {
    "by_int": "id int PRIMARY KEY",
    "by_two": "a int, b text, PRIMARY KEY (b, a)",
    "by_text": 'id text COLLATE "C" PRIMARY KEY',
    "by_utf8": 'id varchar(20) COLLATE "pg_c_utf8" PRIMARY KEY',
    "by_locale": "id text PRIMARY KEY",
    "by_uuid": "id uuid PRIMARY KEY",
}
LOG = "log"
"""A table without a key, which is created while the daemon runs."""
POINTS = ("low mark written", "chunk read", "high mark written", "rows sent", "committed")
_WORDS = [
    "",
    "a",
    "A",
    "ä",
    "Ä",
    "a b",
    "ab",
    "aB",
    "z",
    "Z",
    "ß",
    "ss",
    "é",
    "e\u0301",
    "10",
    "9",
    "%",
    "\\",
    "'",
    "é1",
]
_LOG_AT = 3
_HELD = (3, 24)
"""Steps that a commit waits: a window has six, so some wait for longer than one window."""


def key(table: str, number: int) -> tuple[Any, ...]:
    """Return one of some 400 keys of a table."""
    if table == "by_int":
        return (number,)
    if table == "by_two":
        return number % 20, _WORDS[number // 20]
    if table == "by_uuid":
        return (uuid.UUID(int=number * 0x9E3779B97F4A7C15 % 2**128),)
    return (f"{_WORDS[number % 20]}{number // 20}",)


def create(connection: psycopg.Connection[Any], rows: int) -> None:
    """Create the tables, of several chunks each, and publications that include later tables."""
    connection.execute("CREATE PUBLICATION tailrace FOR ALL TABLES; CREATE PUBLICATION tailrace_nokey")
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} (v int, pad text DEFAULT repeat('x', 90), {columns})".encode())
        for number in range(rows):
            _insert(connection, table, number, 0)


def _insert(connection: psycopg.Connection[Any], table: str, number: int, v: int) -> None:
    values = (v, *key(table, number))
    names = "v, a, b" if table == "by_two" else "v, id"
    places = ", ".join(["%s"] * len(values))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({places}) ON CONFLICT DO NOTHING".encode(), values)


class Changes:
    """Seeded transactions, one to three at each step."""

    def __init__(self, dsn: str, seed: int, *, waiting: bool) -> None:
        self._dsn = dsn
        self._pick = random.Random(seed)
        self._waiting = waiting
        self._held: list[tuple[int, int]] = []
        self._step = 0
        self._connection = psycopg.connect(dsn)
        self._connection.execute("SET lock_timeout = '50ms'")
        self._connection.commit()
        self._n = 0
        self._has_log = False

    def step(self) -> None:
        """Make some changes; release the commits that have waited long enough."""
        self._step += 1
        for pid in [pid for until, pid in self._held if until <= self._step]:
            self._connection.execute("SELECT pg_cancel_backend(%s)", (pid,))
            self._connection.commit()
        self._held = [held for held in self._held if held[0] > self._step]
        if self._step == _LOG_AT:
            self._create_log()
        for _ in range(self._pick.randint(1, 3)):
            with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation):
                for _ in range(self._pick.randint(1, 3)):
                    self._change(self._connection)
                self._connection.commit()
            self._connection.rollback()
        if self._waiting and len(self._held) < 2 and self._pick.random() < 0.3:
            self._wait()

    def _create_log(self) -> None:
        row = self._connection.execute("SELECT to_regclass(%s) IS NULL", (LOG,)).fetchone()
        if row == (True,):
            self._connection.execute(f"CREATE TABLE {LOG} (v int, pad text DEFAULT repeat('x', 90))".encode())
            self._connection.execute(f"INSERT INTO {LOG} SELECT generate_series(-300, -1)".encode())
            self._connection.commit()
        self._has_log = True

    def _wait(self) -> None:
        """Start a commit that waits for the standby; return once it waits, or has failed."""
        connection = psycopg.connect(self._dsn)
        connection.execute("SET synchronous_commit = on; SET lock_timeout = '50ms'")
        connection.commit()
        try:
            self._change(connection)
        except psycopg.Error:
            connection.close()
            return
        pid = connection.info.backend_pid

        def commit() -> None:
            with suppress(psycopg.Error), connection:
                connection.commit()

        threading.Thread(target=commit, daemon=True).start()
        waits = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = %s"
        for _ in range(200):
            row = self._connection.execute(waits, (pid,)).fetchone()
            self._connection.commit()
            if row is None or row[0]:
                break
        self._held.append((self._step + self._pick.randint(*_HELD), pid))

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        table = self._pick.choice(list(TABLES))
        number, other = self._pick.randrange(400), self._pick.randrange(400)
        if self._has_log and self._pick.random() < 0.5:
            self._n += 1
            empties = connection is self._connection and self._pick.random() < 0.01
            connection.execute(f"TRUNCATE {LOG}" if empties else f"INSERT INTO {LOG} VALUES ({self._n})".encode())
            return
        names = ["a", "b"] if table == "by_two" else ["id"]
        where = sql.SQL(" AND ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in names)
        to = sql.SQL(", ").join(sql.SQL("{} = %s").format(sql.Identifier(name)) for name in names)
        self._n += 1
        kind = self._pick.choice(["insert", "update", "update", "move", "move", "delete"])
        name = sql.Identifier(table)
        if kind == "insert":
            _insert(connection, table, number, self._n)
        elif kind == "update":
            query = sql.SQL("UPDATE {} SET v = %s WHERE {}").format(name, where)
            connection.execute(query, (self._n, *key(table, number)))
        elif kind == "move":
            query = sql.SQL("UPDATE {} SET {} WHERE {}").format(name, to, where)
            connection.execute(query, (*key(table, other), *key(table, number)))
        else:
            connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(name, where), key(table, number))


def _die_at(point: str) -> Callable[[str], None]:
    """Return a function that kills this process when `point` is passed the third time."""
    left = [3]

    def passed(here: str) -> None:
        if here == point:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    return passed


def main(arguments: list[str]) -> None:
    """Run the daemon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("dsn")
    parser.add_argument("seed", type=int)
    parser.add_argument("--waiting", action="store_true")
    parser.add_argument("--kill", default="")
    given = parser.parse_args(arguments)
    changes = Changes(given.dsn, given.seed, waiting=given.waiting)
    passed = _die_at(given.kill)
    read, emit, commit = WindowReader.read_rows, Windows.emit, Delivery.commit
    mark, wal_end = WindowReader.emit, WindowReader.wal_end
    emitted = [False]

    def marked(self: WindowReader, kind: str, n: int) -> None:
        changes.step()
        mark(self, kind, n)
        passed(f"{kind} mark written")
        changes.step()

    def read_between(self: WindowReader, wanted: ReadRequest) -> ChunkRead:
        found = read(self, wanted)
        passed("chunk read")
        changes.step()
        return found

    def sent(self: Windows, *arguments: Any) -> None:
        emit(self, *arguments)
        emitted[0] = True
        passed("rows sent")

    def committed(self: Delivery, *arguments: Any) -> None:
        commit(self, *arguments)
        if emitted[0]:
            passed("committed")

    def wal_end_between(self: WindowReader) -> int:
        changes.step()
        return wal_end(self)

    WindowReader.emit = marked  # type: ignore[method-assign]
    WindowReader.read_rows = read_between  # type: ignore[method-assign]
    WindowReader.wal_end = wal_end_between  # type: ignore[method-assign]
    Windows.emit = sent  # type: ignore[assignment,method-assign]
    Delivery.commit = committed  # type: ignore[assignment,method-assign]
    run(given.config)
