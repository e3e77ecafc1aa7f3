"""The commit columns of tables in queries: there for those that name them, and never part of ``*``."""

from __future__ import annotations

import pytest

from tailrace.schemas.config.model import Config, Source, View, Warehouse
from tailrace.schemas.errors import ConfigError
from tailrace.spark_jobs.query.catalog import Catalog, TableInfo
from tailrace.spark_jobs.query.declared import declare
from tailrace.spark_jobs.query.late import event_times
from tailrace.spark_jobs.query.text import QueryText
from tailrace.spark_jobs.views import declare as declare_view

ORDERS = TableInfo(("id", "n"), ("id",)).with_commits()
CATALOG: Catalog = {"public.orders": ORDERS, "low": TableInfo(("id", "_commit_lsn"), ("id",))}


def columns(sql: str, catalog: Catalog = CATALOG) -> list[str]:
    return declare(QueryText("v", sql), ["id"], catalog).whole.named_selects


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM public.orders", ["id", "n"]),
        ("SELECT o.* FROM public.orders o", ["id", "n"]),
        ("SELECT *, _commit_lsn FROM public.orders", ["id", "n", "_commit_lsn"]),
        ("SELECT _committed_at, o.* FROM public.orders o", ["_committed_at", "id", "n"]),
        ("SELECT * FROM (SELECT id, _commit_lsn FROM public.orders) x", ["id", "_commit_lsn"]),
        ("WITH x AS (SELECT *, _commit_lsn AS lsn FROM public.orders) SELECT * FROM x", ["id", "n", "lsn"]),
        ("SELECT * FROM (SELECT * FROM (SELECT * FROM public.orders) x) y", ["id", "n"]),
        ("SELECT id, count(*) AS n FROM public.orders GROUP BY id", ["id", "n"]),
        ("SELECT * FROM low", ["id", "_commit_lsn"]),
        ("SELECT o.*, low._commit_lsn AS lsn FROM public.orders o JOIN low ON low.id = o.id", ["id", "n", "lsn"]),
    ],
)
def test_a_star_has_no_commit_columns(sql: str, expected: list[str]) -> None:
    assert columns(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, struct(*) AS all_of_it, _commit_lsn FROM public.orders",
        "SELECT id, to_json(struct(o.*)) AS all_of_it, _commit_lsn FROM public.orders o",
        "SELECT id, count(DISTINCT *) AS n, max(_commit_lsn) AS lsn FROM public.orders GROUP BY id",
        "SELECT * FROM (SELECT *, _commit_lsn FROM public.orders) x",
        "SELECT id, x._commit_lsn FROM (SELECT * FROM public.orders) x",
        "SELECT id FROM (SELECT * FROM public.orders) x WHERE x._commit_lsn > 5",
    ],
)
def test_a_star_that_would_have_them_is_refused(sql: str) -> None:
    with pytest.raises(ConfigError, match="TR-542"):
        columns(sql)


def test_a_column_of_the_table_has_its_name() -> None:
    own = TableInfo(("id", "_commit_lsn"), ("id",)).with_commits()
    assert own.hidden == ("_committed_at",)
    assert columns("SELECT * FROM public.orders", {"public.orders": own}) == ["id", "_commit_lsn"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT id FROM public.orders", False),
        ("SELECT id, '_commit_lsn' AS text FROM public.orders", False),
        ("SELECT id, _commit_lsn FROM public.orders", True),
        ("WITH x AS (SELECT id, n FROM public.orders o WHERE o._committed_at > '2026-01-01') SELECT id FROM x", True),
        ("SELECT id, _commit_lsn FROM low", False),  # it reads no table
    ],
)
def test_only_queries_that_name_them_read_other_base_tables(query: str, expected: bool) -> None:
    config = Config(
        source=Source(dsn=""),
        warehouse=Warehouse(uri="jdbc:sqlite:/c.db", location="/w"),
        views={"v": View(query=query, key=["id"]), "low": View(table="public.low")},
    )
    assert declare_view(config, "v").commits is expected


def test_lateness_needs_a_column_of_the_table() -> None:
    sql = "SELECT window.start AS id, count(*) AS n FROM public.orders GROUP BY window(_committed_at, '1 hour')"
    found = declare(QueryText("v", sql), ["id"], CATALOG)
    with pytest.raises(ConfigError, match="TR-569"):
        event_times(found.whole, found.text, CATALOG)
