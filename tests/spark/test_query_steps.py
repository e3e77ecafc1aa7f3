"""Spark runs every example's steps over plain temporary views, without Kafka and a warehouse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from tailrace.sinks.target.protocol import DELETED
from tailrace.spark_jobs.maintain.difference import difference
from tailrace.spark_jobs.query.declared import DeclaredQuery
from tailrace.spark_jobs.query.rewrite import state
from tests.support.shop_engine import Engine, by_key, declared, over_new
from tests.support.shop_model import COLUMNS, EXAMPLES, Key, Row, ShopModel

_TYPES = {"int4": "int", "text": "string", "timestamp": "timestamp_ntz"}
Tables = Mapping[str, dict[Key, Row]]


def test_spark_finds_what_changes_in_every_example(spark: SparkSession) -> None:
    engine, model, session = Engine(), ShopModel(5), spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    model.fill()
    old = {table: dict(rows) for table, rows in model.tables.items()}
    for _ in range(3):
        model.change(4)
    engine.load({table: {} for table in COLUMNS}, old)
    load(session, {table: {} for table in COLUMNS}, old)
    views = {name: declared(name) for name in EXAMPLES}
    shown = {name: expected(session, engine, view) for name, view in views.items()}
    changed = engine.load(old, model.tables)
    load(session, old, model.tables)
    for name, view in views.items():
        if mine := changed & set(view.tables):
            apply(session, view, mine, shown[name])
        assert shown[name] == expected(session, engine, view), name


def expected(session: SparkSession, engine: Engine, view: DeclaredQuery) -> dict[Key, Any]:
    """Return the rows of the original query over the new state, by DuckDB if it can run the query."""
    if not EXAMPLES[view.text.view].spark_only:
        return by_key(view, engine.query(over_new(view.text.sql)))
    text = re.sub(r"public\.(\w+)", r"public__\1__new", view.text.sql)
    return by_key(view, [tuple(map(plain, row)) for row in session.sql(text).collect()])


def load(session: SparkSession, old: Tables, new: Tables) -> None:
    for table, columns in COLUMNS.items():
        keys = {key for key in old[table].keys() | new[table].keys() if old[table].get(key) != new[table].get(key)}
        images = [{key: rows[table][key] for key in keys if key in rows[table]} for rows in (old, new)]
        for which, rows in zip(("old", "new", "before", "after"), (old[table], new[table], *images), strict=True):
            # One extra row that is filtered out: the table may be empty, and each column needs its type.
            values = [[literal(name, row[name]) for name in columns] for row in rows.values()]
            lists = ", ".join(f"({', '.join(row)}, true)" for row in values)
            nulls = ", ".join("NULL" for _ in columns)
            parts = f"VALUES {lists}{', ' if lists else ''}({nulls}, false)"
            typed = ", ".join(f"CAST({name} AS {_TYPES[kind]}) AS {name}" for name, kind in columns.items())
            frame = session.sql(f"SELECT {typed} FROM ({parts}) AS t({', '.join(columns)}, there) WHERE there")
            frame.createOrReplaceTempView(state(f"public.{table}", which))


def apply(session: SparkSession, view: DeclaredQuery, changed: set[str], shown: dict[Key, Any]) -> None:
    steps = view.steps(changed)
    for step in steps:
        session.sql(step.sql()).createOrReplaceTempView(step.name)
    before, after = (session.table(step.name) for step in steps[-2:])
    for row in difference(before, after, view.key).collect():
        values = row.asDict()
        key = tuple(plain(values[name]) for name in view.key)
        if values.pop(DELETED):
            del shown[key]
        else:
            now = tuple(map(plain, values.values()))
            assert shown.get(key) != now, "it has not changed"
            shown[key] = now


def literal(column: str, value: Any) -> str:
    if value is None or (isinstance(value, int) and column != "at"):
        return "NULL" if value is None else str(value)
    return (
        f"TIMESTAMP_NTZ '{datetime.fromtimestamp(value // 1_000_000, UTC):%F %T}'" if column == "at" else f"'{value}'"
    )


def plain(value: Any) -> Any:
    if isinstance(value, SparkRow | list | tuple):
        return tuple(map(plain, value))
    return value


def test_the_difference_of_special_values_is_exact(spark: SparkSession) -> None:
    """NULL and NaN equal themselves, 0.0 differs from -0.0, and the order of a map's entries is ignored."""
    columns = "t(k, d, m, l, s)"
    rows = {
        "same": ("double('NaN')", "map('a', 1, 'b', 2)", "array(double('NaN'), null)", "named_struct('x', 0.0D)"),
        "nulls": ("null", "null", "null", "null"),
        "sign": ("0.0D", "map('a', 1)", "array(0.0D)", "named_struct('x', 0.0D)"),
        "deep": ("0.0D", "map('a', 1)", "array(0.0D)", "named_struct('x', 0.0D)"),
        "gone": ("0.0D", "map('a', 1)", "array(0.0D)", "named_struct('x', 0.0D)"),
    }
    changed = {
        "same": ("double('NaN')", "map('b', 2, 'a', 1)", "array(double('NaN'), null)", "named_struct('x', 0.0D)"),
        "nulls": ("null", "null", "null", "null"),
        "sign": ("-0.0D", "map('a', 1)", "array(0.0D)", "named_struct('x', 0.0D)"),
        "deep": ("0.0D", "map('a', 1)", "array(0.0D)", "named_struct('x', -0.0D)"),
    }
    sides = []
    for number, side in enumerate((rows, changed)):
        listed = [f"('{name}', {', '.join(row)})" for name, row in side.items()]
        listed.append(f"(null, 1.0D, map('a', {number}), array(1.0D), named_struct('x', 1.0D))")
        sides.append(spark.sql(f"SELECT * FROM VALUES {', '.join(listed)} AS {columns}"))
    before, after = sides
    found = {row["k"]: row[DELETED] for row in difference(before, after, ["k"]).collect()}
    assert found == {"sign": False, "deep": False, "gone": True, None: False}
