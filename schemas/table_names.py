"""Names of tables as people write them: ``schema.table``, with PostgreSQL's quotes around names that have dots.

    public.orders          schema "public", table "orders"
    "freight.v2"."a.b"     schema "freight.v2", table "a.b"
    freight.v2.a.b         several readings: `candidates` returns them, `resolve` chooses an existing one

Letters are as PostgreSQL stores them, with quotes or without. Inside of quotes, a quote is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

_PART_OF_NAME: Final = r'(?:"(?:[^"]|"")+"|[^".][^.]*)'
_QUOTED: Final = re.compile(rf'(?=.*(?:^|\.)"){_PART_OF_NAME}(?:\.{_PART_OF_NAME})*', re.DOTALL)
"""A name of which at least one part is in quotes."""


def parts_of(name: str) -> list[str]:
    """Return the parts of a name: it is split at the dots outside of quotes, and quotes are removed."""
    if not _QUOTED.fullmatch(name):
        return name.split(".")
    parts: list[str] = re.findall(_PART_OF_NAME, name, re.DOTALL)
    return [part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts]


def split_name(name: str) -> tuple[str, str]:
    """Return (schema, table); the schema ends at the first dot outside of quotes, and is "" if there is none."""
    parts = parts_of(name)
    return ("", parts[0]) if len(parts) == 1 else (parts[0], ".".join(parts[1:]))


def written(schema: str, table: str) -> str:
    """Return the name of which `split_name` returns these two, with quotes only where it needs them."""
    plain = f"{schema}.{table}"
    if split_name(plain) == (schema, table):
        return plain
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, table))


def qualified(name: str) -> str:
    """Return the name as in records and messages: ``schema.table`` without quotes; the default is public."""
    schema, table = split_name(name)
    return f"{schema or 'public'}.{table}"


def candidates(name: str) -> list[tuple[str, str]]:
    """Return each (schema, table) that a name can mean: with quotes one, else one for each dot, and public."""
    if _QUOTED.fullmatch(name):
        schema, table = split_name(name)
        return [(schema or "public", table)]
    dots = [n for n, character in enumerate(name) if character == "." and 0 < n < len(name) - 1]
    return [*((name[:dot], name[dot + 1 :]) for dot in dots), ("public", name)]


def resolve(name: str, exists: Callable[[str, str], bool]) -> tuple[str, str]:
    """Return the first candidate that exists, or the meaning of `split_name` if none does."""
    found = next((each for each in candidates(name) if exists(*each)), None)
    schema, table = split_name(name)
    return found or (schema or "public", table)


def known_name(name: str, known: Iterable[str]) -> str:
    """Return the one of `known` (``schema.table`` without quotes) that a name means, or itself without quotes."""
    known = set(known)
    readings = dict.fromkeys(f"{schema}.{table}" for schema, table in candidates(name))
    return next((each for each in readings if each in known), qualified(name))
