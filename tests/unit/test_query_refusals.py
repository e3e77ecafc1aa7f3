"""Queries that are refused when they are declared, with a pointer to the place."""

from __future__ import annotations

import pytest

from tailrace.schemas.errors import ConfigError
from tailrace.spark_jobs.query.blocks import BlockReader
from tailrace.spark_jobs.query.declared import declare
from tailrace.spark_jobs.query.text import QueryText
from tests.support.shop_model import CATALOG

_O = "SELECT id FROM public.orders"

REFUSED = [
    ("SELEC id FROM public.orders", "TR-540", "FROM"),
    ("SELECT id FROM public.orders WHERE", "TR-540", None),
    ("SELECT 'id FROM public.orders", "TR-540", None),
    ("DELETE FROM public.orders", "TR-540", "DELETE"),
    ("SELECT id FROM public.order", "TR-541", "public.order"),
    ("SELECT id FROM orders", "TR-541", "orders"),
    ("SELECT id FROM public.orders VERSION AS OF 3", "TR-541", "public.orders"),
    ("SELECT id FROM public.orders TIMESTAMP AS OF '2026-01-01'", "TR-541", "public.orders"),
    ("SELECT id,\n  amont FROM public.orders", "TR-542", "amont"),
    ("SELECT o.id, c.amount FROM public.orders o JOIN public.customer c ON c.id = o.id", "TR-542", "c.amount"),
    ("SELECT id FROM public.orders, public.customer", "TR-542", "id FROM"),
    ("SELECT x.id FROM public.orders o", "TR-542", "x.id"),
    ("SELECT o.id FROM public.orders o FULL JOIN public.customer c ON c.id = o.id", "TR-543", "public.customer c"),
    ("SELECT o.id FROM public.orders o NATURAL JOIN public.customer c", "TR-543", "public.customer c"),
    (_O + " LIMIT 10", "TR-543", None),
    (_O + " ORDER BY amount", "TR-543", "amount"),
    (_O + " EXCEPT SELECT id FROM public.customer", "TR-543", "id"),
    ("SELECT id, now() AS t FROM public.orders", "TR-554", "now"),
    ("SELECT id, current_timestamp() AS t FROM public.orders", "TR-554", "current_timestamp"),
    ("SELECT id FROM public.orders WHERE at > current_date", "TR-554", None),
    ("SELECT id, rand() AS r FROM public.orders", "TR-554", "rand"),
    ("SELECT id, unix_timestamp() AS t FROM public.orders", "TR-554", "unix_timestamp"),
    ("SELECT status AS id, hll_sketch_agg(at) AS s FROM public.orders GROUP BY status", "TR-554", "hll_sketch_agg"),
    ("SELECT status AS id, HISTOGRAM_NUMERIC(id, 3) AS s FROM public.orders GROUP BY 1", "TR-554", "HISTOGRAM_NUMERIC"),
    ("SELECT customer_id AS id, first(amount) AS f FROM public.orders GROUP BY customer_id", "TR-554", "first"),
    (
        "SELECT customer_id AS id, collect_list(id) AS f FROM public.orders GROUP BY customer_id",
        "TR-554",
        "collect_list",
    ),
    ("SELECT customer_id AS id, count(*) AS n FROM public.orders GROUP BY ALL", "TR-543", None),
    (
        "SELECT o.id FROM public.orders o WHERE o.id NOT IN (SELECT c.id FROM public.customer c WHERE c.boss = o.id)",
        "TR-552",
        "o.id)",
    ),
    (
        "SELECT o.id FROM public.orders o WHERE o.amount > ALL (SELECT c.segment FROM public.customer c)",
        "TR-552",
        "c.segment",
    ),
    ("SELECT id, explode(array(1, 2)) AS e FROM public.orders", "TR-543", None),
    ("SELECT id, stack(2, 1, 2) AS e FROM public.orders", "TR-543", None),
    ("SELECT id, posexplode(array(1)) AS e FROM public.orders", "TR-543", None),
    ("SELECT id, inline_outer(array(struct(1, 2))) AS e FROM public.orders", "TR-543", "inline_outer"),
    ("SELECT id, window(at, '1 hour', '10 minutes').start AS s FROM public.orders", "TR-555", "window"),
    ("SELECT id FROM public.orders WHERE window(at, '1 hour', '5 minutes').start > at", "TR-555", "window"),
    ("SELECT id FROM public.orders LATERAL VIEW explode(array(1)) t AS e", "TR-543", None),
    ("SELECT customer_id AS id, first(amount) IGNORE NULLS AS f FROM public.orders GROUP BY 1", "TR-554", "first"),
    ("SELECT customer_id AS id, listagg(status, ',') AS f FROM public.orders GROUP BY 1", "TR-554", None),
    ("SELECT o.id FROM public.orders o WHERE EXISTS (SELECT 1 WHERE o.amount = 1)", "TR-552", "o.amount"),
    (
        "SELECT c.id, (SELECT max(o.amount + (SELECT min(p.price) FROM public.product p)) FROM public.orders o"
        " WHERE o.customer_id = c.id) AS m FROM public.customer c",
        "TR-552",
        "min(p.price)",
    ),
    (
        "SELECT c.id FROM public.customer c WHERE EXISTS (SELECT (SELECT min(p.price) FROM public.product p)"
        " FROM public.orders o WHERE o.customer_id = c.id)",
        "TR-552",
        "min(p.price)",
    ),
    (
        "SELECT c.id FROM public.customer c QUALIFY row_number() OVER (PARTITION BY c.country ORDER BY c.id)"
        " IN (SELECT p.price FROM public.product p)",
        "TR-552",
        "p.price",
    ),
    (
        "SELECT o.id FROM public.orders o WHERE EXISTS (SELECT 1 FROM public.item i WHERE i.order_id = o.id"
        " AND i.product_id IN (SELECT o.id FROM public.product o))",
        "TR-553",
        "o.id AND",
    ),
    ("SELECT customer_id AS id FROM public.orders", "TR-544", "customer_id"),
    ("SELECT o.id FROM public.orders o JOIN public.item i ON i.order_id = o.id", "TR-544", "o.id"),
    ("SELECT count(*) AS id FROM public.orders GROUP BY customer_id", "TR-544", None),
    ("SELECT id FROM public.orders UNION ALL SELECT id FROM public.customer", "TR-544", "id"),
    ("SELECT amount FROM public.orders", "TR-544", "SELECT"),
    ("SELECT 1 AS id, count(*) AS n FROM public.orders", "TR-545", None),
    ("SELECT id, rank() OVER (ORDER BY amount) AS r FROM public.orders", "TR-545", "rank"),
    (
        "SELECT id, row_number() OVER (PARTITION BY status ORDER BY amount) AS r FROM public.orders",
        "TR-546",
        "row_number",
    ),
    ("SELECT id, any_value(at) OVER (PARTITION BY status) AS a FROM public.orders", "TR-546", "any_value"),
    ("SELECT id, mode(at) OVER (PARTITION BY status) AS a FROM public.orders", "TR-546", "mode"),
    ("SELECT id, listagg(at, ',') OVER (PARTITION BY status) AS a FROM public.orders", "TR-546", "at,"),
    ("SELECT id, max_by(id, at) OVER (PARTITION BY status) AS a FROM public.orders", "TR-546", "id, at"),
    ("SELECT id, approx_percentile(amount, 0.5) OVER (PARTITION BY status) AS a FROM public.orders", "TR-546", None),
    ("SELECT id, reflect('java.lang.Math', 'random') AS a FROM public.orders", "TR-554", "reflect"),
    ("SELECT id, lag(id) OVER (PARTITION BY status ORDER BY amount) AS r FROM public.orders", "TR-546", "lag"),
    ("SELECT customer_id AS id, max_by(id, amount) AS m FROM public.orders GROUP BY customer_id", "TR-546", None),
    ("SELECT id, amount AS id FROM public.orders", "TR-547", "amount"),
    ("SELECT id, amount + 1 FROM public.orders", "TR-547", "amount"),
]


