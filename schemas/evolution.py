"""Check whether readers of a topic can continue from one shape of its records to the next.

A registry's BACKWARD rule checks whether the new schema reads old records. It compares only Avro's types, so it accepts
a timestamp as a timestamptz (both are a long), or a decimal of another scale. Our own check covers only the schemas
that we write and is stricter: a registry accepts all that it accepts, and every old value reads as the same value
(Spark and Iceberg widen in the same way).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

_WIDER: Final = {("int", "long"), ("float", "double"), ("uuid", "string")}


@dataclass(frozen=True, slots=True)
class Break:
    """A column with incompatible forms in old and new records; `column` is empty for the key."""

    column: str
    old: str
    new: str

    def __str__(self) -> str:
        what = f'column "{self.column}"' if self.column else "the key"
        return f"{what}: {self.old} → {self.new}"


def breaks(old: str, new: str) -> list[Break]:
    """Return the incompatibilities for a reader with the envelope `new` of records written with `old`.

    Columns may be added and dropped, because all are nullable with a default.
    """
    before, after = _columns(row_record(old)), _columns(row_record(new))
    return [
        Break(column, _words(before[field][1]), _words(avro))
        for field, (column, avro) in after.items()
        if field in before and not (before[field][0] == column and _reads(before[field][1], avro))
    ]


def key_breaks(old: str, new: str) -> list[Break]:
    """Return the difference of two key schemas, if any.

    Any difference counts, because a row's old key would stay on the topic beside its new one.
    """
    if old == new:
        return []
    before, after = (_columns(orjson.loads(schema)) for schema in (old, new))
    return [Break("", *(", ".join(f"{c} {_words(a)}" for c, a in each.values()) for each in (before, after)))]


def column_names(envelope: str) -> list[str]:
    """Return the PostgreSQL column names of an envelope's row."""
    return [column for column, _ in _columns(row_record(envelope)).values()]


def key_column_names(key: str) -> list[str]:
    """Return the PostgreSQL column names of a key."""
    return [column for column, _ in _columns(orjson.loads(key)).values()]


def row_record(envelope: str) -> dict[str, Any]:
    """Return the row's record schema in an envelope: `before` has it in full, `after` only its name."""
    before = next(field for field in orjson.loads(envelope)["fields"] if field["name"] == "before")
    row: dict[str, Any] = next(branch for branch in before["type"] if branch != "null")
    return row


def envelope_until_row(envelope: str) -> str:
    """Return an envelope's schema without the fields behind `after`; Avro's binary form can be read up to any field."""
    whole = orjson.loads(envelope)
    last = next(number for number, field in enumerate(whole["fields"]) if field["name"] == "after")
    return orjson.dumps({**whole, "fields": whole["fields"][: last + 1]}).decode()


def _columns(record: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return field → (column, type of a value that is not null)."""
    return {field["name"]: (field.get("column", field["name"]), _value(field["type"])) for field in record["fields"]}


def _value(avro: Any) -> Any:
    return next(branch for branch in avro if branch != "null") if isinstance(avro, list) else avro


def _reads(old: Any, new: Any) -> bool:
    if old == new or (_words(old), _words(new)) in _WIDER:
        return True
    if _is_decimal(old) and _is_decimal(new):
        return bool(old["scale"] == new["scale"] and old["precision"] <= new["precision"])
    return False


def _is_decimal(avro: Any) -> bool:
    return isinstance(avro, dict) and avro.get("logicalType") == "decimal"


def _words(avro: Any) -> str:
    if isinstance(avro, str):
        return avro
    if _is_decimal(avro):
        return f"decimal({avro['precision']},{avro['scale']})"
    if avro["type"] == "array":
        return f"array of {_words(_value(avro['items']))}"
    return str(avro.get("logicalType", avro["type"]))
