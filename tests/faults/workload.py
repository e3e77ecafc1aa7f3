"""Transactions with invariants that show whether they are whole, and a journal independent of the WAL.

Invariants of every committed state: the sum of the balances never changes; the entries with one `n` add up to zero;
each account's mirror has its balance and version; a mirror's body (a TOAST value, seldom written) is the one of its
`body_version`. Every write of an account raises its `version` by one.

Triggers write the journal inside each transaction: it has exactly the committed changes, whatever becomes of slots,
walsenders and topics. It is not captured.

python -m tests.faults.workload DSN SEED PACE    until a line on standard input, or its end
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
from typing import Any

import psycopg

TABLES = ("account", "mirror", "entry")
KEYS = {"account": ("id",), "mirror": ("id",), "entry": ("account", "n")}
ACCOUNTS = 60
BALANCE = 1000
_WRITERS = 2
_LARGE = 600
_FAST = 800
"""A writer slows down after this many transactions: a round with long faults need not check more."""

_TABLES = """
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL, version int NOT NULL);
CREATE TABLE mirror (id int PRIMARY KEY, balance bigint NOT NULL, version int NOT NULL,
                     body_version int NOT NULL, body text NOT NULL);
ALTER TABLE mirror ALTER body SET STORAGE EXTERNAL;
CREATE TABLE entry (account int, n bigint, amount bigint NOT NULL, PRIMARY KEY (account, n));
CREATE TABLE elsewhere (n bigint);
CREATE TABLE journal (seq bigserial PRIMARY KEY, xid bigint NOT NULL, lsn pg_lsn NOT NULL, tab text NOT NULL,
                      op text NOT NULL, old jsonb, new jsonb);
CREATE FUNCTION body_of(id int, version int) RETURNS text IMMUTABLE LANGUAGE sql
    RETURN repeat(md5(id || ':' || version), 100);
"""

_JOURNAL = """
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE old_row jsonb; new_row jsonb;
BEGIN
    IF TG_OP <> 'INSERT' THEN old_row := to_jsonb(OLD) - 'body'; END IF;
    IF TG_OP <> 'DELETE' THEN
        new_row := to_jsonb(NEW);
        IF new_row ? 'body' THEN new_row := new_row || jsonb_build_object('body', md5(NEW.body)); END IF;
    END IF;
    INSERT INTO journal (xid, lsn, tab, op, old, new)
    VALUES (pg_current_xact_id()::text::numeric % 4294967296, pg_current_wal_insert_lsn(), TG_TABLE_NAME, TG_OP,
            old_row, new_row);
    RETURN NULL;
END $$;
"""


def create_tables(connection: psycopg.Connection[Any]) -> None:
    """Create the tables with some rows; the journal records all later changes."""
    connection.execute(_TABLES)
    connection.execute("INSERT INTO account SELECT g, %s, 0 FROM generate_series(1, %s) g", (BALANCE, ACCOUNTS))
    connection.execute("INSERT INTO mirror SELECT id, balance, version, 0, body_of(id, 0) FROM account")
    connection.execute(
        "INSERT INTO entry SELECT 1 + (g + side) %% %s, g, CASE side WHEN 0 THEN 5 ELSE -5 END"
        " FROM generate_series(1, 400) g, generate_series(0, 1) side",
        (ACCOUNTS,),
    )
    connection.execute(_JOURNAL)
    for table in TABLES:
        connection.execute(
            f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION note()"
        )


def first_rows() -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Return the rows of the tables before the journal begins, by key; bodies are replaced by their MD5."""
    ids = range(1, ACCOUNTS + 1)
    entries = [
        {"account": 1 + (n + side) % ACCOUNTS, "n": n, "amount": -5 if side else 5}
        for n in range(1, 401)
        for side in (0, 1)
    ]
    first = {"balance": BALANCE, "version": 0}
    return {
        "account": {(number,): {"id": number, **first} for number in ids},
        "mirror": {
            (number,): {"id": number, **first, "body_version": 0, "body": body_digest(number, 0)} for number in ids
        },
        "entry": {(entry["account"], entry["n"]): entry for entry in entries},
    }


def body_digest(account: int, version: int) -> str:
    """Return the MD5 of the body that a mirror must have."""
    once = hashlib.md5(f"{account}:{version}".encode()).hexdigest()
    return hashlib.md5((once * 100).encode()).hexdigest()


