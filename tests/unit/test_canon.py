"""Values read as PostgreSQL text and as Avro have one canonical form if, and only if, they are equal."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tailrace.schemas.avro import without_logical_types
from tailrace.snapshot.verify.canonical import Canon, from_avro, from_text, packed
from tailrace.snapshot.verify.value_kinds import Form, Kind, form_of, row_fields

DAY = 86_400_000_000


def logical(avro: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": avro, "logicalType": name, **more}


def single(value: float) -> float:
    """Return a float as Avro returns it from 32 bits."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


DECIMAL = logical("bytes", "decimal", precision=12, scale=2)
TIMESTAMPTZ = logical("long", "timestamp-micros")
TIMESTAMP = logical("long", "local-timestamp-micros")
DATE = logical("int", "date")
TIME = logical("long", "time-micros")


@pytest.mark.parametrize(
    ("avro", "text", "stored"),
    [
        ("string", "", ""),
        ("string", '{"b": 1, "a": 2}', '{"b": 1, "a": 2}'),
        ("int", "-7", -7),
        ("long", "9223372036854775807", 2**63 - 1),
        ("boolean", "t", True),
        ("boolean", "f", False),
        ("double", "0.1", 0.1),
        ("double", "1e+15", 1e15),
        ("double", "-0", -0.0),
        ("double", "NaN", float("nan")),
        ("double", "-Infinity", float("-inf")),
        ("float", "0.1", single(0.1)),
        ("float", "3.4028235e+38", single(3.4028235e38)),
        (DECIMAL, "0.00", b"\x00"),
        (DECIMAL, "-0.05", b"\xfb"),
        (DECIMAL, "1234.50", (123450).to_bytes(3, "big")),
        (logical("bytes", "decimal", precision=5), "-3", b"\xfd"),
        (DATE, "1970-01-01", 0),
        (DATE, "0001-01-01", -719162),
        (DATE, "0001-12-31 BC", -719163),
        (DATE, "10000-01-01", 2932897),
        (DATE, "infinity", 2**31 - 1),
        (DATE, "-infinity", -(2**31)),
        (TIME, "24:00:00", DAY),
        (TIME, "00:00:00.1", 100_000),
        (TIMESTAMP, "1969-12-31 23:59:59.999999", -1),
        (TIMESTAMPTZ, "2024-02-29 12:00:00.5+00", 1709208000500000),
        (TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC", -63517824000000000),
        (TIMESTAMP, "infinity", 2**63 - 1),
        (TIMESTAMPTZ, "-infinity", -(2**63)),
        ("bytes", "\\x00ff", b"\x00\xff"),
        ("bytes", "0101000000", b"\x01\x01\x00\x00\x00"),
        ({"type": "array", "items": ["null", "string"]}, "{}", []),
        (
            {"type": "array", "items": ["null", "string"]},
            r'{a,NULL,"NULL","","x\"y","b\\c","d,e","{f}"}',
            ["a", None, "NULL", "", 'x"y', "b\\c", "d,e", "{f}"],
        ),
        ({"type": "array", "items": ["null", DECIMAL]}, "{1.00,NULL}", [b"\x64", None]),
        ({"type": "array", "items": ["null", "float"]}, "{0.1,NaN}", [single(0.1), float("nan")]),
        ({"type": "array", "items": "float"}, "[1,0.1]", [1.0, single(0.1)]),
        ({"type": "map", "values": ["null", "string"]}, r'"a"=>"x\"", "b"=>NULL', {"b": None, "a": 'x"'}),
        ("string", None, None),
        (["null", "int"], None, None),
    ],
)
def test_a_value_is_equal_from_text_and_from_avro(avro: Any, text: str | None, stored: Any) -> None:
    form = form_of(avro)
    assert packed([from_text(form, text)]) == packed([from_avro(form, stored)])


@pytest.mark.parametrize(
    ("avro", "text", "stored"),
    [
        ("double", "0.1", single(0.1)),
        ("double", "-0", 0.0),
        ("string", "NULL", None),
        ("string", "", None),
        (DECIMAL, "1.5", b"\x0f"),
        (DECIMAL, "NaN", b"\x00"),
        (TIMESTAMPTZ, "2024-02-29 12:00:00+01", 1709208000000000),
        (DATE, "infinity", 2**31 - 2),
        ({"type": "array", "items": ["null", "string"]}, "{NULL}", ["NULL"]),
        ({"type": "array", "items": ["null", "string"]}, "{{a},{b}}", ["a", "b"]),
        ({"type": "array", "items": ["null", "string"]}, "[0:1]={a,b}", ["a", "b"]),
        ({"type": "array", "items": ["null", "string"]}, "{}", None),
        ({"type": "map", "values": ["null", "string"]}, '"a"=>NULL', {"a": "NULL"}),
    ],
)
def test_different_values_stay_different(avro: Any, text: str, stored: Any) -> None:
    form = form_of(avro)
    assert packed([from_text(form, text)]) != packed([from_avro(form, stored)])


def test_order_of_a_map_does_not_count() -> None:
    left: list[Canon] = [{"a": "1", "b": "2"}]
    assert packed(left) == packed([{"b": "2", "a": "1"}])


def test_the_fields_of_a_row_are_found_in_its_envelopes_schema() -> None:
    schema = """{"type": "record", "name": "E", "fields": [{"name": "before", "type": ["null",
    {"type": "record", "name": "Value", "fields": [{"name": "id", "type": ["null", "int"]},
    {"name": "a_x20b", "column": "a b",
     "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]}]}]}]}"""
    first, second = row_fields(schema)
    assert (first.name, first.column, first.form) == ("id", "id", Form(Kind.NUMBER))
    assert (second.name, second.column, second.form) == ("a_x20b", "a b", Form(Kind.TIMESTAMPTZ))


def test_logical_types_are_removed_but_not_columns_of_those_names() -> None:
    record = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "precision", "type": ["null", DECIMAL]}, {"name": "scale", "type": "int"}],
    }
    plain = without_logical_types(record)
    assert plain["fields"] == [
        {"name": "precision", "type": ["null", {"type": "bytes"}]},
        {"name": "scale", "type": "int"},
    ]
