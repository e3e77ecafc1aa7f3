"""Query views from topics to targets: after every batch each is its query over the tables at its cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import SinkError, TailraceError
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.read.views import read_view
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.maintain.base_tables import NAMESPACE, BaseTables
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.records import Records
from tests.spark.conftest import ROUNDS, Bench, newest, step, write_half
from tests.spark.pipeline import column
from tests.spark.shop import Change, Shop

Make = Callable[..., Bench]

_NAMES = (
    *("without", "two_keys", "three", "self", "group_null_side", "not_in", "number_wider", "newest", "left@search"),
)


def test_views_equal_their_queries_after_random_transactions(bench: Make, search_url: str) -> None:
    shop = Shop(bench, _NAMES, search_url, seed=3)
    shop.commit(shop.model.fill())
    shop.step()
    shop.check()
    for _ in range(ROUNDS):
        for _ in range(2):
            shop.commit(shop.model.change())
        shop.step()
        shop.check()
    shop.commit([shop.model.truncate("customer")])
    shop.step()
    shop.check()


def test_a_batch_without_a_change_commits_nothing(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(bench, ["having"])
    shop.commit(shop.model.fill())
    shop.step()
    # The tables' schemas are already known.
    monkeypatch.setattr("tailrace.spark_jobs.topics.records.read_schemas", _raise(AssertionError("read again")))
    # Tables that are quiet for longer than the topics retain deletes are maintained all the same.
    neglect_bases(shop)
    shop.bench.pipeline.idle()
    shop.step()
    target = shop.views["having"].batch.target
    assert isinstance(target, IcebergTarget)
    before = target.live()
    assert before is not None
    # A change in a table that the view does not read, and one that changes no group.
    shop.commit([shop.model.put("product", {"id": 1, "category": "z", "price": 1})])
    shop.step()
    order = next(row for row in shop.model.tables["orders"].values())
    shop.commit([shop.model.put("orders", order | {"status": "other"})])
    shop.step()
    after = target.live()
    assert after is not None
    assert after.snapshot_id == before.snapshot_id
    assert shop.check()


def test_a_batch_that_was_interrupted_is_repeated(bench: Make, search_url: str, monkeypatch: Any) -> None:
    """Base tables may be ahead of the view, and the index may already have documents of the batch."""
    shop = Shop(bench, ["two_keys", "two_keys@search"], search_url)
    shop.commit(shop.model.fill())
    shop.step()
    shop.commit(shop.model.change())
    refused = SinkError("TR-531", "planted")
    with monkeypatch.context() as patched:
        write_half(patched, refused)
        patched.setattr(IcebergTarget, "merge", _raise(refused))
        for view in shop.views.values():
            with pytest.raises(Exception, match=r"planted|PythonException"):
                step(shop.bench, view)
            view.park(refused)
    # Rows of the interrupted batch are deleted before the next one.
    shop.commit([shop.model.delete("orders", key) for key in list(shop.model.tables["orders"])])
    shop.step()
    shop.commit(shop.model.fill(2))
    shop.step()
    shop.check()


def neglect_bases(shop: Shop) -> None:
    """Make it look as if the base tables had not advanced for a long time."""
    shared = shop.bench.shared
    for name, record in read_views(shared.config.kafka, shop.bench.pipeline.topics).items():
        if name.startswith(NAMESPACE):
            shared.views_topic.publish(replace(record, current_ms=1))
    for base in shared.bases.values():
        base.forget()


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_a_stale_view_or_a_changed_query_needs_a_rebuild(bench: Make) -> None:
    shop = Shop(bench, ["inner"])
    shop.commit(shop.model.fill())
    shop.step()
    shop.commit([customer(shop, 1), *shop.model.fill(1)])
    neglect_bases(shop)
    with pytest.raises(TailraceError, match=f"(?s)TR-526.*rebuild {shop.called('inner')}$"):
        shop.step()
    neglect_bases(shop)
    again = rebuild(shop.bench.shared, shop.bench.kept(shop.called("inner")))
    assert again.generation == 2
    shop.check()
    shop.commit([customer(shop, 1), order(shop, 1, "new", customer_id=1)])
    shop.step()
    shop.check()
    changed = shop.bench.config.views[shop.called("inner")]
    shop.bench.config.views[shop.called("inner")] = changed.model_copy(update={"query": f"{changed.query} WHERE true"})
    other = shop.bench.kept(shop.called("inner"))
    shop.commit(shop.model.change())
    with pytest.raises(TailraceError, match="TR-548"):
        step(shop.bench, other)
    assert rebuild(shop.bench.shared, other).generation == 3
    shop.check()


def test_two_processes_that_rebuild_a_base_table_use_the_newer_cut(bench: Make) -> None:
    """The slower process has an older cut: a rebuild there would take the state from views at a newer cut."""
    shop = Shop(bench, ["inner"])
    shop.commit(shop.model.fill())
    shop.step()
    (view,) = shop.views.values()
    topics = view.declared.topics[:1]
    shop.commit([order(shop, 1, "new")])
    older = newest(shop.bench)
    shop.commit([order(shop, 1, "newer")])
    neglect_bases(shop)
    slower, faster = (BaseTables(replace(shop.bench.shared, bases={}), view.declared) for _ in range(2))
    step_ = slower.step

    def overtaken(base: KeptView, seen: SeenCut) -> Applied:
        try:
            return step_(base, seen)
        except TailraceError:
            slower.step = step_  # type: ignore[method-assign]
            faster.renew(topics, newest(shop.bench))
            raise

    slower.step = overtaken  # type: ignore[method-assign]
    slower.renew(topics, older)
    live = slower.target(topics[0]).live()
    assert live is not None
    assert (live.generation, live.cut.flushed_lsn) == (2, newest(shop.bench).cut.flushed_lsn)


def test_a_full_refresh_equals_its_query_s_present_result(bench: Make) -> None:
    """Also if the query's result depends on more than the tables: here on a setting of the session."""
    shop = Shop(bench, ["left"])
    name = shop.called("left")
    query = "SELECT id, country FROM public.customer WHERE id = 1 OR current_timezone() = 'UTC'"
    shop.bench.config.views[name] = View(query=query, key=["id"], refresh="full")
    view = shop.bench.kept(name)
    shop.commit([customer(shop, number) for number in (1, 2, 3)])
    step(shop.bench, view)
    view.batch.session.conf.set("spark.sql.session.timeZone", "Europe/Paris")
    shop.commit([customer(shop, 1, "z")])
    step(shop.bench, view)
    assert list(read_view(shop.bench.config, name).rows) == [{"id": 1, "country": "z"}]


