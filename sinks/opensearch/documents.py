"""Convert rows to search documents and back; documents are exact, indexed values are only for search.

Numbers stay numbers; decimals, dates and timestamps are text in one fixed form, bytes base64. A value that the index
cannot hold (a date beyond its range, NaN) remains unindexed (`ignore_malformed`), but stays in the document.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.errors import ConfigError
from tailrace.sinks.spark.sql_types import base_of, fields_of, item_of, quote
from tailrace.sinks.target.protocol import DELETED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_METADATA_FIELDS: Final = frozenset(
    {
        "_doc_count",
        "_feature",
        "_field_names",
        "_id",
        "_ignored",
        "_index",
        "_nested_path",
        "_primary_term",
        "_routing",
        "_seq_no",
        "_size",
        "_source",
        "_tier",
        "_type",
        "_version",
    }
)
MAX_ID_BYTES: Final = 512  # OpenSearch's own limit

INTEGERS: Final = frozenset(("tinyint", "smallint", "int", "bigint"))
_KEYWORD: Final = {"type": "keyword", "ignore_above": 512}
_FIELD_TYPES: Final[dict[str, dict[str, Any]]] = {
    "boolean": {"type": "boolean"},
    # One field type for all, so that an int can become a bigint.
    **{kind: {"type": "long"} for kind in INTEGERS},
    "float": {"type": "float", "ignore_malformed": True},
    "double": {"type": "double", "ignore_malformed": True},
    "decimal": {"type": "keyword", "fields": {"number": {"type": "double", "ignore_malformed": True}}},
    "string": {"type": "text", "fields": {"keyword": _KEYWORD}},
    "binary": {"type": "binary"},
    "date": {"type": "date", "ignore_malformed": True},
    "timestamp": {"type": "date", "ignore_malformed": True},
    "timestamp_ntz": {"type": "date", "ignore_malformed": True},
    "map": {"type": "object", "enabled": False},
}


def field_of(column: str) -> str:
    """Return the document field of a column; dots (nesting) and OpenSearch's reserved names are escaped."""
    field = column.replace(".", "_x2E")
    return "_x5F" + field[1:] if field in _METADATA_FIELDS else field


def mapping(types: Mapping[str, str], key: Sequence[str]) -> dict[str, Any]:
    """Return the index mapping for columns of these Spark types; `_meta` records the types for readers.

    ConfigError (TR-533) for a type that has no document field, such as an interval; no table column has such a type.
    """
    return {
        "dynamic": False,
        "_meta": {"columns": dict(types), "key": list(key)},
        "properties": {field_of(column): _field_type(column, kind) for column, kind in types.items()},
    }


def _field_type(column: str, kind: str) -> dict[str, Any]:
    """Return a column's field mapping; structs in arrays are `nested`, so their fields match together."""
    item, in_array = kind, False
    while (inner := item_of(item)) is not None:
        item, in_array = inner, True
    fields = fields_of(item)
    if fields is None:
        if base_of(item) not in _FIELD_TYPES:
            raise ConfigError(
                "TR-533",
                f'column "{column}" has type {kind}, which OpenSearch does not support',
                hint="Cast it in the view's `query`, for example to string.",
            )
        return _FIELD_TYPES[base_of(item)]
    properties = {field_of(name): _field_type(f"{column}.{name}", of) for name, of in fields.items()}
    return {"type": "nested" if in_array else "object", "dynamic": False, "properties": properties}


def documents(changes: DataFrame, key: Sequence[str], routing: str | None = None) -> DataFrame:
    """Return the columns `id` and `document` (JSON text; null for a deleted row), computed in Spark.

    With `routing`, a key column, also `routing`: its value as text, hashed if it is long; null for NULL.
    """
    from pyspark.sql import functions as F

    columns = [name for name in changes.columns if name != DELETED]
    gone = F.col(DELETED) if DELETED in changes.columns else F.lit(False)
    return changes.select(
        _document_id(key_text(changes, key)).alias("id"),
        F.when(~gone, document(changes, columns)).alias("document"),
        *(() if routing is None else (_document_id(_plain_text(changes, routing)).alias("routing"),)),
    )


def _plain_text(rows: DataFrame, column: str) -> Column:
    """Return a value as the document has it, without the quotes of a JSON text."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType

    (value,) = _values(rows, [column])
    if isinstance(rows.schema[column].dataType, StringType):
        return value
    item = F.to_json(F.array(value))
    return F.when(value.isNotNull(), F.regexp_replace(item, r'^\["?|"?\]$', ""))


def key_text(rows: DataFrame, key: Sequence[str]) -> Column:
    """Return the canonical key: its values as a JSON array."""
    from pyspark.sql import functions as F

    items = [F.to_json(F.array(value)) for value in _values(rows, key)]
    inner = [F.substring(item, F.lit(2), F.length(item) - 2) for item in items]
    return F.concat(F.lit("["), F.concat_ws(",", *inner), F.lit("]"))


def document(rows: DataFrame, columns: Sequence[str]) -> Column:
    """Return a row's document as JSON text. It includes NULL values, to show that the column exists."""
    from pyspark.sql import functions as F

    fields = (value.alias(field_of(name)) for name, value in zip(columns, _values(rows, columns), strict=True))
    return F.to_json(F.struct(*fields), {"ignoreNullFields": "false"})


