"""The replication slot: made with an exported snapshot, inspected, dropped only on a person's word."""

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
"""The class of our advisory locks; their key is the slot's name."""

_SLOW_S: Final = 5.0
_WAITS: Final = (
    "the new slot waits for transactions that wrote before it was asked for:"
    " SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start"
)
_WAITS_ON_STANDBY: Final = (
    "the new slot waits for the primary to log which transactions run, up to three times (\\watch 1) there:"
    " SELECT pg_log_standby_snapshot()"
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of `pg_replication_slots`, as far as we look at it; what a version lacks is as if it were not set."""

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
        """Whether the server has invalidated it, for whatever reason."""
        return self.wal_status == "lost" or self.invalidation_reason is not None

    @property
    def is_half_synced(self) -> bool:
        """Whether its standby was promoted before the slot was fit for use: then it is of none, and never will be."""
        return self.synced and self.temporary

    def check(self, database: str) -> None:
        """Refuse a slot that cannot be read from, wherever it stands."""
        if self.plugin != "pgoutput" or self.database != database or self.two_phase or self.temporary:
            temporary = "temporary" if self.temporary else "permanent"
            raise SourceError(
                "TR-208",
                f'slot "{self.name}" is not one of ours',
                detail=f"It is {temporary} and {self.slot_type}, plugin {self.plugin}, database {self.database},"
                f" two_phase {self.two_phase}; needed: permanent and logical, pgoutput, {database}, False.",
                hint='slot = "tailrace_2"  # under [source]: one that is not there is made on the first run',
            )

    def check_not_lost(self, flushed_lsn: int, server_lsn: int, hint: str) -> None:
        """Refuse a slot that the server has invalidated; the topics end at `flushed_lsn`."""
        if self.is_lost:
            raise StateError(
                "TR-204",
                f'slot "{self.name}" was invalidated by the server',
                detail=f"Reason: {self.invalidation_reason or 'its WAL was removed, see max_slot_wal_keep_size'}."
                f" {_lost(flushed_lsn, server_lsn)}",
                hint=hint,
            )

    def check_not_ahead(self, flushed_lsn: int, hint: str) -> None:
        """Refuse a slot that will not send what follows on `flushed_lsn`, the end of what Kafka holds."""
        if self.confirmed_flush_lsn > flushed_lsn:
            raise StateError(
                "TR-401",
                f'slot "{self.name}" is ahead of the topics: changes between them are lost',
                detail=f"Topics end at {format_lsn(flushed_lsn)}, the slot was confirmed up to"
                f" {format_lsn(self.confirmed_flush_lsn)}, {self.confirmed_flush_lsn - flushed_lsn} bytes of WAL"
                " further. It was advanced or made again by hand, or another program has read from it.",
                hint=hint,
            )


def missing(name: str, flushed_lsn: int, server_lsn: int, why: str, hint: str) -> StateError:
    """Say what is lost with a slot that is not there (any more)."""
    return StateError(
        "TR-402",
        f'slot "{name}" is gone, but its topics are there',
        detail=f"{why}{_lost(flushed_lsn, server_lsn)}",
        hint=hint,
    )


def _lost(flushed_lsn: int, server_lsn: int) -> str:
    return (
        f"Topics end at {format_lsn(flushed_lsn)}, the server's WAL at {format_lsn(server_lsn)}: what was committed in"
        f" these {server_lsn - flushed_lsn} bytes is not on the topics, and no slot will send it."
    )


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """Everything committed before `consistent_point` is in the exported snapshot, everything after in the stream."""

    consistent_point: int
    snapshot_name: str


def inspect(connection: psycopg.Connection, name: str) -> Slot | None:
    """Return the slot as it is now, None if there is none."""
    # by name, for each version has columns that the one before it lacks
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
        # 16 says only that decoding on a standby met a conflict
        invalidation_reason=found.get("invalidation_reason") or ("conflict" if found.get("conflicting") else None),
    )


def begin_start(connection: psycopg.Connection, name: str) -> None:
    """Be the only daemon that is on its way to owning the slot, from here to `end_start`; SourceError if another is.

    Without it, of two that start at once with no slot one could own the slot that the other has just made, and copies
    the tables from.
    """
    row = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (_STARTING, name)).fetchone()
    if row != (True,):
        raise SourceError(
            SLOT_IN_USE,
            f'another daemon is starting with slot "{name}"',
            hint="One of two takes the slot, the other waits for it.",
        )


def end_start(connection: psycopg.Connection, name: str) -> None:
    """Say that the slot is owned."""
    connection.execute("SELECT pg_advisory_unlock(%s, hashtext(%s))", (_STARTING, name))


def create(pgconn: pq.abc.PGconn, name: str, server: Server) -> CreatedSlot:
    """Make the slot on a replication connection; its snapshot lives until that connection runs its next command.

    The server waits for the transactions that run, a standby until it hears of them; that is logged if it takes long.
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