class Writer:
    """One connection's transactions, drawn from a seed; waits for a server that is down."""

    def __init__(self, dsn: str, seed: str, number: int, stop: threading.Event, pace: float) -> None:
        """`pace` is the mean pause in seconds between two transactions; 0 means the fast pace of a round."""
        self._dsn = dsn
        self._pace = pace
        self._random = random.Random(f"{seed}/{number}")
        self._stop = stop
        self._first = self._n = number * 1_000_000_000
        self.committed = 0

    def work(self) -> None:
        """Write until the stop event is set."""
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=2) as connection:
                    while not self._stop.is_set():
                        self._one(connection)
            except psycopg.OperationalError:
                self._stop.wait(0.1)

    def _one(self, connection: psycopg.Connection[Any]) -> None:
        try:
            self._transaction(connection)
            if self._random.random() < 0.1:
                self._unbalance(connection)
                connection.rollback()
            else:
                connection.commit()
                self.committed += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            connection.rollback()
        self._stop.wait(self._pause())

    def _pause(self) -> float:
        if self._pace:
            return self._random.expovariate(1 / self._pace)
        return self._random.choice((0.001, 0.003, 0.005, 0.02)) if self.committed < _FAST else 0.1

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        pick = self._random
        kind = pick.random()
        if kind < 0.01:
            self._large(connection)
        elif kind < 0.05:
            connection.execute("INSERT INTO elsewhere VALUES (%s)", (self._n,))
            return
        for _ in range(pick.choice((1, 1, 1, 2, 4))):
            self._transfer(connection)
            if pick.random() < 0.15:
                connection.execute("SAVEPOINT s")
                self._unbalance(connection)
                connection.execute("ROLLBACK TO s")
            if pick.random() < 0.1:
                connection.execute("SAVEPOINT r")
                self._transfer(connection)
                connection.execute("RELEASE r")
        old = pick.randint(self._first, self._n)
        change = pick.random()
        if change < 0.2:
            connection.execute("DELETE FROM entry WHERE n = %s", (old,))
        elif change < 0.35:
            connection.execute("UPDATE entry SET n = n + 500000000 WHERE n = %s", (old,))
        elif change < 0.45:
            connection.execute("UPDATE entry SET account = account + 1000 WHERE n = %s AND account < 1000", (old,))
        elif change < 0.55:
            # the same keys again, in the transaction that deleted them
            rows = connection.execute("DELETE FROM entry WHERE n = %s RETURNING account, -amount", (old,)).fetchall()
            for account, amount in rows:
                connection.execute("INSERT INTO entry VALUES (%s, %s, %s)", (account, old, amount))
        if pick.random() < 0.1:
            connection.execute(
                "UPDATE mirror SET body_version = body_version + 1, body = body_of(id, body_version + 1) WHERE id = %s",
                (pick.randint(1, ACCOUNTS),),
            )

    def _transfer(self, connection: psycopg.Connection[Any]) -> None:
        giver, taker = self._random.sample(range(1, ACCOUNTS + 1), 2)
        amount = self._random.randint(1, 50)
        self._n += 1
        for account, change in sorted(((giver, -amount), (taker, amount))):
            for table in ("account", "mirror"):
                connection.execute(
                    f"UPDATE {table} SET balance = balance + %s, version = version + 1 WHERE id = %s".encode(),
                    (change, account),
                )
            connection.execute("INSERT INTO entry VALUES (%s, %s, %s)", (account, self._n, change))

    def _large(self, connection: psycopg.Connection[Any]) -> None:
        """Write some hundred rows; the second of three parts is rolled back."""
        first = self._n + 1
        self._n += _LARGE
        for part in range(3):
            connection.execute("SAVEPOINT part")
            connection.execute(
                "INSERT INTO entry SELECT 1 + (g + side) %% %s, g, CASE side WHEN 0 THEN 7 ELSE -7 END"
                " FROM generate_series(%s::bigint, %s::bigint) g, generate_series(0, 1) side",
                (ACCOUNTS, first + part * _LARGE // 3, first + (part + 1) * _LARGE // 3 - 1),
            )
            if part == 1:
                self._unbalance(connection)
                connection.execute("ROLLBACK TO part")
        connection.execute("UPDATE account SET version = version + 1")
        connection.execute(
            "UPDATE mirror SET version = version + 1, body_version = body_version + 1,"
            " body = body_of(id, body_version + 1)"
        )

    def _unbalance(self, connection: psycopg.Connection[Any]) -> None:
        """Write changes that are rolled back and must never appear on a topic."""
        account = self._random.randint(1, ACCOUNTS)
        connection.execute("UPDATE account SET balance = balance - 1000000 WHERE id = %s", (account,))
        connection.execute("UPDATE mirror SET body = 'never' WHERE id = %s", (account,))
        connection.execute(
            "INSERT INTO entry SELECT %s, -g, 13 FROM generate_series(%s::bigint, %s::bigint) g",
            (account, self._n, self._n + self._random.choice((0, 3, 150))),
        )


def main(dsn: str, seed: str, pace: float) -> None:
    """Write with several connections until a line or the end of standard input; print the commits."""
    stop = threading.Event()
    writers = [Writer(dsn, seed, number, stop, pace) for number in range(1, _WRITERS + 1)]
    threads = [threading.Thread(target=writer.work) for writer in writers]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()
    print(sum(writer.committed for writer in writers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
