"""The documents of rows in this process, by Arrow; `sinks.opensearch.documents` describes them, and is the judge.

A Spark job that converts a hundred rows takes longer than the request that writes them, and an object for each of
millions of values more than the index needs. Nothing here makes one, but for bytes, tiny decimals and long ids.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from tailrace.sinks.opensearch.bulk import CHUNK_BYTES
from tailrace.sinks.opensearch.documents import MAX_ID_BYTES, document_id, field_of
from tailrace.sinks.target.protocol import DELETED

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NAMED: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONTROLS: Final = {chr(code): _NAMED.get(chr(code), f"\\u{code:04X}") for code in range(32)}
"""The control characters, and how JSON texts of Spark have them."""


class NotPlain(Exception):
    """Spark alone knows the exact text of a value or a type."""


def arrow_documents(rows: Any, types: StructType, key: Sequence[str], routing: str | None = None) -> Any:
    """Return what `documents` computes for an Arrow table with columns of these Spark types, as an Arrow table.

    The text of a double may be another one of the same number. NotPlain for floats, maps and intervals, for doubles in
    a key, and for times beyond the years 1 to 9999 (infinity is not).
    """
    kinds = {field.name: field.dataType for field in types if field.name != DELETED}
    columns = {name: rows[name].combine_chunks() for name in kinds}
    if any(kinds[name].typeName() == "double" for name in (*key, routing) if name is not None):
        raise NotPlain("a key whose text is not that of Spark")
    values = {name: _filled(_json(columns[name], kind)) for name, kind in kinds.items()}
    document = _object([(name, values[name]) for name in kinds], len(rows))
    if DELETED in rows.column_names:
        document = pc.if_else(rows[DELETED].combine_chunks(), pa.scalar(None, pa.string()), document)
    found = {"id": _ids(_joined("[", *_between(",", [values[name] for name in key]), "]")), "document": document}
    if routing is not None:
        found["routing"] = _ids(_plain(columns[routing], kinds[routing]))
    return pa.table(found)


def arrow_bodies(documents: Any, version: int) -> Iterator[bytes]:
    """Yield the bulk requests that index or delete documents under an external version, as `bulk.bodies` does."""
    number, document = documents["id"].combine_chunks(), documents["document"].combine_chunks()
    routed: Any = ""
    if "routing" in documents.column_names:
        routing = documents["routing"].combine_chunks()
        routing = pc.if_else(pc.equal(routing, ""), pa.scalar(None, pa.string()), routing)
        routed = pc.coalesce(_joined(',"routing":', _quoted(routing)), "")
    lines = _joined(
        pc.if_else(pc.is_valid(document), '{"index":{"_id":', '{"delete":{"_id":'),
        _quoted(number),
        routed,
        f',"version":{version},"version_type":"external_gte"}}}}\n',
        pc.coalesce(_joined(document, "\n"), ""),
    )
    _, ends, data = lines.buffers()
    offsets = memoryview(ends).cast("i")[lines.offset : lines.offset + len(lines) + 1]
    start = 0
    while start < len(lines):
        stop = max(start + 1, bisect_right(offsets, offsets[start] + CHUNK_BYTES) - 1)
        yield data[offsets[start] : offsets[stop]].to_pybytes()
        start = stop


def _json(values: Any, kind: DataType) -> Any:
    """Return values as JSON texts, null for NULL."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(values), 0))
        items = _filled(_json(values.flatten(), kind.elementType))
        lists = pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), items)
        return _where_valid(values, _joined("[", pc.binary_join(lists, ","), "]"))
    if isinstance(kind, StructType):
        fields = zip(kind, values.flatten(), strict=True)
        items = [(field.name, _filled(_json(of, field.dataType))) for field, of in fields]
        return _where_valid(values, _object(items, len(values)))
    name = kind.typeName()
    if name == "string":
        return _quoted(values)
    text = _plain(values, kind)
    return text if name in _UNQUOTED else _joined('"', text, '"')


def _plain(values: Any, kind: DataType) -> Any:
    """Return values of a simple type as text, without the quotes that JSON needs for some of them."""
    text = _TEXTS.get(kind.typeName())
    if text is None:
        raise NotPlain(f"type {kind.simpleString()}")
    return text(values)


