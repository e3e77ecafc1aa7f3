"""Make Avro schemas from a table's shape: Debezium's envelope, with names that Avro allows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from tailrace.schemas.relation import Relation
from tailrace.schemas.types import Column, Kind, TypeInfo, value_type

SOURCE_NAME: Final = "io.debezium.connector.postgresql.Source"

_NULL_STRING: Final = {"type": ["null", "string"], "default": None}
_NULL_LONG: Final = {"type": ["null", "long"], "default": None}

SOURCE_FIELDS: Final[list[dict[str, Any]]] = [
    {"name": "version", "type": "string"},
    {"name": "connector", "type": "string"},
    {"name": "name", "type": "string"},
    {"name": "ts_ms", "type": "long"},
    {"name": "snapshot", **_NULL_STRING},
    {"name": "db", "type": "string"},
    {"name": "schema", "type": "string"},
    {"name": "table", "type": "string"},
    {"name": "txId", **_NULL_LONG},
    {"name": "xmin", **_NULL_LONG},
    {"name": "commit_lsn", "type": "long"},
    {"name": "lsn", **_NULL_LONG},
    {"name": "ordinal", "type": "long"},
    {"name": "sequence", **_NULL_STRING},
]
"""Debezium's fields and two of ours. Fields that differ per change are last, so that the others are encoded once per
transaction."""


def avro_name(name: str) -> str:
    """Return `name` with each character that Avro forbids as ``_xHH``; legal names stay unchanged."""
    legal = re.sub(r"[^A-Za-z0-9_]", lambda match: f"_x{ord(match[0]):02X}", name)
    return legal if re.match(r"[A-Za-z_]", legal) else "_" + legal


def field_names(columns: Sequence[Column]) -> list[str]:
    """Return the field name of each column; a numeric suffix distinguishes equal ones."""
    names: list[str] = []
    for column in columns:
        name = base = avro_name(column.name)
        n = 1
        while name in names:
            n += 1
            name = f"{base}_{n}"
        names.append(name)
    return names


def value_schema(relation: Relation, types: Mapping[int, TypeInfo], topic: str) -> str:
    """Return the JSON of the envelope's schema for rows of `relation`, without excluded columns."""
    namespace = _namespace(topic)
    values = [(column, value_type(column, types)) for column in relation.columns]
    shown = [(column, value) for column, value in values if value.kind is not Kind.EXCLUDED]
    row = {
        "type": "record",
        "name": "Value",
        "namespace": namespace,
        "fields": [
            _field(name, column, ["null", value.avro]) | {"default": None}
            for name, (column, value) in zip(field_names([column for column, _ in shown]), shown, strict=True)
        ],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": namespace,
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", f"{namespace}.Value"], "default": None},
            {"name": "source", "type": {"type": "record", "name": SOURCE_NAME, "fields": SOURCE_FIELDS}},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", **_NULL_LONG},
        ],
    }
    return orjson.dumps(envelope).decode()


def key_schema(columns: Sequence[Column], types: Mapping[int, TypeInfo], topic: str) -> str:
    """Return the JSON of the key's schema; no part of a key is null."""
    record = {
        "type": "record",
        "name": "Key",
        "namespace": _namespace(topic),
        "fields": [
            _field(name, column, value_type(column, types).avro)
            for name, column in zip(field_names(columns), columns, strict=True)
        ],
    }
    return orjson.dumps(record).decode()


def _field(name: str, column: Column, avro: Any) -> dict[str, Any]:
    """Return a column's field; if Avro forbids the column's name, the property `column` has it."""
    return {"name": name, "type": avro} | ({"column": column.name} if name != column.name else {})


def _namespace(topic: str) -> str:
    return ".".join(avro_name(part) for part in topic.split("."))


def without_logical_types(avro: Any) -> Any:
    """Return the schema without logical types: Python's dates end in year 9999, PostgreSQL's do not."""
    if isinstance(avro, list):
        return [without_logical_types(branch) for branch in avro]
    if isinstance(avro, dict):
        return {
            name: without_logical_types(value) if name in ("type", "items", "values", "fields") else value
            for name, value in avro.items()
            if name not in ("logicalType", "precision", "scale")
        }
    return avro