def test_a_key_that_is_not_unique_is_refused(bench: Make) -> None:
    """The texts '1' and '01' equal the number 1, but the analysis of the query treats them as one value."""
    shop = Shop(bench, ["left"])
    name = shop.called("left")
    shop.bench.config.views[name] = View(
        query="SELECT c.id, s.n FROM public.customer c JOIN (SELECT status, count(*) AS n FROM public.orders"
        " GROUP BY status) s ON s.status = c.id",
        key=["id"],
    )
    view = shop.bench.kept(name)
    shop.commit([customer(shop, 1), order(shop, 1, "1")])
    step(shop.bench, view)
    shop.commit([order(shop, 2, "01")])
    with pytest.raises(TailraceError, match="TR-549"):
        step(shop.bench, view)
    with pytest.raises(TailraceError, match="TR-549"):
        rebuild(shop.bench.shared, shop.bench.kept(name))
    assert list(read_view(shop.bench.config, name).rows) == [{"id": 1, "n": 1}]


def customer(shop: Shop, number: int, country: str = "a") -> Change:
    return shop.model.put("customer", {"id": number, "country": country, "segment": None, "boss": None})


def order(shop: Shop, number: int, status: str, customer_id: int | None = None) -> Change:
    row = {"id": number, "customer_id": customer_id, "status": status, "amount": number, "at": None}
    return shop.model.put("orders", row)


def test_nested_lists_are_equal_in_warehouse_and_index(bench: Make, search_url: str) -> None:
    shop = Shop(bench, ["document", "document@search"], search_url)
    shop.commit(shop.model.fill())
    shop.step()
    for _ in range(2):
        rows = [
            sorted(
                (dict(row) for row in read_view(shop.bench.config, shop.called(name)).rows), key=lambda row: row["id"]
            )
            for name in shop.names
        ]
        assert rows[0] == rows[1]
        assert rows[0] == documents(shop)
        shop.commit(shop.model.change())
        shop.step()