def _object(fields: Sequence[tuple[str, Any]], rows: int) -> Any:
    """Return the JSON objects of fields."""
    named = [(orjson.dumps(field_of(name)).decode(), texts) for name, texts in fields]
    parts = [part for name, texts in named for part in (f",{name}:", texts)]
    return _joined("{" + parts[0][1:], *parts[1:], "}") if parts else pa.array(["{}"] * rows, pa.string())


def _joined(*parts: Any) -> Any:
    """Return the concatenation of each row's parts, null if one is; a text is that of all rows."""
    return pc.binary_join_element_wise(*parts, "")


def _between(text: str, parts: Sequence[Any]) -> list[Any]:
    return [each for part in parts for each in (text, part)][1:]


def _filled(texts: Any) -> Any:
    return pc.fill_null(texts, "null")


def _where_valid(values: Any, texts: Any) -> Any:
    return pc.if_else(pc.is_valid(values), texts, pa.scalar(None, pa.string()))


def _quoted(text: Any) -> Any:
    escaped = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    if _any(pc.match_substring_regex(escaped, "[\x00-\x1f]")):
        for plain, replacement in _CONTROLS.items():
            escaped = pc.replace_substring(escaped, plain, replacement)
    return _joined('"', escaped, '"')


def _ids(texts: Any) -> Any:
    """Return texts as ids: hashed if they are too long for one."""
    if _any(pc.greater(pc.binary_length(texts), MAX_ID_BYTES)):
        return pa.array([None if text is None else document_id(text) for text in texts.to_pylist()], pa.string())
    return texts


def _any(found: Any) -> bool:
    return bool(pc.any(found).as_py())


def _cast(values: Any) -> Any:
    return values.cast(pa.string())


def _double(values: Any) -> Any:
    """Return the shortest texts; of whole numbers, too, it shows that they are doubles."""
    text = pc.replace_substring_regex(_cast(values), r"^(-?\d+)$", r"\1.0")
    for special, name in (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
        text = pc.if_else(pc.equal(text, special), name, text)
    return text


def _decimal(values: Any) -> Any:
    text = _cast(values)
    if not _any(pc.match_substring(text, "E")):
        return text
    return pa.array([None if value is None else format(value, "f") for value in values.to_pylist()], pa.string())


def _binary(values: Any) -> Any:
    texts = (None if value is None else base64.b64encode(value).decode() for value in values.to_pylist())
    return pa.array(texts, pa.string())


def _date(values: Any) -> Any:
    return _time(values, pa.int32(), (-719_162, 2_932_897), lambda days: _cast(days.cast(pa.date32())))


def _timestamp(values: Any) -> Any:
    return _moment(values, "Z")


def _local_timestamp(values: Any) -> Any:
    return _moment(values, "")


def _moment(values: Any, zone: str) -> Any:
    """Return moments as texts; of a fraction of a second, without the zeros at its end."""

    def text(micros: Any) -> Any:
        whole = pc.replace_substring(_cast(micros.cast(pa.timestamp("us"))), " ", "T")
        return _joined(pc.replace_substring_regex(whole, r"\.?0*$", ""), zone)

    return _time(values, pa.int64(), (-62_135_596_800_000_000, 253_402_300_800_000_000), text)


def _time(values: Any, number: Any, years: tuple[int, int], text: Callable[[Any], Any]) -> Any:
    """Return times as texts; `years` are the begin of the year 1 and that of 10000, `text` makes those between."""
    numbers, most = values.cast(number), (1 << number.bit_width - 1) - 1
    late, early = pc.equal(numbers, most), pc.equal(numbers, -most - 1)
    finite = pc.if_else(pc.or_(late, early), pa.scalar(0, number), numbers)
    if _any(pc.or_(pc.less(finite, years[0]), pc.greater_equal(finite, years[1]))):
        raise NotPlain("a time beyond the years 1 to 9999")
    return pc.if_else(late, "infinity", pc.if_else(early, "-infinity", text(finite)))


_TEXTS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("boolean", "byte", "short", "integer", "long"), _cast),
    "double": _double,
    "string": lambda values: values,
    "decimal": _decimal,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _local_timestamp,
}
_UNQUOTED: Final = frozenset(("boolean", "byte", "short", "integer", "long", "double"))
