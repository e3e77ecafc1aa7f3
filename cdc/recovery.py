"""A new slot: the first one, or one behind a gap, where a person's word has all tables read again and reconciled.

The word is the request `tailrace snapshot start --all --reconcile`; nothing is dropped without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import psycopg

from cdc import slot
from cdc.connect import connect_replication
from cdc.first_snapshot import ExportedSnapshot
from cdc.tables import Tables
from schemas.config import Config
from schemas.envelope import TRUNCATE_KEY
from schemas.errors import SourceError
from schemas.lsn import Position
from schemas.relation import Relation
from sinks.outbox import Outbox

MENDED: Final = {"TR-204", "TR-401", "TR-402", "TR-403", "TR-404", "TR-405"}
"""Errors that say that the topics lack changes or rows."""


def make_slot(config: Config, version: int, relations: Sequence[Relation]) -> tuple[int, ExportedSnapshot | None]:
    """Make the slot; return its consistent point, and the snapshot of `relations` at it if there are any."""
    if relations:
        exported = ExportedSnapshot(config, version, relations)
        return exported.consistent_point, exported
    exporter = connect_replication(config.source.dsn.get_secret_value())
    try:
        return slot.create(exporter, config.source.slot, version).consistent_point, None
    finally:
        exporter.finish()


@contextmanager
def alone(connection: psycopg.Connection, name: str) -> Iterator[None]:
    """Keep other daemons from making the slot anew meanwhile, drop what is left of it. SourceError if one has."""
    connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (f"tailrace {name}",))
    try:
        found = slot.inspect(connection, name)
        if found is not None and found.active_pid is not None:
            raise SourceError(
                "TR-206",
                f'replication slot "{name}" is active for PID {found.active_pid}',
                hint="Stop the other consumer, or give this one a slot of its own.",
            )
        if found is not None:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        yield
    finally:
        if not connection.closed:
            connection.execute("SELECT pg_advisory_unlock_all()")


def empty_topics(outbox: Outbox, tables: Tables, relations: Iterable[Relation], position: Position) -> None:
    """Send a truncate to the topics of tables without a key: they are filled anew, behind `position`."""
    now_ms = time.time_ns() // 1_000_000
    for relation in relations:
        tables.see(relation)
        table = tables[relation.oid]
        table.encoder.begin(0, position.commit_lsn, now_ms, 0, now_ms)
        value = table.encoder.truncate(position.commit_lsn, position.ordinal)
        for partition in range(table.destination.partitions):
            outbox.send_to(table.destination, partition, TRUNCATE_KEY, value, position.to_bytes())
