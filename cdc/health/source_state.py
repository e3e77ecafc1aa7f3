"""State of the source for the slot monitor: WAL, slot, walsender, oldest open transaction."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

import psycopg

from tailrace.cdc.postgres import slot
from tailrace.cdc.postgres.slot import Slot
from tailrace.schemas.lsn import parse_lsn


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction that has written; `state` is that of its session, or "prepared"."""

    xid: str
    pid: int | None
    state: str
    since: datetime

    def __str__(self) -> str:
        who = f" of process {self.pid}" if self.pid else ""
        return f"transaction {self.xid}{who} ({self.state}), open since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class SourceState:
    """State of the source at `at` (time.time()).

    `wal_lsn` is the end of the flushed WAL, on a standby of the replayed WAL. `sent_lsn` and `wait_event` are those of
    the slot's walsender. Both are None without a walsender; `wait_event` is also None while it works.
    """

    at: float
    wal_lsn: int
    read_only: bool
    slot: Slot | None
    sent_lsn: int | None
    wait_event: str | None
    oldest: OpenTransaction | None

    @property
    def retained_bytes(self) -> int | None:
        """Bytes of WAL that the server retains for the slot."""
        if self.slot is None or not self.slot.restart_lsn:
            return None
        return max(0, self.wal_lsn - self.slot.restart_lsn)


def source_state(connection: psycopg.Connection, slot_name: str) -> SourceState:
    """Query the state of the source. Without pg_monitor, transactions of other roles are not visible."""
    # The slot first, so that its LSNs are never past the end of the WAL.
    found = slot.inspect(connection, slot_name)
    row = connection.execute(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text,"
        " pg_is_in_recovery() OR current_setting('transaction_read_only')::bool"
    ).fetchone()
    assert row is not None
    sender = connection.execute(
        "SELECT r.sent_lsn::text, a.wait_event FROM pg_stat_replication r JOIN pg_stat_activity a USING (pid)"
        " WHERE pid = %s",
        (found.active_pid if found else None,),
    ).fetchone()
    sent_lsn, wait_event = sender or (None, None)
    oldest = connection.execute(
        "SELECT xid, pid, state, since FROM ("
        " SELECT backend_xid::text, pid, coalesce(state, 'unknown'), xact_start FROM pg_stat_activity"
        "  WHERE backend_xid IS NOT NULL"
        " UNION ALL SELECT transaction::text, NULL, 'prepared', prepared FROM pg_prepared_xacts"
        ") open (xid, pid, state, since) WHERE since IS NOT NULL ORDER BY since LIMIT 1"
    ).fetchone()
    return SourceState(
        at=time.time(),
        wal_lsn=parse_lsn(row[0]),
        read_only=row[1],
        slot=found,
        sent_lsn=parse_lsn(sent_lsn) if sent_lsn else None,
        wait_event=wait_event,
        oldest=OpenTransaction(*oldest) if oldest else None,
    )