@pytest.mark.parametrize(("sql", "code", "at"), REFUSED)
def test_an_unsupported_query_is_refused_with_a_pointer_to_the_place(sql: str, code: str, at: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        declare(QueryText("v", sql), ["id"], CATALOG)
    error = raised.value
    assert error.code == code, error
    assert error.hint
    if at is not None:
        line, caret = error.detail.split("\n")
        place = len(caret) - len("DETAIL ") - 1
        assert line[place:].startswith(at), error


def test_full_refresh_refuses_a_sample_of_a_table() -> None:
    text = QueryText("v", "SELECT id FROM public.orders TABLESAMPLE (10 PERCENT)")
    with pytest.raises(ConfigError, match="TR-541"):
        declare(text, ["id"], CATALOG, refresh="full")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, max(amount) OVER () AS m FROM public.orders",
        "SELECT o.id FROM public.orders o FULL JOIN public.customer c ON c.id = o.customer_id",
        _O + " LIMIT 10",
    ],
)
def test_full_refresh_accepts_queries_that_are_otherwise_refused(sql: str) -> None:
    with pytest.raises(ConfigError):
        declare(QueryText("v", sql), ["id"], CATALOG)
    view = declare(QueryText("v", sql), ["id"], CATALOG, refresh="full")
    assert view.root is None
    assert view.steps(view.tables) == []


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT o.id, i.line FROM public.orders o JOIN public.item i ON i.order_id = o.id", ("id", "line")),
        ("SELECT o.id FROM public.orders o JOIN public.customer c ON c.id = o.customer_id", ("id",)),
        ("SELECT c.id FROM public.orders o JOIN public.customer c ON c.id = o.id", ("id",)),
        ("SELECT customer_id, max_by(amount, id) AS m FROM public.orders GROUP BY customer_id", ("customer_id",)),
        ("SELECT DISTINCT status AS id FROM public.orders", ("id",)),
        ("SELECT id FROM public.orders WHERE amount > (SELECT avg(amount) FROM public.orders)", ("id",)),
        ("SELECT id, max_by(status, id) OVER (PARTITION BY status) AS m FROM public.orders", ("id",)),
        ("SELECT id, window(at, '1 hour').start AS hour FROM public.orders", ("id",)),
        ("SELECT id, any_value(at) OVER (PARTITION BY id) AS m FROM public.orders", ("id",)),
        ("SELECT id, first(at) OVER (PARTITION BY status ORDER BY id) AS m FROM public.orders", ("id",)),
    ],
)
def test_a_key_that_is_provably_unique_is_accepted(sql: str, key: tuple[str, ...]) -> None:
    assert declare(QueryText("v", sql), key, CATALOG).key == key


def test_a_table_that_the_reader_has_overlooked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT id FROM public.orders WHERE customer_id IN (SELECT c.id FROM public.customer c)"
    monkeypatch.setattr(BlockReader, "_subqueries", lambda *_: ())
    with pytest.raises(ConfigError, match=r"(?s)TR-552.*public\.customer"):
        declare(QueryText("v", sql), ["id"], CATALOG)
