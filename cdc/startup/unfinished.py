"""Resume, at a start, the table reads that an earlier daemon process has left unfinished."""

from __future__ import annotations

from tailrace.cdc.backfill.windows import Windows
from tailrace.cdc.startup.captured import Captured
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.cdc.tables.stored_reads import StoredReads
from tailrace.schemas.error_codes import REFILL
from tailrace.schemas.errors import StateError
from tailrace.schemas.records.layout import TableStatus


def take_up(captured: Captured, reads: StoredReads, registry: TableRegistry, windows: Windows) -> None:
    """Resume unfinished reads in windows, and drop the reads of tables that are no longer captured.

    StateError (TR-405) for a table without a key: only a key identifies rows that both the stream and a window bring.
    """
    # a table that has lost its key is refused at its next record, not here
    registry.keyless |= captured.logs
    parked = registry.parked.keys()
    for table in sorted((registry.keyless & registry.incomplete) - parked):
        raise StateError(
            "TR-405",
            f'the first snapshot was interrupted in table "{table}", which has no key',
            detail="Without a key, a second read would duplicate some rows and miss others.",
            hint=REFILL,
        )
    relations = {relation.qualified_name: relation for relation in captured.relations}
    refused = {relation.qualified_name for relation, _ in captured.refused}
    if missing := registry.incomplete - relations.keys() - refused:
        # the first catalog inspection decides about tables that are not published
        unpublished = captured.catalog.survey().unpublished
        for name in sorted(missing - unpublished):
            registry.gone(name)
    for name, state in list(registry.states.items()):
        if state.asked is not None and name not in relations:
            registry.cancel(name)
    unread = reads.unread() - registry.keyless
    for name, relation in relations.items():
        now = registry.states.get(name)
        # the first catalog inspection schedules the read of an unknown table, with its publication entry
        if now is None or now.status in (TableStatus.NEW, TableStatus.PARKED, TableStatus.UNPUBLISHED):
            continue
        if name in registry.incomplete or now.asked is not None or name in unread:
            windows.resume(relation, reads.left(name, now.run))
