"""The documents of a small batch, made in this process; `sinks.opensearch.documents` describes them, and is the judge.

A Spark job that converts a hundred rows takes longer than the request that writes them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import orjson

from tailrace.sinks.opensearch.documents import document_id, field_of
from tailrace.sinks.target.protocol import DELETED

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_ESCAPED: Final = re.compile("[\x00-\x07\x0b\x0e-\x1f]")
"""Characters that Spark and orjson escape in different ways."""

Document = tuple[str, str | None] | tuple[str, str | None, str | None]
"""An id, the document (None for a deleted row), and the routing if the index has one."""


class NotPlain(Exception):
    """Spark alone knows the exact text of a value or a type."""


def few_documents(rows: Any, types: StructType, key: Sequence[str], routing: str | None = None) -> list[Document]:
    """Return what `documents` computes for an Arrow table with columns of these Spark types.

    NotPlain for floating-point numbers, maps and intervals, for times beyond the years 1 to 9999 (infinity is), and for
    texts with control characters.
    """
    forms = {field.name: _form(field.dataType) for field in types if field.name != DELETED}
    fields = {name: field_of(name) for name in forms}
    found: list[Document] = []
    try:
        for row in rows.to_pylist():
            values = {name: None if row[name] is None else form(row[name]) for name, form in forms.items()}
            number = document_id(_json([values[name] for name in key]))
            is_deleted = row.get(DELETED, False)
            document = None if is_deleted else _json({fields[name]: value for name, value in values.items()})
            if routing is None:
                found.append((number, document))
            else:
                found.append((number, document, _routing(values[routing])))
    except (ValueError, OverflowError) as error:
        raise NotPlain(f"a value is beyond the range of Python: {type(error).__name__}") from None
    return found


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _routing(value: Any) -> str | None:
    if value is None:
        return None
    return document_id(value if isinstance(value, str) else _json(value))


def _form(kind: DataType) -> Callable[[Any], Any]:
    """Return the function that converts a value, which is not None, to its form in a document."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        item = _form(kind.elementType)
        return lambda values: [None if value is None else item(value) for value in values]
    if isinstance(kind, StructType):
        inner = [(field.name, field_of(field.name), _form(field.dataType)) for field in kind]
        return lambda value: {field: None if value[name] is None else form(value[name]) for name, field, form in inner}
    found = _FORMS.get(kind.typeName())
    if found is None:
        raise NotPlain(f"type {kind.simpleString()}")
    return found


def _same(value: Any) -> Any:
    return value


def _text(value: str) -> str:
    if _ESCAPED.search(value):
        raise NotPlain("a text with a control character")
    return value


def _plain_decimal(value: Decimal) -> str:
    return format(value, "f")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _date(value: date) -> str:
    return value.isoformat()


def _local_time(value: datetime) -> str:
    text = value.replace(tzinfo=None).isoformat()
    return text.rstrip("0") if value.microsecond else text


def _time(value: datetime) -> str:
    return f"{_local_time(value)}Z"


_FORMS: Final[dict[str, Callable[[Any], Any]]] = {
    "boolean": _same,
    "byte": _same,
    "short": _same,
    "integer": _same,
    "long": _same,
    "string": _text,
    "decimal": _plain_decimal,
    "binary": _base64,
    "date": _date,
    "timestamp": _time,
    "timestamp_ntz": _local_time,
}
