"""Partitions and sort order of a table, in the words that Spark has for Iceberg: ``days(placed)``, ``placed DESC``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

_COLUMN: Final = r"(?:`(?:[^`]|``)+`|[^\W\d]\w*)"
_PARTITION: Final = re.compile(
    rf"(?P<plain>{_COLUMN})"
    rf"|(?P<transform>identity|years|months|days|hours)\s*\(\s*(?P<column>{_COLUMN})\s*\)"
    rf"|(?P<sized>bucket|truncate)\s*\(\s*(?P<size>[1-9]\d{{0,8}})\s*,\s*(?P<of>{_COLUMN})\s*\)"
)
_SORT: Final = re.compile(rf"(?P<column>{_COLUMN})(?:\s+(?P<way>ASC|DESC))?(?:\s+NULLS\s+(?P<nulls>FIRST|LAST))?", re.I)


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A partition field; `size` is the number of buckets, or the width of a truncation."""

    transform: str
    column: str
    size: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the field that `text` describes. ValueError, without the text, if it describes none."""
        found = _PARTITION.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                "this is no partition: write a column, or years, months, days or hours of it, for example"
                ' "days(placed)", or "bucket(16, id)", "truncate(4, name)"; other characters of a column in backquotes'
            )
        if found["sized"]:
            return cls(found["sized"], _name(found["of"]), int(found["size"]))
        return cls(found["transform"] or "identity", _name(found["plain"] or found["column"]))

    def __str__(self) -> str:
        column = _quoted(self.column)
        return f"{self.transform}({column if self.size is None else f'{self.size}, {column}'})"


@dataclass(frozen=True, slots=True)
class SortField:
    """A column that rows are sorted by within a file."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the field that `text` describes; NULLs are first if ascending by default. ValueError if none."""
        found = _SORT.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                "this is no sort order: write a column, with ASC or DESC and NULLS FIRST or NULLS LAST if needed,"
                ' for example "placed DESC"; other characters of a column in backquotes'
            )
        descending = (found["way"] or "ASC").upper() == "DESC"
        nulls_first = not descending if found["nulls"] is None else found["nulls"].upper() == "FIRST"
        return cls(_name(found["column"]), descending, nulls_first)

    def __str__(self) -> str:
        way, nulls = "DESC" if self.descending else "ASC", "FIRST" if self.nulls_first else "LAST"
        return f"{_quoted(self.column)} {way} NULLS {nulls}"


def _name(text: str) -> str:
    return text[1:-1].replace("``", "`") if text.startswith("`") else text


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
