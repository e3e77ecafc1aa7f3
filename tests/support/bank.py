"""Three tables, writers that put load on them, and a row-by-row comparison with their topics."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tailrace.schemas.config.model import Config
from tests.support.daemon import wait_for_state
from tests.support.topics import assert_once_in_order, latest, read_topic

TABLES = ("account", "entry", "document")
ACCOUNTS = 2000


def create_tables(connection: psycopg.Connection[Any], accounts: int = ACCOUNTS) -> None:
    """Create tables with a sum that every transaction preserves, a composite key, and TOAST values.

    The deadlock timeout is long, so that in a deadlock of this connection and a `Writer` the writer is aborted.
    """
    connection.execute("SET deadlock_timeout = '1min'")
    connection.execute(
        "CREATE TABLE account (id int PRIMARY KEY, balance numeric(12,2) NOT NULL, version int NOT NULL);"
        "CREATE TABLE entry (account int, n int, amount numeric(12,2), at timestamptz DEFAULT clock_timestamp(),"
        " tags text[], PRIMARY KEY (account, n));"
        "CREATE TABLE document (id int PRIMARY KEY, title text, body text, data jsonb);"
        "ALTER TABLE document ALTER body SET STORAGE EXTERNAL"
    )
    connection.execute("INSERT INTO account SELECT g, 100, 0 FROM generate_series(1, %s) g", (accounts,))
    connection.execute(
        "INSERT INTO entry SELECT 1 + g %% %s, g, g / 7.0, now(), ARRAY['a', NULL, 'b\"c']"
        " FROM generate_series(1, %s) g",
        (accounts, 15 * accounts),
    )
    connection.execute(
        "INSERT INTO document SELECT g, 'document ' || g, CASE WHEN g %% 3 = 0 THEN repeat(g::text, 3000) END,"
        " jsonb_build_object('n', g) FROM generate_series(1, %s) g",
        (accounts // 2,),
    )


class Writer:
    """Seeded transactions over several tables: transfers, key changes, deletes, unchanged TOAST values."""

    def __init__(self, dsn: str, seed: int, accounts: int = ACCOUNTS, *, pause_s: float = 0.002) -> None:
        """Prepare a writer; `accounts` must be that of `create_tables`.

        `pause_s` is the time between two transactions: a long one for a load that runs for minutes, because each of
        its changes takes CPU from everything else.
        """
        self._dsn = dsn
        self._accounts = accounts
        self._pause_s = pause_s
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.transactions = 0
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self._stop.is_set():
                try:
                    self._transaction(connection)
                except psycopg.errors.DeadlockDetected:
                    connection.rollback()
                    continue
                if self._random.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                self.transactions += 1
                time.sleep(self._pause_s)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        pick = self._random
        giver, taker = pick.sample(range(1, self._accounts + 1), 2)
        amount = pick.randint(1, 500) / 100
        move = "UPDATE account SET balance = balance + %s, version = version + 1 WHERE id = %s"
        connection.execute(move, (-amount, giver))
        connection.execute(move, (amount, taker))
        n = 100_000 + self.transactions
        connection.execute("INSERT INTO entry (account, n, amount) VALUES (%s, %s, %s)", (giver, n, amount))
        if pick.random() < 0.3:
            connection.execute("DELETE FROM entry WHERE n = %s", (pick.randint(1, n),))
        if pick.random() < 0.3:
            connection.execute("UPDATE entry SET n = n + 10000000 WHERE n = %s", (pick.randint(1, n),))
        if pick.random() < 0.3:
            connection.execute(
                "UPDATE document SET title = title || '!' WHERE id = %s", (pick.randint(1, self._accounts // 2),)
            )
        if pick.random() < 0.05:
            connection.execute(
                "INSERT INTO document (id, title, body) VALUES (%s, 'new', repeat('y', 9000))"
                " ON CONFLICT (id) DO UPDATE SET body = excluded.body, title = 'again'",
                (pick.randint(self._accounts // 2 - 100, self._accounts // 2 + 100),),
            )

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        """Return when the last transaction has ended."""
        self._stop.set()
        self._thread.join()


def source_rows(connection: psycopg.Connection[Any], table: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return a table by key as psycopg reads it; jsonb as text, as it is on the topic."""
    key = {"entry": ("account", "n")}.get(table, ("id",))
    columns = "id, title, body, data::text" if table == "document" else "*"
    cursor = connection.execute(f"SELECT {columns} FROM {table}".encode())
    assert cursor.description
    names = [column.name for column in cursor.description]
    rows = (dict(zip(names, row, strict=True)) for row in cursor)
    return {tuple(row[name] for name in key): row for row in rows}


def assert_equal(bootstrap: str, config: Config, connection: psycopg.Connection[Any]) -> None:
    """Compare every table with its topic, row by row; no writer may run."""
    cut = wait_for_state(config, connection)
    for table in TABLES:
        topic = f"{config.kafka.prefix}.public.{table}"
        records = read_topic(bootstrap, config.kafka.prefix, f"public.{table}", cut.offsets[topic])
        assert_once_in_order(records)
        rows, expected = latest(records), source_rows(connection, table)
        assert rows.keys() == expected.keys()
        different = [key for key, row in expected.items() if rows[key] != row]
        assert not different, f"{table} {different[0]}: {rows[different[0]]} is not {expected[different[0]]}"
