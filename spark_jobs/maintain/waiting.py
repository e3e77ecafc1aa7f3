"""Errors for a batch that cannot begin yet, although its view has no fault."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.schemas.errors import StateError
from tailrace.sinks.control.views_topic import WAITS_FOR_TABLE


class Waiting(StateError):
    """A view or a table that a batch reads is not ready yet; the next round retries the batch."""


def waits_for_tables(view: str, tables: Sequence[str], detail: str) -> Waiting:
    """Return the error for a view with incomplete tables; `detail` says why that matters now."""
    what = f"table {tables[0]}" if len(tables) == 1 else f"tables {', '.join(tables)}"
    return Waiting(
        WAITS_FOR_TABLE,
        f'view "{view}" waits for {what}, which {"is" if len(tables) == 1 else "are"} being read',
        detail=detail,
        hint="It continues by itself when that is done: tailrace snapshot status",
    )
