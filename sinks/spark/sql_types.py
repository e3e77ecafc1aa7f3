"""Quote Spark SQL names and parse types (``array<struct<a:int,b:decimal(10,2)>>``), without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator


def quote(name: str) -> str:
    """Return a name quoted for Spark SQL, with any characters."""
    return "`" + name.replace("`", "``") + "`"


def item_of(kind: str) -> str | None:
    """Return the element type of an array; None for any other type."""
    return kind[len("array<") : -1] if kind.startswith("array<") else None


def fields_of(kind: str) -> dict[str, str] | None:
    """Return the fields of a struct, name → type; None for any other type."""
    if not kind.startswith("struct<"):
        return None
    parts = (part.partition(":") for part in _parts(kind[len("struct<") : -1]))
    return {name: of for name, _, of in parts}


def base_of(kind: str) -> str:
    """Return the type's name without parameters: ``decimal`` for ``decimal(10,2)``."""
    return re.split(r"[(<]", kind, maxsplit=1)[0]


def _parts(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
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
