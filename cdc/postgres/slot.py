"""Replication slot: create it with an exported snapshot, inspect it, and check its state."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import psycopg
import structlog
from psycopg import pq

from tailrace.cdc.postgres.catalog import Server
from tailrace.cdc.postgres.connect import SLOT_IN_USE, command
from tailrace.schemas.errors import SourceError, StateError
from tailrace.schemas.lsn import format_lsn, parse_lsn

log = structlog.get_logger()

_STARTING = 0x7461696C
"""The first key of our advisory locks; the second is a hash of the slot's name."""

_SLOW_S: Final = 5.0
_WAITS: Final = (
    "slot creation delayed by transactions that wrote before it began:"
    " SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start"
)
_WAITS_ON_STANDBY: Final = (
    "slot creation delayed until the primary logs its running transactions; there, up to three times (\\watch 1):"
    " SELECT pg_log_standby_snapshot()"
)


@dataclass(frozen=True, slots=True)
class Slot:
    """The columns of `pg_replication_slots` that we use; those that the server lacks count as unset."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed_flush_lsn: int
    restart_lsn: int
    wal_status: str | None
    safe_wal_size: int | None
    two_phase: bool
    slot_type: str = "logical"
    temporary: bool = False
    failover: bool = False
    synced: bool = False
    invalidation_reason: str | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the server has invalidated the slot, for any reason."""
        return self.wal_status == "lost" or self.invalidation_reason is not None

    @property
    def is_half_synced(self) -> bool:
        """Whether the standby was promoted before the slot was fully synchronized, which makes it unusable."""
        return self.synced and self.temporary

    def check(self, database: str) -> None:
        """Raise SourceError (TR-208) for a slot that cannot be read by us, whatever its LSN."""
        if self.plugin != "pgoutput" or self.database != database or self.two_phase or self.temporary:
            temporary = "temporary" if self.temporary else "permanent"
            raise SourceError(
                "TR-208",
                f'slot "{self.name}" cannot be used by Tailrace',
                detail=f"It is {temporary} and {self.slot_type}, plugin {self.plugin}, database {self.database},"
                f" two_phase {self.two_phase}; required: permanent and logical, pgoutput, {database}, False.",
                hint='slot = "tailrace_2"  # under [source]: a missing slot is created on the first run',
            )

    def check_not_lost(self, flushed_lsn: int, server_lsn: int, hint: str) -> None:
        """Raise StateError (TR-204) for an invalidated slot; the topics end at `flushed_lsn`."""
        if self.is_lost:
            raise StateError(
                "TR-204",
                f'slot "{self.name}" was invalidated by the server',
                detail=f"Reason: {self.invalidation_reason or 'its WAL was removed, see max_slot_wal_keep_size'}."
                f" {_lost(flushed_lsn, server_lsn)}",
                hint=hint,
            )

    def check_not_ahead(self, flushed_lsn: int, hint: str) -> None:
        """Raise StateError (TR-401) if the slot is confirmed past `flushed_lsn`, the end of the topics."""
        if self.confirmed_flush_lsn > flushed_lsn:
            raise StateError(
                "TR-401",
                f'slot "{self.name}" is ahead of the topics: changes between them are lost',
                detail=f"Topics end at {format_lsn(flushed_lsn)}, the slot was confirmed up to"
                f" {format_lsn(self.confirmed_flush_lsn)}, {self.confirmed_flush_lsn - flushed_lsn} bytes of WAL"
                " further. It was advanced or recreated by hand, or another program has read from it.",
                hint=hint,
            )


def missing(name: str, flushed_lsn: int, server_lsn: int, why: str, hint: str) -> StateError:
    """Return the error for a missing slot, with the extent of the lost changes."""
    return StateError(
        "TR-402",
        f'slot "{name}" is missing, but its topics exist',
        detail=f"{why}{_lost(flushed_lsn, server_lsn)}",
        hint=hint,
    )


def _lost(flushed_lsn: int, server_lsn: int) -> str:
    return (
        f"Topics end at {format_lsn(flushed_lsn)}, the server's WAL at {format_lsn(server_lsn)}: changes committed in"
        f" these {server_lsn - flushed_lsn} bytes are not on the topics, and no slot will send them."
    )


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot: the exported snapshot has all commits before `consistent_point`, the stream the others."""

    consistent_point: int
    snapshot_name: str


def inspect(connection: psycopg.Connection, name: str) -> Slot | None:
    """Return the slot's present state, None if the slot does not exist."""
    # by column name, because each version adds columns
    row = connection.execute("SELECT to_jsonb(s) FROM pg_replication_slots s WHERE slot_name = %s", (name,)).fetchone()
    if row is None:
        return None
    (found,) = row
    confirmed, restart = found["confirmed_flush_lsn"], found["restart_lsn"]
    return Slot(
        name=name,
        plugin=found["plugin"],
        database=found["database"],
        active_pid=found["active_pid"],
        confirmed_flush_lsn=parse_lsn(confirmed) if confirmed else 0,
        restart_lsn=parse_lsn(restart) if restart else 0,
        wal_status=found["wal_status"],
        safe_wal_size=found["safe_wal_size"],
        two_phase=found["two_phase"],
        slot_type=found["slot_type"],
        temporary=found["temporary"],
        failover=found.get("failover", False),
        synced=found.get("synced", False),
        # PostgreSQL 16 reports only a conflict of decoding on a standby
        invalidation_reason=found.get("invalidation_reason") or ("conflict" if found.get("conflicting") else None),
    )


def begin_start(connection: psycopg.Connection, name: str) -> None:
    """Lock the start: until `end_start`, only this daemon may acquire the slot.

    SourceError if another daemon is starting. Without the lock, if two daemons start at once without a slot, one could
    acquire the slot that the other has just created and copies the tables from.
    """
    row = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (_STARTING, name)).fetchone()
    if row != (True,):
        raise SourceError(
            SLOT_IN_USE,
            f'another daemon is starting with slot "{name}"',
            hint="One daemon acquires the slot; the other waits for it.",
        )


def end_start(connection: psycopg.Connection, name: str) -> None:
    """Release the lock of `begin_start`, once the slot is acquired."""
    connection.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", (_STARTING, name))


def create(pgconn: pq.abc.PGconn, name: str, server: Server) -> CreatedSlot:
    """Create the slot on a replication connection; its snapshot lasts until the next command there.

    The server waits for running transactions, a standby until the primary logs them. A wait of more than 5 s is logged.
    """
    if server.version < 150000:
        options = "EXPORT_SNAPSHOT"
    elif server.version < 170000 or server.in_recovery:
        options = "(SNAPSHOT 'export')"
    else:
        options = "(SNAPSHOT 'export', FAILOVER true)"
    slow = threading.Timer(_SLOW_S, log.warning, [_WAITS_ON_STANDBY if server.in_recovery else _WAITS], {"slot": name})
    slow.daemon = True
    slow.start()
    try:
        rows = command(pgconn, f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput {options}')
    finally:
        slow.cancel()
    _, consistent_point, snapshot_name, _ = rows[0]
    assert consistent_point is not None
    assert snapshot_name is not None
    return CreatedSlot(parse_lsn(consistent_point.decode()), snapshot_name.decode())
