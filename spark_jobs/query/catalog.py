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
    """Return what `stored`, the newest last, says of a table now; None if it is not there, or has no key."""
    schema, _, name = table.partition(".")
    topic = topics.table(schema, name)
    newest = {found.subject: found.schema for found in stored}
    key, value = newest.get(f"{topic}-key"), newest.get(f"{topic}-value")
    if key is None or value is None:
        return None
    return TableInfo(tuple(column_names(value)), tuple(key_column_names(key)))
