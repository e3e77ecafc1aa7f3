"""Views that read views: names, views that cannot be read, and the order of maintenance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.schemas.config.model import Config, Search, Source, View, Warehouse
from tailrace.schemas.errors import ConfigError
from tailrace.spark_jobs.jobs.follow import in_levels
from tailrace.spark_jobs.query.catalog import TableInfo, slug
from tailrace.spark_jobs.query.declared import declare as declare_query
from tailrace.spark_jobs.query.text import QueryText
from tailrace.spark_jobs.views import declare
from tailrace.spark_jobs.views.lower import in_order


def config(**queries: str | View) -> Config:
    views = {
        name: query if isinstance(query, View) else View(query=query, key=["id"]) for name, query in queries.items()
    }
    warehouse = Warehouse(uri="jdbc:sqlite:none", location="none")
    return Config(source=Source(dsn=""), warehouse=warehouse, search=Search(hosts=["http://none"]), views=views)


def test_a_view_depends_on_all_topics_below_it() -> None:
    made = config(
        top="WITH low AS (SELECT id FROM mid) SELECT low.id FROM low JOIN public.b ON b.id = low.id",
        mid="SELECT id FROM low JOIN public.a USING (id)",
        low=View(table="public.c"),
    )
    view = declare(made, "top")
    assert (view.tables, view.views) == (("public.b",), ("mid",))
    assert view.topics == ("tailrace.public.b", "tailrace.public.a", "tailrace.public.c")
    assert view.topic_of == {"public.b": "tailrace.public.b"}
    assert view.topics_read == ("tailrace.public.b",)
    assert declare(made, "low").topics_read == ("tailrace.public.c",)
    assert in_order(made, made.views) == ["low", "mid", "top"]
    assert in_order(made, ["top", "low"]) == ["low", "top"]


def test_a_view_is_maintained_after_those_that_it_reads() -> None:
    made = config(
        top="SELECT id FROM mid JOIN other USING (id)",
        other="SELECT id FROM public.b",
        mid="SELECT id FROM low",
        low=View(table="public.c"),
    )
    kept: list[Any] = [SimpleNamespace(declared=declare(made, name)) for name in in_order(made, made.views)]
    levels = [{view.declared.name for view in level} for level in in_levels(kept)]
    assert levels == [{"low", "other"}, {"mid"}, {"top"}]
    # a view that is not maintained here has no level: it is waited for elsewhere
    assert [[view.declared.name for view in level] for level in in_levels(kept[-1:])] == [["top"]]


def test_a_view_may_have_the_name_of_a_table() -> None:
    query = "SELECT t.id, o.id AS other, o.n FROM public.orders t JOIN orders o ON o.id = t.id"
    catalog = {"public.orders": TableInfo(("id", "amount"), ("id",)), "orders": TableInfo(("id", "n"), ("id",))}
    found = declare_query(QueryText("top", query), ["id"], catalog)
    assert found.tables == ("public.orders", "orders")
    assert "`v___orders__new` AS `o`" in found.over("new")
    assert "`public__orders__new` AS `t`" in found.over("new")
    assert len({slug(name) for name in ("orders", "v.orders", "v._orders", "v__.orders", "a__b", "a.b")}) == 6


def test_a_history_is_read_as_of_a_moment() -> None:
    made = config(
        top="SELECT o.id, d.v FROM public.orders o JOIN dim d ASOF o.at ON d.id = o.dim_id",
        dim=View(table="public.dim", shape="history"),
    )
    view = declare(made, "top")
    assert (view.tables, view.views) == (("public.orders",), ("dim",))
    times = ("valid_from", "valid_to", "valid_from_lsn", "valid_from_ordinal", "valid_to_lsn")
    catalog = {
        "public.orders": TableInfo(("id", "dim_id", "at"), ("id",)),
        "dim": TableInfo(("id", "v", *times), ("id", "valid_from_lsn", "valid_from_ordinal")),
    }
    assert view.text is not None
    found = declare_query(view.text, ["id"], catalog)
    assert "`d`.`valid_from` <= `o`.`at`" in found.over("new")
    assert "`v___dim__new` AS `d`" in found.over("new")


@pytest.mark.parametrize(
    ("queries", "code", "detail"),
    [
        ({"a": "SELECT id FROM a"}, "TR-580", "a -> a"),
        ({"a": "SELECT id FROM b", "b": "SELECT id FROM c", "c": "SELECT id FROM b"}, "TR-580", "b -> c -> b"),
        ({"a": "SELECT id FROM b", "b": View(table="public.t", target="search")}, "TR-581", "in the warehouse"),
        ({"a": "SELECT id FROM bee", "bees": "SELECT id FROM public.t"}, "TR-541", 'view "bees"'),
        ({"a": "SELECT id FROM b"}, "TR-541", "public.b"),
    ],
)
def test_cycles_and_views_that_cannot_be_read_are_refused(
    queries: dict[str, str | View], code: str, detail: str
) -> None:
    with pytest.raises(ConfigError, match=code) as caught:
        declare(config(**queries), "a")
    assert detail in str(caught.value)
