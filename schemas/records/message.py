"""A logical message (`pg_logical_emit_message`) in Debezium's envelope; the record key is its prefix."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import orjson

from tailrace.schemas.avro import SOURCE_FIELDS, SOURCE_NAME
from tailrace.schemas.envelope import framing

_NAMESPACE: Final = "io.debezium.connector.postgresql"

_KEY: Final[dict[str, Any]] = {
    "type": "record",
    "name": f"{_NAMESPACE}.MessageKey",
    "fields": [{"name": "prefix", "type": "string"}],
}
_VALUE: Final[dict[str, Any]] = {
    "type": "record",
    "name": f"{_NAMESPACE}.MessageValue",
    "fields": [
        {
            "name": "message",
            "type": {
                "type": "record",
                "name": f"{_NAMESPACE}.Message",
                "fields": [{"name": "prefix", "type": "string"}, {"name": "content", "type": "bytes"}],
            },
        },
        {"name": "source", "type": {"type": "record", "name": SOURCE_NAME, "fields": SOURCE_FIELDS}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
KEY_SCHEMA: Final = orjson.dumps(_KEY).decode()
VALUE_SCHEMA: Final = orjson.dumps(_VALUE).decode()


def message_key(schema_id: int, prefix: str) -> bytes:
    """Return the framed key."""
    return _framed(schema_id, KEY_SCHEMA, {"prefix": prefix})


def message_value(schema_id: int, prefix: str, content: bytes, source: dict[str, Any], ts_ms: int) -> bytes:
    """Return the framed value; `source` is as in a table's record, with empty schema and table names."""
    message = {"prefix": prefix, "content": content}
    return _framed(schema_id, VALUE_SCHEMA, {"message": message, "source": source, "op": "m", "ts_ms": ts_ms})


def _framed(schema_id: int, schema: str, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    out.write(framing(schema_id))
    _writer(schema)(out, record)
    return out.getvalue()


@cache
def _writer(schema: str) -> Callable[[io.BytesIO, dict[str, Any]], None]:
    """Return the writer of one of the two schemas."""
    # most daemons write no message: the first change after a start would wait for the import
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(orjson.loads(schema))
    return lambda out, record: schemaless_writer(out, parsed, record)
