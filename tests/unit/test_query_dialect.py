"""What our parser understands is written for Spark with the same meaning."""

from __future__ import annotations

import pytest
import sqlglot

from tailrace.schemas.errors import ConfigError
from tailrace.spark_jobs.query.declared import Refresh, declare
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.text import QueryText
from tests.support.shop_model import CATALOG


def test_qualify_orders_by_the_column_that_it_names() -> None:
    sql = """SELECT c.id, o.id AS newest FROM public.customer c JOIN public.orders o ON o.customer_id = c.id
        QUALIFY row_number() OVER (PARTITION BY c.id ORDER BY o.at DESC, o.id DESC) = 1"""
    view = declare(QueryText("v", sql), ("id",), CATALOG)
    for text in (view.over("new"), *(step.sql() for step in view.steps(["public.orders"])[-2:])):
        assert "ORDER BY `o`.`at` DESC, `o`.`id` DESC) = 1" in text


def test_distinct_order_and_limit_come_after_qualify() -> None:
    sql = "SELECT DISTINCT a.x AS y FROM t AS a QUALIFY rank() OVER (ORDER BY a.z) < 3 ORDER BY a.q DESC, y LIMIT 3"
    assert sqlglot.parse_one(sql, dialect=DIALECT).sql(DIALECT) == (
        "SELECT DISTINCT `tailrace_qualify`.`y` FROM (SELECT a.x AS y, a.q AS `tailrace_qualify_0`,"
        " RANK() OVER (ORDER BY a.z) < 3 AS `tailrace_qualify` FROM t AS a) AS `tailrace_qualify`"
        " WHERE `tailrace_qualify`.`tailrace_qualify` ORDER BY `tailrace_qualify`.`tailrace_qualify_0` DESC, y LIMIT 3"
    )


@pytest.mark.parametrize(
    "part",
    [
        "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY a)",
        "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY a DESC)",
        "LISTAGG(a)",
        "LISTAGG(a, '; ') WITHIN GROUP (ORDER BY b)",
        "TO_CHAR(a, '999')",
        "TO_DATE(a, 'yyyy-MM-dd')",
        "TO_TIMESTAMP(a, 'dd.MM.y')",
        "DATE_FORMAT(a, 'd.M.y')",
        "FROM_UNIXTIME(a, 'yyyy-MM-dd HH:mm:ss')",
        "UNIX_TIMESTAMP(a, 'y')",
        "LEVENSHTEIN(a, b, 2)",
        "PARSE_JSON(a)",
        "UNIX_DATE(a)",
    ],
)
def test_a_function_is_written_as_it_was(part: str) -> None:
    sql = f"SELECT {part} FROM t"
    assert sqlglot.parse_one(sql, dialect=DIALECT).sql(DIALECT) == sql


def test_what_would_be_lost_is_refused() -> None:
    sql = "SELECT id, regexp_extract(status, 'x', 1, 2) AS s FROM public.orders"
    modes: tuple[Refresh, ...] = ("incremental", "full")
    for refresh in modes:
        with pytest.raises(ConfigError, match="TR-540"):
            declare(QueryText("v", sql), ("id",), CATALOG, refresh)
