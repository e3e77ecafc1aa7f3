"""Run the daemon with one mistake planted in its code for schema changes, to test the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from tailrace.cdc.tables import registry
from tailrace.cdc.tables.decision import Action, on_look
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.schemas.records.layout import FIRST_RUN, Layout, RowsAtRest, TableState
from tests.ddl.cases import Case
from tests.support.daemon import run_daemon


def types_one_level_deep() -> None:
    """Look at the type of a column, but not at the types inside it."""
    read = Layout.from_dict

    def shallow(value: dict[str, Any]) -> Layout:
        found = read(value)
        attributes = [replace(each, inside=(each.type_oid,)) for each in found.attributes]
        own = {each.type_oid for each in attributes}
        types = tuple(form for form in found.types or () if form.oid in own)
        return replace(found, attributes=tuple(attributes), types=types)

    patch.object(Layout, "from_dict", shallow).start()


def table_names_not_compared() -> None:
    """Treat the table that now has a topic's name as the table whose rows are on the topic."""

    def same_table(state: TableState | None, now: Layout, *others: Any) -> Action:
        return on_look(state and replace(state, oid=now.oid), now, *others)

    patch.object(registry, "on_look", same_table).start()


def column_names_not_compared() -> None:
    """Treat a column with the same number and type as the same column."""
    compare = Layout.rows_at_rest

    def same_names(self: Layout, now: Layout, *others: Any) -> RowsAtRest:
        names = {each.number: each.name for each in now.attributes}
        attributes = [replace(each, name=names.get(each.number, each.name)) for each in self.attributes]
        return compare(replace(self, attributes=tuple(attributes)), now, *others)

    patch.object(Layout, "rows_at_rest", same_names).start()


def keys_not_reconciled() -> None:
    """Read a table again without deleting the keys that it no longer has."""

    def plain_read(*arguments: Any) -> Action:
        action = on_look(*arguments)
        return Action.READ if action in (Action.RECONCILE, Action.REFILL) else action

    patch.object(registry, "on_look", plain_read).start()


def states_too_early() -> None:
    """Call a cut a state of a table while the table is read again."""

    def not_read_before(self: TableRegistry) -> set[str]:
        known = self.states.items()
        return {name for name, state in known if state.run <= FIRST_RUN and self.status(name).is_incomplete}

    patch.object(TableRegistry, "incomplete", property(not_read_before)).start()


def no_mistake() -> None:
    """Change nothing."""


LARGE: Final = {
    "large": Case(
        ("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, repeat('x', 200) FROM "
         "generate_series(1, 2000) g",),
        ("ALTER TABLE t ALTER v TYPE text USING upper(v)",),
    )
}  # fmt: skip
"""A case whose table has some 50 chunks, so that cuts come while it is read."""

MISTAKES: Final[dict[Callable[[], None], tuple[str, ...]]] = {
    types_one_level_deep: ("label_in_composite", "label_at_depth"),
    table_names_not_compared: ("swapped",),
    column_names_not_compared: ("columns_swapped",),
    keys_not_reconciled: ("text_key", "partition_truncated"),
    states_too_early: ("large",),
}
"""Each mistake, with the cases that must show it."""


def run_with(mistake: Callable[[], None], config: Path) -> None:
    """Run the daemon with a mistake."""
    mistake()
    run_daemon(config)
