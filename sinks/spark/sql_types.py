"""Spark's names without Spark: columns in SQL, and types, ``array<struct<a:int,b:decimal(10,2)>>``, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator


def quote(name: str) -> str:
    """Return a name as Spark SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def item_of(kind: str) -> str | None:
    """Return what an array holds; None for any other type."""
    return kind[len("array<") : -1] if kind.startswith("array<") else None


def fields_of(kind: str) -> dict[str, str] | None:
    """Return a struct's fields, name → type; None for any other type."""
    if not kind.startswith("struct<"):
        return None
    parts = (part.partition(":") for part in _parts(kind[len("struct<") : -1]))
    return {name: of for name, _, of in parts}


def base_of(kind: str) -> str:
    """Return the type's name alone: ``decimal`` of ``decimal(10,2)``."""
    return re.split(r"[(<]", kind, maxsplit=1)[0]


def _parts(text: str) -> Iterator[str]:
    """Split at the commas that stand in no bracket."""
    depth = start = 0
    for place, character in enumerate(text):
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and not depth:
            yield text[start:place]
            start = place + 1
    if text:
        yield text[start:]
