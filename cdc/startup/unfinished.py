"""Resume, at a start, the table reads that an earlier daemon process has left unfinished."""

from __future__ import annotations

from tailrace.cdc.backfill.windows import Windows
from tailrace.cdc.startup.captured import Captured
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.cdc.tables.stored_reads import StoredReads
from tailrace.schemas.records.layout import TableStatus


def take_up(captured: Captured, reads: StoredReads, registry: TableRegistry, windows: Windows) -> None:
    """Resume unfinished reads in windows, and drop the reads of tables that are no longer captured.

    A table without a key is read from the start, into an emptied topic: the snapshot of its read has ended.
    """
    # a table that has lost its key is refused at its next record, not here
    registry.keyless |= captured.logs
    relations = {relation.qualified_name: relation for relation in captured.relations}
    refused = {relation.qualified_name for relation, _ in captured.refused}
    if missing := registry.incomplete - relations.keys() - refused:
        # The first catalog inspection decides about the others, once the stream has passed it: the cuts before it are
        # of a time when the table existed. Reads that an earlier version has stored name no table by its oid.
        unpublished = captured.catalog.survey().unpublished
        for name in sorted(missing - unpublished):
            if not registry.states[name].oid:
                registry.gone(name)
    for name, state in list(registry.states.items()):
        if state.asked is not None and name not in relations and name not in registry.incomplete:
            registry.cancel(name)
    unread = reads.unread() - registry.keyless
    for name, relation in relations.items():
        now = registry.states.get(name)
        # the first catalog inspection schedules the read of an unknown table, with its publication entry
        if now is None or now.status in (TableStatus.NEW, TableStatus.PARKED, TableStatus.UNPUBLISHED):
            continue
        has_snapshot = name in registry.keyless and now.status is TableStatus.READING
        has_gained_key = name not in registry.keyless and now.status is TableStatus.KEYLESS
        if has_snapshot or has_gained_key:
            registry.refill(relation)
        elif name in registry.incomplete or now.asked is not None or name in unread:
            windows.resume(relation, reads.left(name, now.run))
