"""Embedded servers, databases and slots for single tests and benchmarks."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from tailrace.cdc.dev.postgres import create_database
from tailrace.cdc.dev.state import Servers, start_servers, stop_servers
from tailrace.cdc.launch.java import SMALL


@contextmanager
def own_servers(*, search: bool = False) -> Iterator[tuple[Servers, Path]]:
    """Start PostgreSQL and Kafka, and OpenSearch for `search`, in a new folder for temporary files.

    Yield them and their state folder in it. With `search` the JVMs are not small: their memory is measured, too.
    """
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as folder:
        state_dir = Path(folder) / "state"
        os.chmod(folder, 0o755)
        servers = start_servers(state_dir, search=search, java_options=() if search else SMALL)
        try:
            yield servers, state_dir
        finally:
            stop_servers(state_dir, purge=True)


@contextmanager
def fresh_database(server_dsn: str) -> Iterator[str]:
    """Yield the DSN of a new database; at the end its logical slots and the database are dropped."""
    name = f"t_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    dsn = create_database(server_dsn, name)
    try:
        yield dsn
    finally:
        drop_database(server_dsn, name)


@contextmanager
def repeating(dsn: str, statement: LiteralString, pause_s: float) -> Iterator[None]:
    """Run the statement repeatedly while the block runs."""
    stop = threading.Event()

    def work() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(pause_s):
                connection.execute(statement)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def drop_database(server_dsn: str, name: str) -> None:
    """Drop a database and its slots: a slot or its walsender would prevent that."""
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        slots = connection.execute(
            "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", (name,)
        ).fetchall()
        for slot, active_pid in slots:
            if active_pid is not None:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (active_pid,))
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def drop_slot(connection: psycopg.Connection, slot: str) -> None:
    """Drop a slot whose reader has ended, or is about to end."""
    for _ in range(100):
        row = connection.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (slot,)).fetchone()
        if row == (False,):
            break
        time.sleep(0.1)
    connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
