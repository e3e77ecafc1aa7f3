"""Value kind of each column, from the topic's own schema: a comparison needs no catalog."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import orjson

from tailrace.schemas.evolution import row_record


class Kind(Enum):
    """The treatment of a value; the names follow Avro, because the topic's schema determines it."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    BYTES = "bytes"
    ARRAY = "array"
    VECTOR = "vector"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Form:
    """The type of a column on the topic."""

    kind: Kind
    scale: int = 0
    item: Form | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A column: `name` on the topic, `column` in PostgreSQL; they differ if Avro forbids the name."""

    name: str
    column: str
    form: Form


_LOGICAL: Final = {
    "date": Kind.DATE,
    "time-micros": Kind.TIME,
    "local-timestamp-micros": Kind.TIMESTAMP,
    "timestamp-micros": Kind.TIMESTAMPTZ,
}
_PRIMITIVE: Final = {
    "int": Kind.NUMBER,
    "long": Kind.NUMBER,
    "boolean": Kind.BOOLEAN,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "bytes": Kind.BYTES,
    "string": Kind.TEXT,
}


def form_of(avro: Any) -> Form:
    """Return the form for an Avro type, nullable or not."""
    if isinstance(avro, list):
        return form_of(next(branch for branch in avro if branch != "null"))
    if not isinstance(avro, dict):
        return Form(_PRIMITIVE[avro])
    logical = avro.get("logicalType")
    if logical == "decimal":
        return Form(Kind.DECIMAL, scale=avro.get("scale", 0))
    if logical in _LOGICAL:
        return Form(_LOGICAL[logical])
    if avro["type"] == "array":
        # pgvector's items are never null, an array's may be; their texts have different brackets
        nullable = isinstance(avro["items"], list)
        return Form(Kind.ARRAY if nullable else Kind.VECTOR, item=form_of(avro["items"]))
    if avro["type"] == "map":
        return Form(Kind.MAP)
    return form_of(avro["type"])


def key_fields(schema: str) -> list[Field]:
    """Return the columns of a key's schema."""
    return [_field(field) for field in orjson.loads(schema)["fields"]]


def row_fields(schema: str) -> list[Field]:
    """Return the columns of the row in an envelope's schema."""
    return [_field(field) for field in row_record(schema)["fields"]]


def _field(field: dict[str, Any]) -> Field:
    return Field(field["name"], field.get("column", field["name"]), form_of(field["type"]))
