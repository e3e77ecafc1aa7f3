"""Lock-wait policy: short timeouts, so that other sessions never queue up after us."""

from __future__ import annotations

from typing import Final

import psycopg

from tailrace.schemas.errors import SourceError

TABLES_LOCKED: Final = "TR-240"
"""The error code for locked tables; the daemon retries, even at its first start."""


def tables_locked(connection: psycopg.Connection) -> SourceError:
    """Return the error that lists the sessions that hold, or wait for, exclusive locks on tables."""
    rows = connection.execute(
        "SELECT DISTINCT l.relation::regclass::text, l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
        " JOIN pg_database d ON d.oid = l.database WHERE d.datname = current_database() AND c.relkind IN ('r', 'p')"
        " AND l.mode = 'AccessExclusiveLock' ORDER BY 1, 2 LIMIT 10"
    ).fetchall()
    held = ", ".join(f"{table} by process {pid}" for table, pid in rows)
    pids = ", ".join(dict.fromkeys(str(pid) for _, pid in rows))
    return SourceError(
        TABLES_LOCKED,
        "tables are locked",
        detail=f"Exclusive locks, held or waited for: {held}." if held else "No session holds the locks now.",
        hint=f"SELECT * FROM pg_stat_activity WHERE pid IN ({pids or '...'});  -- shows the sessions; Tailrace retries",
    )
