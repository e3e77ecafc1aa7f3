"""Where a generation of a view is in the catalog."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a generation: `table` in the catalog and `ref`, its branch; the live one is main."""

    table: str
    ref: str = "main"
