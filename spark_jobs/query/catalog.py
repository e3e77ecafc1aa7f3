"""Inputs that a query can name: captured tables (``schema.table``) and other views (plain names)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from tailrace.schemas.evolution import column_names, key_column_names
from tailrace.schemas.records.topics import Topics, without_escapes
from tailrace.schemas.table_names import split_name, written
from tailrace.sinks.control.schema_topic import StoredSchema


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A captured table or a view; `key` is unique. A view's key may hold NULL, which counts as a value.

    `hidden` are those of `columns` that ``*`` does not expand to.
    """

    columns: tuple[str, ...]
    key: tuple[str, ...]
    hidden: tuple[str, ...] = ()

    def with_commits(self) -> TableInfo:
        """Return the table with the commit columns that no column of its own has the name of."""
        added = tuple(name for name in COMMITS if name not in self.columns)
        return TableInfo((*self.columns, *added), self.key, added)


COMMIT_LSN: Final = "_commit_lsn"
COMMITTED_AT: Final = "_committed_at"
COMMITS: Final = (COMMIT_LSN, COMMITTED_AT)
"""Columns of a captured table in a query that names one of them: LSN and time of the commit that wrote the row."""

Catalog = Mapping[str, TableInfo]
"""Tables and views by the name that queries use: ``schema.table``, or a view's plain name."""

VIEWS: Final = "pg_views"
"""Placeholder for the schema of a view while a query is resolved: PostgreSQL refuses a schema of such a name."""


def name_of(table: exp.Table) -> str:
    """Return the catalog's name of a table or view in a query."""
    return table.name if table.db in ("", VIEWS) else written(table.db, table.name)


def is_view(name: str) -> bool:
    """Whether a name in the catalog is that of a view: names of tables contain a dot."""
    return "." not in name


_WORD = r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*"


def slug(table: str) -> str:
    """Return a unique name in Spark for a table or view, without dots, which would mean a namespace."""
    if is_view(table):
        return f"v___{table}"
    if re.fullmatch(rf"{_WORD}\.{_WORD}", table):
        return table.replace(".", "__")
    return f"t__{table.encode().hex()}"


_LISTED: Final = 15
"""Maximum number of tables in a hint."""


def captured(prefix: str, stored: Iterable[StoredSchema]) -> dict[str, bool]:
    """Return the captured tables, as queries name them, and whether each has a key."""
    subjects = {found.subject for found in stored}
    names = sorted(name.removesuffix("-value") for name in subjects if name.endswith("-value"))
    tables = {name: name.removeprefix(f"{prefix}.").split(".") for name in names if name.startswith(f"{prefix}.")}
    return {
        written(*map(without_escapes, parts)): f"{name}-key" in subjects
        for name, parts in tables.items()
        if len(parts) == 2
    }


def not_captured(name: str, known: Mapping[str, bool]) -> str:
    """Return the hint for a name that is not a captured table with a key: the closest and all such tables."""
    if not known:
        return "tailrace run  # no table is captured yet"
    if name in known:
        return f'"{name}" has no key: its topic is a log of events. Use a view of shape "log".'
    usable = [each for each, has_key in known.items() if has_key]
    close = [each for each in usable if each.endswith(f".{name.rpartition('.')[2]}")]
    close = close or difflib.get_close_matches(name, usable, n=1)
    more = f" and {len(usable) - _LISTED} more" if len(usable) > _LISTED else ""
    listed = f"Captured tables with a key: {', '.join(usable[:_LISTED]) or 'none'}{more}."
    return f'Did you mean "{close[0]}"? {listed}' if close else listed


def table_of(topics: Topics, table: str, stored: Iterable[StoredSchema]) -> TableInfo | None:
    """Return a table's present columns and key; None if `stored` lacks the table, or it has no key.

    In `stored`, the newest schema is last.
    """
    topic = topics.table(*split_name(table))
    newest = {found.subject: found.schema for found in stored}
    key, value = newest.get(f"{topic}-key"), newest.get(f"{topic}-value")
    if key is None or value is None:
        return None
    return TableInfo(tuple(column_names(value)), tuple(key_column_names(key)))
