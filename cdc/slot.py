"""The replication slot: made with an exported snapshot, inspected, dropped only on a person's word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq

from cdc.connect import command
from schemas.errors import SourceError, StateError
from schemas.lsn import format_lsn, parse_lsn

REFILL: Final = (
    "tailrace snapshot start --all --reconcile  # a new slot; all tables are read again, what is gone is deleted\n"
    "       tailrace run"
)
"""The hint where the topics lack changes that no WAL has any more; see `cdc.recovery`."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of `pg_replication_slots`, as far as we look at it."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    confirmed_flush_lsn: int
    restart_lsn: int
    wal_status: str | None
    safe_wal_size: int | None
    two_phase: bool


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """Everything committed before `consistent_point` is in the exported snapshot, everything after in the stream."""

    consistent_point: int
    snapshot_name: str


def inspect(connection: psycopg.Connection, name: str) -> Slot | None:
    """Return the slot as it is now, None if there is none."""
    row = connection.execute(
        "SELECT plugin, database, active_pid, confirmed_flush_lsn::text, restart_lsn::text, wal_status,"
        " safe_wal_size, two_phase FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
    ).fetchone()
    if row is None:
        return None
    plugin, database, active_pid, confirmed, restart, wal_status, safe_wal_size, two_phase = row
    return Slot(
        name=name,
        plugin=plugin,
        database=database,
        active_pid=active_pid,
        confirmed_flush_lsn=parse_lsn(confirmed) if confirmed else 0,
        restart_lsn=parse_lsn(restart) if restart else 0,
        wal_status=wal_status,
        safe_wal_size=safe_wal_size,
        two_phase=two_phase,
    )


def check(slot: Slot, database: str, flushed_lsn: int | None) -> None:
    """Refuse a slot that cannot go on from `flushed_lsn`, the end of what Kafka holds (None: nothing yet)."""
    if slot.plugin != "pgoutput" or slot.database != database or slot.two_phase:
        raise SourceError(
            "TR-208",
            f'slot "{slot.name}" is not one of ours',
            detail=f"plugin {slot.plugin}, database {slot.database}, two_phase {slot.two_phase};"
            f" needed: pgoutput, {database}, False.",
            hint="Name another slot in source.slot; it is made on the first run.",
        )
    if slot.wal_status == "lost":
        raise StateError(
            "TR-204",
            f'slot "{slot.name}" was invalidated by the server',
            detail=f"The WAL behind {format_lsn(flushed_lsn or slot.confirmed_flush_lsn)} is gone.",
            hint=REFILL,
        )
    if flushed_lsn is not None and slot.confirmed_flush_lsn > flushed_lsn:
        raise StateError(
            "TR-401",
            f'slot "{slot.name}" is ahead of the topics: changes between them are lost',
            detail=f"Topics end at {format_lsn(flushed_lsn)}, the slot was confirmed up to"
            f" {format_lsn(slot.confirmed_flush_lsn)}, {slot.confirmed_flush_lsn - flushed_lsn} bytes of WAL further.",
            hint=REFILL,
        )


def create(pgconn: pq.abc.PGconn, name: str, version: int) -> CreatedSlot:
    """Make the slot on a replication connection; its snapshot lives until that connection runs its next command."""
    if version >= 150000:
        options = "(SNAPSHOT 'export'" + (", FAILOVER true)" if version >= 170000 else ")")
    else:
        options = "EXPORT_SNAPSHOT"
    rows = command(pgconn, f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput {options}')
    _, consistent_point, snapshot_name, _ = rows[0]
    assert consistent_point is not None
    assert snapshot_name is not None
    return CreatedSlot(parse_lsn(consistent_point.decode()), snapshot_name.decode())
