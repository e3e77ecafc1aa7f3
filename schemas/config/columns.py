"""Settings of single columns: as_text, exclude, mask and hash under ``[source]``.

Patterns are ``schema.table.column`` with ``*`` and ``?``. They are applied once per shape of a table, never per row.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from tailrace.schemas.config.model import Source
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.relation import Relation
from tailrace.schemas.types import AS_TEXT, EXCLUDED, Column, Kind, ValueType

HIDING = (Kind.EXCLUDED, Kind.MASKED, Kind.HASHED)
"""Options that hide a value on the topic."""

NO_SALT = b""


def is_excluded(column: Column) -> bool:
    """Return True if the column is not on the topic."""
    return column.option is not None and column.option.kind is Kind.EXCLUDED


class ColumnOptions:
    """The options of all columns; the configuration bounds their number."""

    def __init__(self, source: Source) -> None:
        salt = source.hash_salt.get_secret_value().encode() if source.hash_salt else NO_SALT
        hashed = ValueType(Kind.HASHED, "string", "string", salt=salt)
        self._options: list[tuple[str, str, ValueType]] = [
            *(("as_text", pattern, AS_TEXT) for pattern in source.as_text),
            *(("exclude", pattern, EXCLUDED) for pattern in source.exclude),
            *(
                ("mask", pattern, ValueType(Kind.MASKED, "string", "string", keep=keep))
                for pattern, keep in source.mask.items()
            ),
            *(("hash", pattern, hashed) for pattern in source.hash),
        ]

    def applied(self, relation: Relation, key_columns: Sequence[int]) -> Relation:
        """Return the relation with the `option` of each column.

        Raises ConfigError TR-129 for a column with two options, TR-128 for a key column that would be hidden.
        """
        if not self._options:
            return relation
        columns = list(relation.columns)
        for i, column in enumerate(columns):
            name = f"{relation.qualified_name}.{column.name}"
            option = self.of(name)
            if option is not None and option.kind in HIDING and i in key_columns:
                raise ConfigError(
                    "TR-128",
                    f'column "{column.name}" is part of the key of table "{relation.qualified_name}"'
                    " and cannot be excluded, masked or hashed",
                    detail="The key identifies a row on the topic and in every view.",
                    hint=f'Remove "{name}" from exclude, mask and hash under [source], or exclude the table:'
                    f' tables = [..., "!{relation.qualified_name}"].',
                )
            columns[i] = replace(column, option=option)
        return replace(relation, columns=tuple(columns))

    def of(self, name: str) -> ValueType | None:
        """Return the option of ``schema.table.column``, or None. Raises ConfigError TR-129 if it has two."""
        found = [(key, pattern, option) for key, pattern, option in self._options if fnmatchcase(name, pattern)]
        if not found:
            return None
        first, *others = found
        for other in others:
            if other[2] != first[2]:
                raise ConfigError(
                    "TR-129",
                    f'column "{name}" has two options in the configuration',
                    detail=f'It matches source.{first[0]} "{first[1]}" and source.{other[0]} "{other[1]}".',
                    hint="Narrow the patterns under [source], so that only one of them matches the column.",
                )
        return first[2]

    def unmatched(self, relations: Iterable[Relation]) -> list[tuple[str, str, str | None]]:
        """Return key, pattern and nearest column name for each pattern that matches no column of `relations`."""
        names = [f"{relation.qualified_name}.{column.name}" for relation in relations for column in relation.columns]
        return [
            (f"source.{key}", pattern, next(iter(difflib.get_close_matches(pattern, names, n=1)), None))
            for key, pattern, _ in self._options
            if not any(fnmatchcase(name, pattern) for name in names)
        ]
