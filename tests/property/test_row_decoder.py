"""Rows decoded into columns are those of fastavro, and no bytes read beyond a record; the key table is a dict."""

from __future__ import annotations

import io
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.schemas.decode.key_table import KeyTable, TooManyKeys
from tailrace.schemas.decode.rows import IS_COMPILED, KINDS, Malformed, RowDecoder
from tailrace.spark_jobs.topics.whole_topic import arrow_table

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="compiled only: without a C compiler, Spark decodes")

_EXACT = Context(prec=76)
_AVRO: dict[str, tuple[Any, Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", pa.bool_(), st.booleans()),
    "int": ("int", pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": ("float", pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": ("double", pa.float64(), st.floats(allow_nan=False)),
    "bytes": ("bytes", pa.binary(), st.binary(max_size=40)),
    "string": ("string", pa.string(), st.text(max_size=40)),
    "decimal": ("bytes", pa.decimal128(38, 3), st.integers(1 - 10**38, 10**38 - 1)),
}


@st.composite
def _topics(draw: st.DrawFn) -> tuple[list[str], list[tuple[dict[str, Any] | None, dict[str, Any] | None]]]:
    names = draw(st.lists(st.sampled_from(list(_AVRO)), min_size=1, max_size=6))
    row = st.fixed_dictionaries({f"c{n}": st.none() | _AVRO[name][2] for n, name in enumerate(names)})
    images = st.tuples(st.none() | row, st.none() | row)
    return names, draw(st.lists(images, max_size=12)) * draw(st.sampled_from((1, 1, 300)))


def _plain(name: str, value: Any) -> Any:
    if name != "decimal" or value is None:
        return value
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _encoded(names: list[str], images: tuple[dict[str, Any] | None, dict[str, Any] | None]) -> bytes:
    fields = [{"name": f"c{n}", "type": ["null", _AVRO[name][0]]} for n, name in enumerate(names)]
    row = {"type": "record", "name": "R", "fields": fields}
    before, after = {"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "R"]}
    schema = parse_schema({"type": "record", "name": "E", "fields": [before, after, {"name": "op", "type": "string"}]})
    plain = [
        None if image is None else {f"c{n}": _plain(name, image[f"c{n}"]) for n, name in enumerate(names)}
        for image in images
    ]
    out = io.BytesIO()
    schemaless_writer(out, schema, {"before": plain[0], "after": plain[1], "op": "u"})
    return out.getvalue()


@settings(deadline=None)
@given(_topics())
def test_columns_have_the_values_of_the_rows(
    topic: tuple[list[str], list[tuple[dict[str, Any] | None, dict[str, Any] | None]]],
) -> None:
    names, changes = topic
    decoder = RowDecoder([KINDS[name] for name in names])
    for images in changes:
        assert decoder.add(_encoded(names, images)) == (images[1] is not None)
    schema = pa.schema([(f"c{n}", _AVRO[name][1]) for n, name in enumerate(names)])
    rows = [after for _, after in changes if after is not None]
    for _ in range(2):  # the second time, there is none
        count = decoder.rows
        found = arrow_table(decoder.take(), count, schema)
        found.validate(full=True)
        expected = [
            {
                f"c{n}": Decimal(row[f"c{n}"]).scaleb(-3, _EXACT) if name == "decimal" and row[f"c{n}"] is not None
                else row[f"c{n}"]
                for n, name in enumerate(names)
            }
            for row in rows
        ]  # fmt: skip
        assert found.to_pylist() == expected
        rows = []


@settings(deadline=None)
@given(_topics(), st.data())
def test_a_damaged_record_is_refused_or_another_one(
    topic: tuple[list[str], list[tuple[dict[str, Any] | None, dict[str, Any] | None]]], data: st.DataObject
) -> None:
    names, changes = topic
    for images in changes[:3]:
        whole = bytearray(_encoded(names, images))
        for _ in range(data.draw(st.integers(0, 3))):
            whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
        body = bytes(whole[: data.draw(st.integers(0, len(whole)))])
        decoder = RowDecoder([KINDS[name] for name in names])
        try:
            decoder.add(body)
        except Malformed:
            continue
        assert decoder.size <= len(body)


@settings(deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(-1, 2**60)), max_size=300))
def test_the_key_table_is_a_dict(pairs: list[tuple[bytes, int]]) -> None:
    table, known = KeyTable(1 << 20), dict[bytes, int]()
    for key, place in pairs:
        assert table.set(key, place) == known.get(key, -1)
        known[key] = place
    assert table.count == len(known)


def test_the_key_table_grows_up_to_its_limit() -> None:
    def filled(table: KeyTable, count: int) -> KeyTable:
        for number in range(count):
            assert table.set(b"%d" % number, number) == -1
        return table

    table = KeyTable(8 << 20)
    with pytest.raises(TooManyKeys):
        filled(table, 1_000_000)
    assert 100_000 < table.count < 400_000
    table = filled(KeyTable(8 << 20), table.count // 2)
    assert [table.set(b"%d" % number, -1) for number in range(table.count)] == list(range(table.count))
