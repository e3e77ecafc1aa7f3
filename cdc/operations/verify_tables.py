"""Tables that `tailrace verify` can compare: the captured ones; for the others, the reason why not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.membership import NotCaptured, explain
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import SourceError
from tailrace.snapshot.plan import row_filter

Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Comparable:
    """Captured tables with their publications' row filters (`filters`), and the other tables with reasons."""

    filters: Mapping[Table, str | None]
    not_captured: Mapping[Table, NotCaptured]


def comparable(config: Config, tables: Collection[Table]) -> Comparable:
    """Ask the source which `tables` are captured: they match the patterns and are published by name."""
    name, capture_set = config.source.publication, CaptureSet(config.source.tables)
    filters: dict[Table, str | None] = {}
    others: dict[Table, NotCaptured] = {}
    with connect(config.source.dsn.get_secret_value(), application_name="tailrace verify") as connection:
        found = publication.find(connection, name)
        captured = publication.table_names(connection, found, capture_set) if found is not None else ()
        for table in sorted(tables):
            if found is None:
                others[table] = NotCaptured(f'publication "{name}" does not exist', "tailrace run")
            elif table in captured:
                filters[table] = row_filter(connection, found.names, *table)
            else:
                others[table] = explain(connection, found, capture_set, ".".join(table))
    return Comparable(filters, others)


def refusal(views: Mapping[str, Table], not_captured: Mapping[Table, NotCaptured]) -> SourceError:
    """Return the error for requested views whose tables are not captured."""
    tables = dict.fromkeys(views.values())
    reasons = [f"{'.'.join(table)} (view {_of(views, table)}): {not_captured[table].reason}" for table in tables]
    hints = dict.fromkeys(not_captured[table].hint for table in tables if not_captured[table].hint)
    return SourceError(
        "TR-223",
        f"cannot compare {', '.join(views)}: the {'table is' if len(tables) == 1 else 'tables are'} not captured",
        detail=f"{'; '.join(reasons)}.",
        hint="\n       ".join(hints) or "tailrace table list",
    )


def _of(views: Mapping[str, Table], table: Table) -> str:
    return ", ".join(name for name, each in views.items() if each == table)
