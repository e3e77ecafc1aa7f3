"""At a start: the reads of tables that an earlier run has left unfinished."""

from __future__ import annotations

from tailrace.cdc.backfill.windows import Windows
from tailrace.cdc.startup.captured import Captured
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.cdc.tables.stored_reads import StoredReads
from tailrace.schemas.error_codes import REFILL
from tailrace.schemas.errors import StateError
from tailrace.schemas.records.layout import TableStatus


def take_up(captured: Captured, reads: StoredReads, registry: TableRegistry, windows: Windows) -> None:
    """Go on with them in windows, and let go of tables that are not captured any more.

    StateError for one without a key: rows that the stream and a window both bring can be told apart by their key only.
    """
    # one that has lost its key is refused when its next record comes, and is another's case until then
    registry.keyless |= captured.without_key - captured.keyed
    parked = registry.parked.keys()
    for table in sorted((registry.keyless & registry.incomplete) - parked):
        raise StateError(
            "TR-405",
            f'the first snapshot was cut short in table "{table}", which has no key',
            detail="Rows of such a table would come twice, or not at all, if they were read anew.",
            hint=REFILL,
        )
    relations = {relation.qualified_name: relation for relation in captured.relations}
    for name in sorted(registry.incomplete - relations.keys()):
        registry.gone(name)
    for name, state in list(registry.states.items()):
        if state.asked is not None and name not in relations:
            registry.cancel(name)
    unread = reads.unread() - registry.keyless
    for name, relation in relations.items():
        now = registry.states.get(name)
        # one of which nothing is known is wanted by the first look at the catalog, with its entry in the publication
        if now is None or now.status in (TableStatus.NEW, TableStatus.PARKED):
            continue
        if name in registry.incomplete or now.asked is not None or name in unread:
            windows.resume(relation, reads.left(name, now.run))
