"""The documents of rows in this process are, byte for byte, those that Spark makes; a double is the same number."""

from __future__ import annotations

import json
import math
import random
import string
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.sinks.opensearch.arrow_documents import NotPlain, arrow_bodies, arrow_documents
from tailrace.sinks.opensearch.bulk import bodies
from tailrace.sinks.opensearch.documents import documents
from tailrace.sinks.target.protocol import DELETED

_TEXT = [*string.printable[:97], "\x7f", "é", " ", " ", "\U0001f600", "\b", "\f", "\n", "\t", "</a>", '"', "\\"]
_MOMENT = datetime(1970, 1, 1)


def _moment(draw: random.Random) -> datetime:
    micros = draw.choice([0, 1, 100_000, 999_999, draw.randrange(10**6)])
    days = draw.choice([0, -1, draw.randrange(-719_162, 2_932_896)])
    return _MOMENT + timedelta(days=days, seconds=draw.randrange(86_400), microseconds=micros)


def _value(draw: random.Random, kind: str) -> Any:
    match kind:
        case "boolean":
            return draw.random() < 0.5
        case "tinyint" | "smallint" | "int" | "bigint":
            bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[kind]
            return draw.choice([-(1 << bits - 1), (1 << bits - 1) - 1, 0, draw.randrange(-100, 100)])
        case "string":
            return "".join(draw.choices(_TEXT, k=draw.choice([0, 1, 5, 5, 700])))
        case "decimal(38,10)":
            return Decimal(draw.choice([0, 1, -1, 10**37, draw.randrange(-(10**30), 10**30)])).scaleb(-10)
        case "decimal(20,0)":
            return Decimal(draw.choice([0, 10**19, -draw.randrange(10**19)]))
        case "binary":
            return draw.randbytes(draw.randrange(6))
        case "date":
            return draw.choice([date.min, date.max, date(1969, 12, 31), _moment(draw).date()])
        case "timestamp":
            return _moment(draw).replace(tzinfo=UTC)
        case "timestamp_ntz":
            return _moment(draw)
        case "array<timestamp>":
            return [None, *(_moment(draw).replace(tzinfo=UTC) for _ in range(draw.randrange(3)))]
        case "array<array<string>>":
            return [None, [], [None, _value(draw, "string")]]
        case _:
            lines = [{"a.b": draw.randrange(9), "_id": Decimal("0.10"), "c": None}, None]
            return draw.choice([None, {"a.b": None, "lines": lines}, {"a.b": "x", "lines": []}])


_STRUCT = "struct<`a.b`:string,lines:array<struct<`a.b`:int,_id:decimal(9,2),c:date>>>"
_KINDS = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "string", "decimal(38,10)", "decimal(20,0)", "binary", "date"),
    *("timestamp", "timestamp_ntz", "array<timestamp>", "array<array<string>>", _STRUCT),
)


def _both(frame: DataFrame, key: Sequence[str], routing: str | None = None) -> tuple[list[Any], list[Any]]:
    """Return the documents as Spark and as this process makes them."""
    return [tuple(row) for row in documents(frame, key, routing).collect()], _ours(frame, key, routing)


def _ours(frame: DataFrame, key: Sequence[str], routing: str | None = None) -> list[Any]:
    found = arrow_documents(frame.toArrow(), frame.schema, key, routing)
    for column in found.columns:
        column.validate(full=True)
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_documents_are_the_same_byte_for_byte(spark: SparkSession, seed: int) -> None:
    draw = random.Random(seed)
    names = {kind: f"c{number}" for number, kind in enumerate(_KINDS)} | {"int": "_id", "date": "a.b"}
    rows = [
        (*(None if draw.random() < 0.1 else _value(draw, kind) for kind in _KINDS), draw.random() < 0.2)
        for _ in range(150)
    ]
    fields = ", ".join(f"`{names[kind]}` {kind}" for kind in _KINDS)
    frame = spark.createDataFrame(rows, f"{fields}, {DELETED} boolean").coalesce(1)
    plain = [kind for kind in _KINDS if not kind.startswith(("array", "struct"))]
    for kind in plain:
        key = [names[kind], *(names[each] for each in draw.sample(plain, 2) if each != kind)]
        spark_made, ours = _both(frame, key, names[kind])
        assert ours == spark_made, kind
    spark_made, ours = _both(frame.drop(DELETED), [names["string"]])
    assert ours == spark_made
    assert any(number.startswith("sha256:") for number, _ in ours)


