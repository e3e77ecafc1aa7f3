"""Why a batch cannot begin yet, although nothing is wrong with its view."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.schemas.errors import StateError
from tailrace.sinks.control.views_topic import WAITS_FOR_TABLE


class Waiting(StateError):
    """A batch cannot begin before a view or a table that it reads is ready; it is tried again in the next round."""


def waits_for_tables(view: str, tables: Sequence[str], detail: str) -> Waiting:
    """Return the error for a view of which some tables are incomplete; `detail` says why that matters now."""
    what = f"table {tables[0]}" if len(tables) == 1 else f"tables {', '.join(tables)}"
    return Waiting(
        WAITS_FOR_TABLE,
        f'view "{view}" waits for {what}, which {"is" if len(tables) == 1 else "are"} being read',
        detail=detail,
        hint="It continues by itself when that is done: tailrace snapshot status",
    )
