"""Columns of any type as fields of a document, and back."""

from __future__ import annotations

import pytest

from tailrace.schemas.errors import ConfigError
from tailrace.sinks.opensearch.documents import mapping, plain_value
from tailrace.sinks.spark.sql_types import base_of, fields_of, item_of

_LINES = "array<struct<line:int,price:decimal(10,2),tags:map<string,string>,_id:string,parts:array<struct<at:date>>>>"


def test_nested_types_are_parsed() -> None:
    item = item_of(_LINES)
    assert item is not None
    assert fields_of(item) == {
        "line": "int",
        "price": "decimal(10,2)",
        "tags": "map<string,string>",
        "_id": "string",
        "parts": "array<struct<at:date>>",
    }
    assert (item_of("int"), fields_of("int"), fields_of("struct<>")) == (None, None, {})
    assert base_of("decimal(10,2)") == "decimal"


def test_lists_of_structs_are_nested() -> None:
    fields = mapping({"id": "int", "lines": _LINES, "place": "struct<x:double>"}, ["id"])["properties"]
    assert fields["lines"]["type"] == "nested"
    assert fields["lines"]["properties"]["_x5Fid"]["type"] == "text"
    assert fields["lines"]["properties"]["parts"]["properties"]["at"]["type"] == "date"
    assert (fields["place"]["type"], fields["place"]["properties"]["x"]["type"]) == ("object", "double")


def test_types_that_only_queries_have_are_mapped_or_refused() -> None:
    small = mapping({"a": "tinyint", "b": "array<smallint>"}, ["a"])["properties"]
    assert small["a"] == small["b"] == {"type": "long"}
    with pytest.raises(ConfigError, match=r"c\.d.*interval day to second"):
        mapping({"c": "struct<d:interval day to second>"}, ["c"])


def test_nested_values_are_read_back() -> None:
    document = [{"line": 1, "price": "-1.50", "tags": None, "_x5Fid": "x", "parts": [{"at": "1970-01-02"}, None]}, None]
    assert plain_value(document, _LINES) == [
        {"line": 1, "price": b"\xff\x6a", "tags": None, "_id": "x", "parts": [{"at": 1}, None]},
        None,
    ]
