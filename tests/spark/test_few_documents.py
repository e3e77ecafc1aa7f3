"""The documents of small batches are, byte for byte, those that Spark makes."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.sinks.opensearch.documents import documents
from tailrace.sinks.opensearch.few_documents import NotPlain, few_documents
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
    ours = few_documents(frame.toArrow(), frame.schema, key, routing)
    return [tuple(row) for row in documents(frame, key, routing).collect()], list(ours)


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


@pytest.mark.parametrize(
    "sql",
    [
        *("SELECT 1 AS id, 0.1d AS v", "SELECT 1 AS id, array(0.5f) AS v", "SELECT 1 AS id, map('a', 1) AS v"),
        *("SELECT 1 AS id, chr(1) AS v", "SELECT chr(31) AS id, 1 AS v", "SELECT 1 AS id, array(chr(14)) AS v"),
        *("SELECT 1 AS id, date_add(DATE'9999-12-31', 1) AS v", "SELECT 1 AS id, date_from_unix_date(2147483647) AS v"),
        "SELECT 1 AS id, timestamp_micros(9223372036854775807) AS v",
        "SELECT 1 AS id, array(timestamp_micros(-9223372036854775808)) AS v",
    ],
)
def test_what_only_spark_converts_is_left_to_it(spark: SparkSession, sql: str) -> None:
    frame = spark.sql(sql)
    with pytest.raises(NotPlain):
        few_documents(frame.toArrow(), frame.schema, ["id"])


def test_columns_and_rows_may_be_missing(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "id int, v string")
    assert few_documents(frame.toArrow(), frame.schema, ["id"]) == []
    one = pa.table({"id": pa.array([1], pa.int32()), "v": pa.array([None], pa.string())})
    assert few_documents(one, frame.schema, ["id"], "v") == [("[1]", '{"id":1,"v":null}', None)]
