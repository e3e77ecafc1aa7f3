"""Create a slot with an exported snapshot, and workers that read at the slot's consistent point."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import psycopg

from tailrace.cdc.postgres import slot
from tailrace.cdc.postgres.catalog import Server
from tailrace.cdc.postgres.connect import connect, connect_replication, connect_to_read
from tailrace.cdc.postgres.layouts import describe
from tailrace.cdc.postgres.publication import nokey_name
from tailrace.cdc.postgres.rights import cannot_read_tables
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, TailraceError
from tailrace.schemas.records.layout import Layout
from tailrace.schemas.relation import Relation
from tailrace.snapshot.plan import check_condition, in_order, plan_table
from tailrace.snapshot.reader import SnapshotWorkers


class ExportedSnapshot:
    """A new slot with workers and plans for its snapshot.

    `names` are the requested tables; `relations` and `layouts` are those at the consistent point, by name. `plans` are
    in the order of reading.
    """

    def __init__(
        self,
        config: Config,
        server: Server,
        relations: Sequence[Relation],
        keyless: Collection[str],
    ) -> None:
        """Lock the tables, create the slot, and plan the reads.

        The workers take ACCESS SHARE locks before the slot is created. The exporting connection runs no command until
        all workers have imported the snapshot. Raises psycopg's LockNotAvailable if a session holds a conflicting lock
        on a table, SourceError if a table cannot be read; a slot created by then is dropped again.
        """
        self._dsn = dsn = config.source.dsn.get_secret_value()
        self.names = {relation.qualified_name for relation in relations}
        created: slot.CreatedSlot | None = None
        self.workers = SnapshotWorkers(
            lambda: connect_to_read(dsn, application_name="tailrace snapshot"), config.snapshot.workers
        )
        try:
            self.workers.lock(relations)
            exporter = connect_replication(dsn)
            try:
                created = slot.create(exporter, config.source.slot, server)
                self.consistent_point = created.consistent_point
                self.workers.see(created.snapshot_name)
            finally:
                exporter.finish()
            connection = self.workers.connections[0]
            found = _describe(connection, config, relations)
            plans = [plan_table(connection, _publications(config), each, config.snapshot) for each, _ in found]
        except BaseException as error:
            self.workers.close()
            if created is not None:
                _drop(dsn, config.source.slot)
            if isinstance(error, psycopg.Error) and not isinstance(error, psycopg.errors.LockNotAvailable):
                raise cannot_read_tables(error, dsn, relations) from None
            raise
        self.relations: dict[str, Relation] = {relation.qualified_name: relation for relation, _ in found}
        self.layouts: dict[str, Layout] = {relation.qualified_name: layout for relation, layout in found}
        self.plans = in_order(plans, keyless)
        self.chunks = [chunk for plan in self.plans for chunk in plan.chunks]

    def cannot_read(self, error: psycopg.Error) -> TailraceError:
        """Return the error for a failed read of these tables."""
        return cannot_read_tables(error, self._dsn, list(self.relations.values()))


CONDITION_NOT_CAPTURED: Final = "TR-135"
"""The error code for a condition on a table that is not captured."""


def condition_errors(
    connection: psycopg.Connection, config: Config, relations: Sequence[Relation]
) -> list[ConfigError]:
    """Return the errors in ``snapshot.where``: unusable conditions and tables that are not captured."""
    errors: list[ConfigError] = []
    by_name = {relation.qualified_name: relation for relation in relations}
    for name, condition in config.snapshot.where.items():
        if name not in by_name:
            errors.append(
                ConfigError(
                    CONDITION_NOT_CAPTURED,
                    f'snapshot.where names "{name}", which is not captured',
                    detail=f"Captured tables: {', '.join(sorted(by_name)[:20])}{', ...' if len(by_name) > 20 else ''}.",
                    hint='where = { "schema.table" = "condition" }  # under [snapshot]',
                )
            )
            continue
        try:
            check_condition(connection, by_name[name], condition)
        except psycopg.Error as error:
            errors.append(
                ConfigError(
                    "TR-136",
                    f'the condition on table "{name}" in snapshot.where cannot be used',
                    detail=f"{error.diag.message_primary or error}.",
                    hint=error.diag.message_hint or f"Try it: SELECT count(*) FROM {name} WHERE {condition};",
                )
            )
    return errors


def _describe(
    connection: psycopg.Connection, config: Config, relations: Sequence[Relation]
) -> list[tuple[Relation, Layout]]:
    """Query the tables again: they may have been altered between the first query and the lock."""
    found = (describe(connection, _publications(config), each.schema, each.name) for each in relations)
    return [each for each in found if each is not None]


def _publications(config: Config) -> list[str]:
    return [config.source.publication, nokey_name(config.source.publication)]


def _drop(dsn: str, name: str) -> None:
    """Drop the slot just created: nothing has been sent from it or confirmed to it."""
    with connect(dsn) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active",
            (name,),
        )
