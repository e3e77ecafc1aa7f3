"""What tests need around the embedded servers: a database of their own, gone afterwards with its slots."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from cdc.dev.postgres import create_database


@contextmanager
def fresh_database(server_dsn: str) -> Iterator[str]:
    """Give the DSN of a new database; at the end its logical slots and the database are dropped."""
    name = f"t_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    dsn = create_database(server_dsn, name)
    try:
        yield dsn
    finally:
        drop_database(server_dsn, name)


def drop_database(server_dsn: str, name: str) -> None:
    """Drop a database with whoever still reads from it: a slot or its walsender would keep it there."""
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        slots = connection.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (name,)
        ).fetchall()
        for slot, active_pid in slots:
            if active_pid is not None:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (active_pid,))
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
