"""Recovery from errors that prevent streaming and require a person's decision.

If changes are lost, the request `tailrace snapshot start --all --reconcile` makes the daemon recreate the slot and
reconcile all tables. Nothing is dropped without this request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import psycopg

from tailrace.cdc.backfill.exported_snapshot import ExportedSnapshot
from tailrace.cdc.postgres import slot
from tailrace.cdc.postgres.catalog import Server
from tailrace.cdc.postgres.connect import SLOT_IN_USE, connect_replication
from tailrace.cdc.tables.shapes import Tables
from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.error_codes import is_refilled
from tailrace.schemas.errors import SourceError, TailraceError
from tailrace.schemas.lsn import Position
from tailrace.schemas.relation import Relation
from tailrace.sinks.control.requests import RequestTail
from tailrace.sinks.kafka.outbox import Outbox


def copy_anew(prefix: str, slot: str | None) -> str:
    """Return the hint to copy all tables to other topics if these are beyond repair, dropping `slot`."""
    lines = [f"SELECT pg_drop_replication_slot('{slot}');"] if slot else []
    lines += [
        f'prefix = "{prefix}_2"  # under [kafka]; all tables are copied again by:',
        "tailrace run",
        "tailrace views rebuild VIEW  # each view, once the tables are copied",
    ]
    return "\n       ".join(lines)


def is_mended(config: Config, error: TailraceError) -> bool:
    """Whether a person has requested the recovery that repairs the topics after `error`."""
    if not is_refilled(error.code):
        return False
    with RequestTail(config.kafka, config.source.slot) as tail:
        return tail.asks_for_recovery


def drop(connection: psycopg.Connection, name: str) -> None:
    """Drop the slot if it exists. SourceError if another process reads from it."""
    found = slot.inspect(connection, name)
    if found is None:
        return
    if found.active_pid is not None:
        raise SourceError(SLOT_IN_USE, f'replication slot "{name}" is active for PID {found.active_pid}')
    connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def make_slot(
    config: Config, server: Server, relations: Sequence[Relation], keyless: set[str]
) -> tuple[int, ExportedSnapshot | None]:
    """Create the slot; return its consistent point and the snapshot of `relations`, if there are any."""
    if relations:
        exported = ExportedSnapshot(config, server, relations, keyless)
        return exported.consistent_point, exported
    exporter = connect_replication(config.source.dsn.get_secret_value())
    try:
        return slot.create(exporter, config.source.slot, server).consistent_point, None
    finally:
        exporter.finish()


def empty_topics(outbox: Outbox, tables: Tables, relations: Iterable[Relation], position: Position) -> None:
    """Send a truncate to the topics of tables without a key, which are refilled after `position`."""
    now_ms = time.time_ns() // 1_000_000
    for relation in relations:
        tables.see(relation)
        table = tables.for_record(relation.oid)
        table.encoder.begin(0, position.commit_lsn, now_ms, 0, now_ms)
        value = table.encoder.truncate(position.commit_lsn, position.ordinal)
        for partition in range(table.destination.partitions):
            outbox.send_to(table.destination, partition, TRUNCATE_KEY, value, position.to_bytes())
