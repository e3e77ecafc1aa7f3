"""As-of joins with a history: a row has the version at its moment, by batches and by a rebuild alike."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import TailraceError
from tailrace.sinks.control.positions import read_schemas
from tailrace.spark_jobs.jobs.explain import declared_query, queries_below
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.maintain.analysis import Analysis
from tailrace.spark_jobs.views import declare as declare_view
from tests.spark.conftest import Bench, no_scan, step
from tests.spark.pipeline import Pipeline, column


class Prices:
    """Changing prices, and orders at past and future moments; the time of a commit is its LSN, in ms."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._random = random.Random(3)
        pipeline.table("product", [column("id", "int4"), column("price", "int4")], ("id",))
        pipeline.table(
            "orders", [column("id", "int4"), column("product", "int4"), column("at", "timestamptz")], ("id",)
        )
        self._past: list[tuple[int, dict[int, int]]] = []
        self._first: dict[int, int] = {}

    def change(self) -> None:
        pick, tables = self._random, self.pipeline.tables
        with self.pipeline.transaction() as tx:
            for product in pick.sample(range(1, 6), 3):
                if pick.random() < 0.3 and (product,) in tables["product"].rows:
                    tx.delete("product", product)
                else:
                    tx.put("product", {"id": product, "price": pick.randint(1, 5)})
            for order in pick.sample(range(1, 20), 5):
                at = pick.randint(1000, self.pipeline.lsn + 30)
                tx.put("orders", {"id": order, "product": pick.randint(1, 5), "at": at * 1000})
        prices = {row["id"]: row["price"] for row in tables["product"].rows.values()}
        self._past.append((self.pipeline.lsn, prices))
        self._first = prices | self._first

    def expected(self, *, first: bool = False) -> dict[int, int | None]:
        """Return the price of each order's product at its moment; with `first`, else the first price known."""
        found = {}
        for row in self.pipeline.tables["orders"].rows.values():
            stood = [prices for lsn, prices in self._past if lsn * 1000 <= row["at"]]
            found[row["id"]] = stood[-1].get(row["product"]) if stood else None
            if first and not any(row["product"] in prices for prices in stood):
                found[row["id"]] = self._first.get(row["product"])
        return found


def test_an_asof_join_gives_the_version_at_the_row_s_moment(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    suffix = uuid.uuid4().hex[:8]
    history, sales, early = f"price_{suffix}", f"sales_{suffix}", f"early_{suffix}"
    query = f"SELECT o.id, p.price FROM public.orders o LEFT JOIN {history} p ASOF o.at ON p.id = o.product"
    wrong = f"SELECT o.id, date_add(p.price, 'x') AS d FROM public.orders o JOIN {sales} p ON p.id = o.id"
    declared = {
        history: View(table="public.product", shape="history"),
        sales: View(query=query, key=["id"]),
        early: View(query=query, key=["id"], asof_before="first"),
        "wrong": View(query=wrong, key=["id"]),
        "routine": View(query="SELECT id, no_such(id) AS n FROM public.orders", key=["id"]),
        "missing": View(query="SELECT id FROM public.order", key=["id"]),
        "absent": View(table="public.order"),
    }
    made = bench(declared)
    prices = Prices(made.pipeline)
    kept = [made.kept(name) for name in (history, sales, early)]
    differed = False
    for number in range(5):
        for _ in range(3):
            prices.change()
        with monkeypatch.context() as patched:
            if number > 1:
                no_scan(patched)
            step(made, *kept)
        assert {row["id"]: row["price"] for row in made.rows(sales)} == prices.expected()
        assert {row["id"]: row["price"] for row in made.rows(early)} == prices.expected(first=True)
        differed = differed or prices.expected() != prices.expected(first=True)
    assert differed
    assert len(set(prices.expected().values())) > 3
    for name, first in ((sales, False), (early, True)):
        rebuild(made.shared, made.kept(name))
        assert {row["id"]: row["price"] for row in made.rows(name)} == prices.expected(first=first)
    assert set(made.rows(early)[0]) == {"id", "price"}
    what_spark_refuses_is_said_before(made, (sales, early))
    for name, code in (("missing", "TR-507"), ("absent", "TR-507")):
        with pytest.raises(TailraceError, match=code) as failed:
            step(made, made.kept(name))
        listed = "Captured tables with a key: public.orders, public.product."
        assert failed.value.hint == f'Did you mean "public.orders"? {listed}'


def what_spark_refuses_is_said_before(made: Bench, good: tuple[str, ...]) -> None:
    """`views explain --check` analyses the queries over empty tables."""
    stored = read_schemas(made.config.kafka, made.pipeline.topics)

    def check(name: str) -> None:
        view = declare_view(made.config, name)
        lower = dict(queries_below(made.config, view, stored))
        Analysis(made.shared.session, made.config, stored).check(view, declared_query(made.config, view, stored), lower)

    for name in good:
        check(name)
    for name in ("wrong", "routine"):
        with pytest.raises(TailraceError, match="TR-550"):
            check(name)
    with pytest.raises(TailraceError, match="TR-541") as failed:
        check("missing")
    assert 'Did you mean "public.orders"?' in failed.value.hint
    assert made.shared.session.sql("SHOW VIEWS").collect() == []


def test_an_asof_join_with_a_table_without_versions_is_refused(bench: Callable[..., Bench]) -> None:
    query = "SELECT o.id FROM public.orders o JOIN public.product p ASOF o.at ON p.id = o.product"
    made = bench({"v": View(query=query, key=["id"])})
    Prices(made.pipeline).change()
    with pytest.raises(TailraceError, match="TR-568"):
        step(made, made.kept("v"))