def documents(shop: Shop) -> list[dict[str, Any]]:
    orders = shop.model.tables["orders"].values()
    return [
        {
            "id": row["id"],
            "country": row["country"],
            "orders": sorted(
                (
                    {"at": order["at"], "order_id": order["id"], "amount": order["amount"]}
                    for order in orders
                    if order["customer_id"] == row["id"]
                ),
                key=lambda order: (order["at"] is not None, order["at"] or 0, order["order_id"]),
            ),
        }
        for _, row in sorted(shop.model.tables["customer"].items())
    ]


def test_views_follow_changed_columns_or_need_a_rebuild(bench: Make) -> None:
    shop = Shop(bench, ["left"])
    pipeline, name = shop.bench.pipeline, shop.called("left")
    shop.bench.config.views[name] = View(
        query="SELECT c.*, o.amount FROM public.customer c LEFT JOIN public.orders o ON o.id = c.id", key=["id"]
    )
    other_name = f"{name}_other"
    shop.bench.config.views[other_name] = View(query="SELECT id, country FROM public.customer", key=["id"])
    view, beside = shop.bench.kept(name), shop.bench.kept(other_name)
    shop.commit(shop.model.fill())
    step(shop.bench, view, beside)
    pipeline.reshape("customer", [*pipeline.tables["customer"].relation.columns, column("note", "text")])
    with pipeline.transaction() as tx:
        tx.put("customer", {"id": 1, "country": "a", "note": "new"})
        tx.put("orders", {"id": 1, "amount": 5})
    # Another process is faster, so this one's read of the table does not show the new column.
    other = Records(shop.bench.shared.session, shop.bench.config.kafka)
    shared = replace(shop.bench.shared, records=other, bases={})
    BaseTables(shared, view.declared).advance(view.declared.topics, newest(shop.bench))
    step(shop.bench, view)
    found = {row["id"]: row for row in read_view(shop.bench.config, name).rows}
    assert (found[1]["note"], found[1]["amount"]) == ("new", 5)
    assert all(row["note"] is None for number, row in found.items() if number != 1)
    # The view's rebuild makes changes that the base table cannot make in place.
    pipeline.reshape("customer", [column("id", "int4"), column("country", "timestamp")])
    with pipeline.transaction() as tx:
        tx.truncate("customer")
        tx.put("customer", {"id": 1, "country": 5})
    with pytest.raises(TailraceError, match=rf"(?s)TR-522.*the base table of public\.\w+: column.*rebuild {name}$"):
        step(shop.bench, view)
    rebuild(shop.bench.shared, shop.bench.kept(name))
    with pipeline.transaction() as tx:
        tx.put("customer", {"id": 2, "country": 6})
    step(shop.bench, view)
    with pytest.raises(TailraceError, match=f"(?s)TR-551.*rebuild {other_name}$"):
        step(shop.bench, beside)
    rebuild(shop.bench.shared, shop.bench.kept(other_name))
    step(shop.bench, beside)
    assert sorted(row["country"] for row in read_view(shop.bench.config, other_name).rows) == [5, 6]
    rows = sorted(read_view(shop.bench.config, name).rows, key=lambda row: row["id"])
    assert rows == [{"id": 1, "country": 5, "amount": 5}, {"id": 2, "country": 6, "amount": rows[1]["amount"]}]


@pytest.mark.parametrize(
    ("query", "key", "code"),
    [
        ("SELECT id FROM public.none", ["id"], "TR-507"),
        ("SELECT id FROM none", ["id"], "TR-541"),
        ("SELECT id, nope FROM public.customer", ["id"], "TR-542"),
        ("SELECT id, no_such_function(country) AS a FROM public.customer", ["id"], "TR-550"),
    ],
)
def test_queries_that_cannot_be_maintained_are_refused(bench: Make, query: str, key: list[str], code: str) -> None:
    shop = Shop(bench, ["left"])
    name = shop.called("left")
    shop.bench.config.views[name] = View(query=query, key=key)
    shop.commit(shop.model.fill(1))
    with pytest.raises(TailraceError, match=code):
        step(shop.bench, shop.bench.kept(name))
