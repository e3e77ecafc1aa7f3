"""As-of joins against a history: a row keeps what stood at its moment, by batches and by a rebuild alike."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from schemas.config import View
from schemas.errors import TailraceError
from spark_jobs.rebuild import rebuild
from tests.spark.conftest import Bench, step
from tests.spark.pipeline import Pipeline, column


class Prices:
    """Products whose prices change, and orders at moments past and to come; a commit's time is its LSN, in ms."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._random = random.Random(3)
        pipeline.table("product", [column("id", "int4"), column("price", "int4")], ("id",))
        pipeline.table(
            "orders", [column("id", "int4"), column("product", "int4"), column("at", "timestamptz")], ("id",)
        )
        self._past: list[tuple[int, dict[int, int]]] = []

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

    def expected(self) -> dict[int, int | None]:
        """Order → the price that its product had at its moment."""
        found = {}
        for row in self.pipeline.tables["orders"].rows.values():
            stood = [prices for lsn, prices in self._past if lsn * 1000 <= row["at"]]
            found[row["id"]] = stood[-1].get(row["product"]) if stood else None
        return found


def test_a_row_keeps_what_stood_at_its_moment(bench: Callable[..., Bench]) -> None:
    suffix = uuid.uuid4().hex[:8]
    history, sales = f"price_{suffix}", f"sales_{suffix}"
    query = f"SELECT o.id, p.price FROM public.orders o LEFT JOIN {history} p ASOF o.at ON p.id = o.product"
    made = bench({history: View(table="public.product", shape="history"), sales: View(query=query, key=["id"])})
    prices = Prices(made.pipeline)
    kept = [made.kept(history), made.kept(sales)]
    for _ in range(3):
        for _ in range(3):
            prices.change()
        step(made, *kept)
        assert {row["id"]: row["price"] for row in made.rows(sales)} == prices.expected()
    assert len(set(prices.expected().values())) > 3
    rebuild(made.shared, made.kept(sales))
    assert {row["id"]: row["price"] for row in made.rows(sales)} == prices.expected()


def test_what_has_no_versions_is_refused(bench: Callable[..., Bench]) -> None:
    query = "SELECT o.id FROM public.orders o JOIN public.product p ASOF o.at ON p.id = o.product"
    made = bench({"v": View(query=query, key=["id"])})
    Prices(made.pipeline).change()
    with pytest.raises(TailraceError, match="TR-568"):
        step(made, made.kept("v"))
