"""Read the source at a known LSN, through the snapshot of a temporary logical slot.

An ordinary read does not know its LSN, but a logical slot does: its snapshot contains exactly the transactions whose
commit record starts before its consistent point X. The slot is dropped at once, because it would retain WAL.
https://www.postgresql.org/docs/current/protocol-replication.html (CREATE_REPLICATION_SLOT, SNAPSHOT 'use')
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from tailrace.schemas.errors import SourceError
from tailrace.schemas.lsn import parse_lsn


@dataclass(frozen=True, slots=True)
class SourceAt:
    """A transaction that sees the source as of `lsn` (X)."""

    lsn: int
    _connection: psycopg.Connection

    def rows(
        self, table: tuple[str, str], columns: Sequence[str], where: str | None
    ) -> Generator[Sequence[str | None], None, None]:
        """Yield the text of `columns` of every row; `where` is the publication's row filter.

        Rows of tables that inherit from this one are excluded; rows of its partitions are included. A caller that stops
        early has to close it before the connection.
        """
        name = sql.Identifier(*table)
        kind = sql.SQL("SELECT relkind = 'p' FROM pg_class WHERE oid = {}::regclass").format(
            sql.Literal(name.as_string(self._connection))
        )
        partitioned = self._connection.execute(kind).fetchone()
        query = sql.SQL("COPY (SELECT {} FROM {}{}{}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL("" if partitioned == (True,) else "ONLY "),
            name,
            sql.SQL(f" WHERE {where}") if where else sql.SQL(""),  # the server's own text
        )
        try:
            with self._connection.cursor() as cursor, cursor.copy(query) as copy:
                copy.set_types(["text"] * len(columns))
                yield from copy.rows()
        except psycopg.Error as error:
            raise _refused(f'reading "{table[0]}.{table[1]}"', error) from None


@contextmanager
def source_at(replication: str, plain: str, tables: Sequence[tuple[str, str]], deadline_s: float) -> Iterator[SourceAt]:
    """Yield the source at a present LSN.

    `replication` and `plain` are conninfos for a replication and an ordinary connection, both with the pinned settings.
    The tables are locked (ACCESS SHARE) before: a table rewritten in between would look empty. Open transactions delay
    the slot; after `deadline_s` seconds, SourceError (TR-221) names one. SourceError TR-222 if PostgreSQL refuses.
    """
    with ExitStack() as stack:
        try:
            helper = stack.enter_context(psycopg.connect(plain, autocommit=True))
            walsender = stack.enter_context(psycopg.connect(replication, autocommit=True))
            _lock(helper, tables, deadline_s)
            lsn = _take(walsender, plain, deadline_s)
        except psycopg.Error as error:
            raise _refused("a temporary slot", error) from None
        yield SourceAt(lsn, walsender)


def _lock(helper: psycopg.Connection, tables: Sequence[tuple[str, str]], deadline_s: float) -> None:
    helper.execute("BEGIN READ ONLY")
    helper.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(int(deadline_s * 1000)))
    helper.execute(
        sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(
            sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
        )
    )


def _take(walsender: psycopg.Connection, plain: str, deadline_s: float) -> int:
    """Open the transaction that reads at the consistent point, and return that LSN."""
    name = f"tailrace_verify_{os.getpid()}_{secrets.token_hex(4)}"
    how = "(SNAPSHOT 'use')" if walsender.info.server_version >= 150000 else "USE_SNAPSHOT"
    blockers: list[SourceError] = []

    def give_up() -> None:
        blockers.append(_blocker(walsender.info.backend_pid, plain, deadline_s))
        walsender.cancel_safe()

    walsender.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    timer = threading.Timer(deadline_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        row = walsender.execute(f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput {how}".encode()).fetchone()
    except psycopg.errors.QueryCanceled:
        if blockers:
            raise blockers[0] from None
        raise
    finally:
        timer.cancel()
    assert row is not None
    walsender.execute(f"DROP_REPLICATION_SLOT {name}".encode())
    return parse_lsn(row[1])


def _blocker(walsender_pid: int, plain: str, deadline_s: float) -> SourceError:
    """Return an error with the transaction that the walsender waits for, open or prepared."""
    with psycopg.connect(plain, autocommit=True) as connection:
        row = connection.execute(
            "SELECT w.transactionid::text, h.pid, a.usename, a.application_name, a.state,"
            " extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::int,"
            " p.gid FROM pg_locks w JOIN pg_locks h ON h.transactionid = w.transactionid AND h.granted"
            " LEFT JOIN pg_stat_activity a ON a.pid = h.pid LEFT JOIN pg_prepared_xacts p"
            " ON p.transaction = w.transactionid WHERE w.pid = %s AND NOT w.granted LIMIT 1",
            (walsender_pid,),
        ).fetchone()
    message = f"PostgreSQL reached no consistent point within {deadline_s:.0f} s"
    if row is None:
        return SourceError("TR-221", message, hint="Repeat the command with --timeout 600")
    xid, pid, user, application, state, age, gid = row
    if gid is not None:
        return SourceError(
            "TR-221",
            message,
            detail=f'Transaction {xid} was prepared as "{gid}" {age} s ago and has not ended.',
            hint=f"COMMIT PREPARED '{gid}';  -- or ROLLBACK PREPARED",
        )
    return SourceError(
        "TR-221",
        message,
        detail=f"The slot waits for transaction {xid}, open for {age} s: process {pid}, user {user},"
        f" application {application or 'without a name'}, {state}.",
        hint=f"SELECT pg_terminate_backend({pid});  -- or wait for its end with --timeout 600",
    )


def _refused(what: str, error: psycopg.Error) -> SourceError:
    """Return an error with the server's message, which contains names but no row data."""
    message = error.diag.message_primary or " ".join(str(error).split())
    return SourceError(
        "TR-222",
        f"PostgreSQL refused {what}: {message}",
        detail=error.diag.message_detail or (f"SQLSTATE {error.sqlstate}." if error.sqlstate else ""),
        hint=error.diag.message_hint or "verify needs the same rights as `tailrace run`: REPLICATION and SELECT.",
    )
