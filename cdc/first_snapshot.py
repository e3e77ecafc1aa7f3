"""The first copy of all tables: the database at the slot's consistent point, every row tagged with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import structlog

from cdc import slot
from cdc.connect import connect, connect_replication
from cdc.delivery import Delivery
from cdc.layouts import describe
from cdc.progress import Progress
from cdc.publication import nokey_name
from cdc.refusals import RefusedRow
from cdc.shapes import FIRST_RUN, Shapes
from cdc.snapshot_rows import RowSender
from cdc.tables import Tables
from schemas.config import Config
from schemas.layout import Layout
from schemas.lsn import format_lsn
from schemas.relation import Relation
from snapshot.plan import Chunk, TablePlan, in_order, plan_table
from snapshot.reader import SnapshotWorkers

log = structlog.get_logger()

_WAIT_S = 0.2
"""How long the loop waits for rows before it looks after the rest."""


class ExportedSnapshot:
    """A new slot, and workers that see the database at its consistent point."""

    def __init__(self, config: Config, version: int, relations: Sequence[Relation], keyless: set[str]) -> None:
        """The workers hold ACCESS SHARE from before the slot is made, and the connection that exports runs nothing
        until all of them have imported."""
        dsn = config.source.dsn.get_secret_value()
        self.names = {relation.qualified_name for relation in relations}
        self.workers = SnapshotWorkers(
            lambda: connect(dsn, application_name="tailrace snapshot"), config.snapshot.workers, relations
        )
        try:
            exporter = connect_replication(dsn)
            try:
                created = slot.create(exporter, config.source.slot, version)
                self.consistent_point = created.consistent_point
                self.workers.see(created.snapshot_name)
            finally:
                exporter.finish()
            self._plan(config, relations, keyless)
        except BaseException:
            self.workers.close()
            raise

    def _plan(self, config: Config, relations: Sequence[Relation], keyless: set[str]) -> None:
        """Ask for the tables once more: what was asked before the lock may have been altered since."""
        publications = [config.source.publication, nokey_name(config.source.publication)]
        self.relations: dict[str, Relation] = {}
        self.layouts: dict[str, Layout] = {}
        plans: list[TablePlan] = []
        connection = self.workers.connections[0]
        for each in relations:
            found = describe(connection, publications, each.schema, each.name)
            if found is not None:
                self.relations[each.qualified_name], self.layouts[each.qualified_name] = found
                plans.append(plan_table(connection, publications, found[0], config.snapshot))
        self.plans = in_order(plans, keyless)
        self.chunks = [chunk for plan in self.plans for chunk in plan.chunks]


def send_first_snapshot(
    delivery: Delivery, tables: Tables, shapes: Shapes, progress: Progress, exported: ExportedSnapshot
) -> None:
    """Copy all tables into Kafka. When `delivery` is told to stop it ends early; the rest is read by windows then."""
    point = exported.consistent_point
    log.info(
        "first snapshot begins",
        lsn=format_lsn(point),
        tables=len(exported.relations),
        chunks=len(exported.chunks),
    )
    workers = exported.workers
    try:
        for name, relation in exported.relations.items():
            tables.see(relation)
            shapes.first(relation, exported.layouts[name], point)
            if (toast := tables[relation.oid].toast) is not None:
                toast.vouch()
        # a partitioned table may have no partition yet
        progress.incomplete -= exported.names - {chunk.table for chunk in exported.chunks}
        for chunk in exported.chunks:
            shapes.note_chunk(chunk, FIRST_RUN, done=False)
        delivery.commit(progress.newest.here.position, point, 0, None)
        sender = RowSender(delivery, progress.epoch, point - 1, 1, FIRST_RUN)
        left = {plan.relation.qualified_name: len(plan.chunks) for plan in exported.plans}
        # bounded by the chunks at hand, one for each worker
        refused: defaultdict[Chunk, list[RefusedRow]] = defaultdict(list)
        workers.read(exported.chunks, exported.relations)
        while workers.busy and not delivery.stop.is_set():
            for chunk, lines in workers.poll(_WAIT_S):
                if lines is not None:
                    refused[chunk] += sender.send(tables[exported.relations[chunk.table].oid], lines)
                else:
                    sender.divert(refused.pop(chunk, []))
                    shapes.note_chunk(chunk, FIRST_RUN, done=True)
                    left[chunk.table] -= 1
                    if not left[chunk.table]:
                        progress.incomplete.discard(chunk.table)
                        log.info("table copied", table=chunk.table)
                if delivery.due():
                    delivery.commit(sender.position, point, 0, None)
        delivery.commit(sender.position, point, 0, None)
        delivery.refusals.report(now=True)
    finally:
        workers.close()
