"""As-of joins with a history, maintained in DuckDB through random changes of both sides."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from tailrace.schemas.errors import ConfigError
from tailrace.sinks.target.protocol import FIRST
from tailrace.spark_jobs.query.asof import is_history
from tailrace.spark_jobs.query.catalog import TableInfo
from tailrace.spark_jobs.query.declared import DeclaredQuery, declare
from tailrace.spark_jobs.query.rewrite import state
from tailrace.spark_jobs.query.text import QueryText
from tests.support.shop_engine import by_key

ORDERS = ("id", "dim_id", "at")
HISTORY = ("id", "v", "valid_from", "valid_to", "valid_from_lsn", "valid_from_ordinal", "valid_to_lsn")
CATALOG = {
    "public.orders": TableInfo(ORDERS, ("id",)),
    "public.dim": TableInfo(HISTORY, ("id", "valid_from_lsn", "valid_from_ordinal")),
}
QUERIES = {
    "inner": (
        "SELECT o.id, o.at, d.v FROM public.orders o JOIN public.dim AS d ASOF o.at ON d.id = o.dim_id",
        # Written out, so that the expected rows do not depend on the code under test.
        """SELECT o.id, o."at", d.v FROM orders o JOIN dim d ON d.id = o.dim_id AND d.valid_from <= o."at"
        AND (o."at" < d.valid_to OR d.valid_to IS NULL)""",
        ("id",),
    ),
    "left": (
        "SELECT o.id, d.v FROM public.orders o LEFT JOIN public.dim d ASOF o.at ON d.id = o.dim_id",
        """SELECT o.id, d.v FROM orders o LEFT JOIN dim d ON d.id = o.dim_id AND d.valid_from <= o."at"
        AND (o."at" < d.valid_to OR d.valid_to IS NULL)""",
        ("id",),
    ),
    "grouped": (
        "SELECT d.v, count(*) AS n FROM public.orders o JOIN public.dim d ASOF o.at ON d.id = o.dim_id GROUP BY d.v",
        """SELECT d.v, count(*) AS n FROM orders o JOIN dim d ON d.id = o.dim_id AND d.valid_from <= o."at"
        AND (o."at" < d.valid_to OR d.valid_to IS NULL) GROUP BY d.v""",
        ("v",),
    ),
}
_EARLY = """dim d ON d.id = o.dim_id
    AND (d.valid_from <= o."at" OR d.valid_from_lsn = (SELECT min(x.valid_from_lsn) FROM dim x WHERE x.id = d.id))
    AND (o."at" < d.valid_to OR d.valid_to IS NULL)"""
_ALL_OF_DIM = ", ".join(f"d.{name}" for name in HISTORY)
FROM_THE_FIRST = {
    "inner early": (QUERIES["inner"][0], f'SELECT o.id, o."at", d.v FROM orders o JOIN {_EARLY}', ("id",)),
    "left early": (QUERIES["left"][0], f"SELECT o.id, d.v FROM orders o LEFT JOIN {_EARLY}", ("id",)),
    "grouped early": (
        QUERIES["grouped"][0],
        f"SELECT d.v, count(*) AS n FROM orders o JOIN {_EARLY} GROUP BY d.v",
        ("v",),
    ),
    "star early": (
        "SELECT o.id AS o, d.* FROM public.orders o LEFT JOIN public.dim d ASOF o.at ON d.id = o.dim_id",
        f"SELECT o.id AS o, {_ALL_OF_DIM} FROM orders o LEFT JOIN {_EARLY}",
        ("o",),
    ),
}
"""The same with asof_before = "first"; `load` marks first versions, as `States` does."""
ALL = QUERIES | FROM_THE_FIRST
State = dict[str, dict[tuple[Any, ...], tuple[Any, ...]]]


def change(pick: random.Random, now: int, tables: State) -> None:
    """Change orders, and begin and end versions of the dimension at `now`."""
    for _ in range(pick.randint(0, 3)):
        order = pick.randint(1, 8)
        tables["orders"].pop((order,), None)
        if pick.random() < 0.8:
            tables["orders"][order,] = (order, pick.randint(1, 3), pick.randint(0, now + 5))
    dim = tables["dim"]
    for key in pick.sample(range(1, 4), pick.randint(0, 2)):
        is_open = next((k for k, row in dim.items() if row[0] == key and row[3] is None), None)
        if is_open is not None:
            dim[is_open] = (*dim[is_open][:3], now, *dim[is_open][4:6], now)
        if is_open is None or pick.random() < 0.7:
            dim[key, now, 0] = (key, pick.randint(1, 3), now, None, now, 0, None)


def load(engine: duckdb.DuckDBPyConnection, old: State, new: State) -> list[str]:
    changed = []
    for table, columns in (("orders", ORDERS), ("dim", HISTORY)):
        keys = {k for k in old[table].keys() | new[table].keys() if old[table].get(k) != new[table].get(k)}
        images = [{k: rows[table][k] for k in keys if k in rows[table]} for rows in (old, new)]
        for which, rows in zip(("old", "new", "before", "after"), (old[table], new[table], *images), strict=True):
            name = f'"{state(f"public.{table}", which)}"'
            typed = ", ".join(f'"{column}" INTEGER' for column in columns)
            mark = f', "{FIRST}" BOOLEAN' if table == "dim" else ""
            engine.execute(f"CREATE OR REPLACE TABLE {name} ({typed}{mark})")
            if rows:
                whole = (old if which in ("old", "before") else new)[table]
                first = {key for key, *_ in whole} if table == "dim" else set()
                first = {min(versions for versions in whole if versions[0] == key) for key in first}
                values = [[*row, *([key in first] if mark else [])] for key, row in rows.items()]
                marks = ", ".join("?" for _ in values[0])
                engine.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        engine.execute(f'CREATE OR REPLACE VIEW {table} AS SELECT * FROM "{state(f"public.{table}", "new")}"')
        changed += [f"public.{table}"] if keys else []
    return changed


@pytest.mark.parametrize("seed", range(2))
def test_the_view_is_its_query_after_every_batch(seed: int) -> None:
    pick, engine = random.Random(seed), duckdb.connect(config={"threads": 1})
    views: dict[str, DeclaredQuery] = {
        name: declare(QueryText(name, sql, name in FROM_THE_FIRST), key, CATALOG) for name, (sql, _, key) in ALL.items()
    }
    shown: dict[str, dict[tuple[Any, ...], tuple[Any, ...]]] = {name: {} for name in views}
    old: State = {"orders": {}, "dim": {}}
    differed = False
    for now in range(1, 25):
        new: State = {table: dict(rows) for table, rows in old.items()}
        change(pick, now, new)
        changed = load(engine, old, new)
        for name, view in views.items():
            steps = view.steps(changed) if changed else []
            for step in steps:
                engine.execute(f'CREATE OR REPLACE TEMP TABLE "{step.name}" AS {step.sql("duckdb")}')
            if steps:
                before, after = (
                    by_key(view, engine.execute(f'SELECT * FROM "{step.name}"').fetchall()) for step in steps[-2:]
                )
                for key in before.keys() - after.keys():
                    del shown[name][key]
                shown[name].update(after)
            expected = engine.execute(ALL[name][1]).fetchall()
            assert shown[name] == by_key(view, expected), (name, now)
        differed = differed or shown["left"] != shown["left early"]
        old = new
    assert all(shown.values())
    assert differed
    assert FIRST not in views["star early"].whole.named_selects


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT o.id FROM public.dim d JOIN public.orders o ASOF d.valid_from ON d.id = o.id", "TR-568"),
        ("SELECT o.id FROM public.orders o JOIN public.dim d ASOF o.at USING (id)", "TR-568"),
        ("SELECT o.id FROM public.orders o JOIN public.dim d ASOF 1 ON d.id = o.id", "TR-568"),
        ("SELECT o.id FROM public.orders o JOIN public.dim d ASOF o.nothing ON d.id = o.id", "TR-542"),
        # The moment is the version's own, so several versions of a key may match.
        ("SELECT o.id FROM public.orders o JOIN public.dim d ASOF d.valid_from ON d.id = o.dim_id", "TR-544"),
        # Several versions of one key, each valid at the moment of some order.
        (
            "SELECT d.id, d.v FROM public.orders o JOIN public.dim d ASOF o.at ON d.id = o.dim_id GROUP BY d.id, d.v",
            "TR-544",
        ),
    ],
)
def test_an_asof_join_that_cannot_be_maintained_is_refused(sql: str, code: str) -> None:
    with pytest.raises(ConfigError, match=code):
        declare(QueryText("v", sql), ("id",), CATALOG)


def test_asof_before_without_an_asof_join_is_refused() -> None:
    sql = "SELECT o.id FROM public.orders o JOIN public.dim d ON d.id = o.dim_id AND d.valid_to IS NULL"
    with pytest.raises(ConfigError, match="TR-568"):
        declare(QueryText("v", sql, asof_first=True), ("id",), CATALOG)


def test_a_table_with_version_columns_is_a_history() -> None:
    assert is_history(CATALOG["public.dim"])
    assert not is_history(CATALOG["public.orders"])
