"""What a query can be written over: the captured tables, their columns and keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.evolution import column_names, key_column_names
from schemas.topics import Topics
from sinks.schema_topic import StoredSchema


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A captured table; `key` is unique and never null."""

    columns: tuple[str, ...]
    key: tuple[str, ...]


Catalog = Mapping[str, TableInfo]
"""By name as queries have it: ``schema.table``."""


_WORD = r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*"


def slug(table: str) -> str:
    """Return a name for a table's states in Spark, where a dot would be a namespace; no two tables share one."""
    if re.fullmatch(rf"{_WORD}\.{_WORD}", table):
        return table.replace(".", "__")
    return f"t__{table.encode().hex()}"


def table_of(topics: Topics, table: str, stored: Iterable[StoredSchema]) -> TableInfo | None:
    """Return what the schemas say of a table now; None if they do not know it, or if it has no key."""
    schema, _, name = table.partition(".")
    topic = topics.table(schema, name)
    newest: dict[str, StoredSchema] = {}
    for found in stored:
        if found.subject in (f"{topic}-key", f"{topic}-value"):
            before = newest.get(found.subject)
            newest[found.subject] = found if before is None or found.id > before.id else before
    if len(newest) < 2:
        return None
    columns = column_names(newest[f"{topic}-value"].schema)
    key = key_column_names(newest[f"{topic}-key"].schema)
    return TableInfo(tuple(columns), tuple(key))