def _values(rows: DataFrame, columns: Sequence[str]) -> list[Column]:
    from pyspark.sql import functions as F

    types = {field.name: field.dataType for field in rows.schema}
    return [_value(F.col(quote(name)), types[name]) for name in columns]


def _document_id(text: Column) -> Column:
    """Return the canonical key, hashed if it is too long for an id."""
    from pyspark.sql import functions as F

    hashed = F.concat(F.lit("sha256:"), F.sha2(text.cast("binary"), 256))
    return F.when(F.octet_length(text) > MAX_ID_BYTES, hashed).otherwise(text)


def document_id(text: str) -> str:
    """Return a text as an id, hashed if it is too long for one, as in Spark."""
    content = text.encode()
    return text if len(content) <= MAX_ID_BYTES else f"sha256:{hashlib.sha256(content).hexdigest()}"


def _value(value: Column, kind: DataType) -> Column:
    """Convert a value to the form that JSON represents exactly."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, DateType, DecimalType, StructType, TimestampNTZType, TimestampType

    if isinstance(kind, ArrayType):
        return F.transform(value, lambda item: _value(item, kind.elementType))
    if isinstance(kind, StructType):
        fields = (_value(value[f.name], f.dataType).alias(field_of(f.name)) for f in kind)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, DecimalType):
        return value.cast("string")
    if isinstance(kind, DateType):
        return _infinite(value.cast("string"), F.unix_date(value), 31)
    if isinstance(kind, TimestampType):
        text = F.concat(F.replace(value.cast("string"), F.lit(" "), F.lit("T")), F.lit("Z"))
        return _infinite(text, F.unix_micros(value), 63)
    if isinstance(kind, TimestampNTZType):
        text = F.replace(value.cast("string"), F.lit(" "), F.lit("T"))
        # The session's time zone is UTC, so the cast does not shift the time.
        return _infinite(text, F.unix_micros(value.cast("timestamp")), 63)
    return value


def _infinite(text: Column, number: Column, bits: int) -> Column:
    from pyspark.sql import functions as F

    return (
        F.when(number == F.lit((1 << bits) - 1), F.lit("infinity"))
        .when(number == F.lit(-(1 << bits)), F.lit("-infinity"))
        .otherwise(text)
    )


def plain_value(value: Any, kind: str) -> Any:
    """Convert a document's value back to the topic's form: Avro without logical types."""
    if value is None:
        return None
    item, fields = item_of(kind), fields_of(kind)
    if item is not None:
        return [plain_value(each, item) for each in value]
    if fields is not None:
        return {name: plain_value(value.get(field_of(name)), of) for name, of in fields.items()}
    base = base_of(kind)
    if base == "decimal":
        return unscaled_bytes(value)
    if base == "binary":
        return base64.b64decode(value)
    if base == "float":
        return struct.unpack("f", struct.pack("f", float(value)))[0]
    if base == "double":
        return float(value)
    if base == "date":
        return _days(value) if "infinity" not in value else _infinity(value, 31)
    if base in ("timestamp", "timestamp_ntz"):
        return _micros(value) if "infinity" not in value else _infinity(value, 63)
    return value


def unscaled_bytes(text: str) -> bytes:
    """Return a decimal's unscaled value in Avro's form: big-endian two's complement."""
    unscaled = int(text.replace(".", ""))
    bits = (~unscaled if unscaled < 0 else unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def _infinity(text: str, bits: int) -> int:
    return -(1 << bits) if text.startswith("-") else (1 << bits) - 1


_DATE = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)")
_CLOCK = re.compile(r"T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?Z?")


def _days(text: str) -> int:
    """Return the days since 1970-01-01 of an ISO date of any year; year 0 is 1 BC."""
    match = _DATE.match(text)
    if match is None:
        raise ValueError("not a date as documents have it")
    year, month, day = map(int, match.groups())
    # Counted from 0000-03-01, so that a leap day is the last day of its year.
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _micros(text: str) -> int:
    match = _CLOCK.search(text)
    if match is None:
        raise ValueError("not a timestamp as documents have it")
    hour, minute, second, fraction = match.groups()
    seconds = (int(hour) * 60 + int(minute)) * 60 + int(second)
    return (_days(text) * 86_400 + seconds) * 1_000_000 + int((fraction or "").ljust(6, "0"))