@pytest.mark.parametrize("most", [1, 3000, 4_000_000])
@pytest.mark.parametrize("routing", [None, "at", "text"])
def test_requests_are_those_of_the_same_rows(
    spark: SparkSession, routing: str | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.sinks.opensearch.arrow_documents.CHUNK_BYTES", most)
    draw = random.Random(5)
    rows = [
        (*(None if draw.random() < 0.1 else _value(draw, kind) for kind in ("string", "date")), draw.random() < 0.3)
        for _ in range(60)
    ]
    frame = spark.createDataFrame(rows, f"text string, at date, {DELETED} boolean").coalesce(1)
    sent = list(arrow_bodies(arrow_documents(frame.toArrow(), frame.schema, ["text"], routing), 7))
    made = b"".join(bodies(documents(frame, ["text"], routing).collect(), 7))
    assert [json.loads(line) for line in b"".join(sent).splitlines()] == [
        json.loads(line) for line in made.splitlines()
    ]
    assert all(body.endswith(b"\n") for body in sent)
    assert (len(sent) == 60) if most == 1 else (len(sent) > 3) if most == 3000 else len(sent) == 1


def test_a_double_is_the_same_number(spark: SparkSession) -> None:
    draw = random.Random(3)
    some = [
        0.0,
        -0.0,
        1.0,
        -1e15,
        1e16,
        1e23,
        2e-3,
        5e-324,
        1.7976931348623157e308,
        math.nan,
        math.inf,
        -math.inf,
        None,
    ]
    drawn = [struct.unpack("d", draw.randbytes(8))[0] for _ in range(200)]
    frame = spark.createDataFrame(list(enumerate([*some, *drawn])), "id int, v double").coalesce(1)
    spark_made, ours = _both(frame, ["id"])
    assert [(number, json.dumps(json.loads(text))) for number, text in ours] == [
        (number, json.dumps(json.loads(text))) for number, text in spark_made
    ]


@pytest.mark.parametrize(
    "sql",
    [
        *("SELECT 0.1d AS id, 1 AS v", "SELECT 1 AS id, array(0.5f) AS v", "SELECT 1 AS id, map('a', 1) AS v"),
        "SELECT 1 AS id, date_add(DATE'9999-12-31', 1) AS v",
        "SELECT 1 AS id, array(timestamp_micros(9223372036854775806)) AS v",
    ],
)
def test_what_only_spark_converts_is_left_to_it(spark: SparkSession, sql: str) -> None:
    frame = spark.sql(sql)
    with pytest.raises(NotPlain):
        arrow_documents(frame.toArrow(), frame.schema, ["id"])


@pytest.mark.parametrize(
    "sql",
    [
        *("SELECT chr(1) AS id, array(chr(14), chr(31)) AS v", "SELECT date_from_unix_date(2147483647) AS id, 1 AS v"),
        "SELECT timestamp_micros(9223372036854775807) AS id, array(timestamp_micros(-9223372036854775808)) AS v",
        "SELECT timestamp_micros(-9223372036854775808) AS id, date_from_unix_date(-2147483648) AS v",
        "SELECT 1 AS id, CAST(array() AS array<int>) AS v, CAST(NULL AS array<int>) AS w, array(INT(NULL)) AS x",
    ],
)
def test_what_is_rare_is_the_same(spark: SparkSession, sql: str) -> None:
    spark_made, ours = _both(spark.sql(sql), ["id"], "id")
    assert ours == spark_made


def test_columns_and_rows_may_be_missing(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "id int, v string")
    assert _ours(frame, ["id"]) == []
    one = spark.createDataFrame([(1, None)], frame.schema)
    assert _ours(one, ["id"], "v") == [("[1]", '{"id":1,"v":null}', None)]
