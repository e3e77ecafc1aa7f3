"""Check PostgreSQL: connection, settings, room for slot and WAL sender, standby, long transactions, clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.postgres import catalog
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.lock_policy import tables_locked
from tailrace.cdc.postgres.slot import Slot
from tailrace.cdc.postgres.timeline import identify
from tailrace.schemas.config.model import Config

_SKEW_S: Final = 2.0
_LONG_S: Final = 60
"""A transaction that is older than this delays a new slot noticeably."""


@contextmanager
def connected(config: Config, findings: Findings) -> Iterator[psycopg.Connection | None]:
    """Yield a connection on which the server itself refuses every write; None if there is none.

    A lock that is not granted within 2 s, or a query that takes more than 30 s, ends the block with a finding.
    """
    connection = None
    with findings.probing("source"):
        connection = connect(config.source.dsn.get_secret_value(), application_name="tailrace check")
        connection.execute("SET default_transaction_read_only = on")
        connection.execute("SET lock_timeout = '2s'")
        connection.execute("SET statement_timeout = '30s'")
    if connection is None:
        yield None
        return
    with connection, findings.probing("source"):
        try:
            yield connection
        except psycopg.errors.LockNotAvailable:
            raise tables_locked(connection) from None


def check_server(config: Config, connection: psycopg.Connection, findings: Findings) -> bool:
    """Report what the server lacks; return whether its catalogs can be queried further."""
    server = catalog.server(connection)
    with findings.probing("source"):
        server.check()
    if server.version < catalog.OLDEST:
        return False
    with findings.probing("source"):
        identify(config.source.dsn.get_secret_value(), None)
    with findings.probing("source"):
        _check_clock(connection, findings)
    if server.in_recovery:
        _check_standby(connection, findings)
    return True


def check_room(connection: psycopg.Connection, findings: Findings, slot: Slot | None) -> None:
    """Report a missing limit of retained WAL, and limits that leave no room for the slot and its reader."""
    row = connection.execute(
        "SELECT current_setting('max_slot_wal_keep_size'), current_setting('max_replication_slots')::int,"
        " (SELECT count(*) FROM pg_replication_slots), current_setting('max_wal_senders')::int,"
        " (SELECT count(*) FROM pg_stat_replication), current_setting('max_connections')::int"
    ).fetchone()
    assert row is not None
    keep, most_slots, slots, most_senders, senders, _ = row
    if keep == "-1":
        findings.advise(
            "TR-901",
            Severity.WARN,
            "source",
            "max_slot_wal_keep_size is -1: without limit.",
            [
                "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB';  -- less than the free space",
                "SELECT pg_reload_conf();",
            ],
        )
    if slot is None and slots >= most_slots:
        paste = f"ALTER SYSTEM SET max_replication_slots = {most_slots + 4};  -- then restart the server"
        seen = f"{slots} of {most_slots} replication slots are in use."
        findings.advise("TR-902", Severity.STOP, "source", seen, paste)
    if (slot is None or slot.active_pid is None) and senders >= most_senders:
        paste = f"ALTER SYSTEM SET max_wal_senders = {most_senders + 4};  -- then restart the server"
        seen = f"{senders} of {most_senders} WAL senders are in use."
        findings.advise("TR-903", Severity.STOP, "source", seen, paste)
    if slot is None:
        _check_transactions(connection, findings)


def _check_transactions(connection: psycopg.Connection, findings: Findings) -> None:
    rows = connection.execute(
        "SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::int FROM pg_stat_activity"
        " WHERE backend_xid IS NOT NULL AND xact_start < clock_timestamp() - make_interval(secs => %s) ORDER BY 2 DESC"
        " LIMIT 10",
        (_LONG_S,),
    ).fetchall()
    for pid, age_s in rows:
        seen = f"Server process {pid} has a transaction that has written for {age_s} s."
        paste = f"SELECT pid, xact_start, query FROM pg_stat_activity WHERE pid = {pid};"
        findings.advise("TR-920", Severity.WARN, "source", seen, paste)


def _check_standby(connection: psycopg.Connection, findings: Findings) -> None:
    row = connection.execute(
        "SELECT current_setting('hot_standby_feedback'), current_setting('primary_slot_name', true)"
    ).fetchone()
    assert row is not None
    feedback, primary_slot = row
    if feedback != "on" or not primary_slot:
        findings.advise(
            "TR-911",
            Severity.WARN,
            "source",
            f'The standby has hot_standby_feedback = {feedback} and primary_slot_name = "{primary_slot or ""}".',
            [
                "ALTER SYSTEM SET hot_standby_feedback = on;",
                "ALTER SYSTEM SET primary_slot_name = '...';  -- a physical slot on the primary",
                "SELECT pg_reload_conf();",
            ],
        )


def _check_clock(connection: psycopg.Connection, findings: Findings) -> None:
    before = time.time()
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    after = time.time()
    assert row is not None
    # the server read its clock at some time in between
    apart = max(row[0] - after, before - row[0], 0.0)
    if apart > _SKEW_S:
        findings.advise("TR-914", Severity.WARN, "source", f"The clocks differ by {apart:.1f} s.")
