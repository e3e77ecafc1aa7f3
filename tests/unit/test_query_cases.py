"""Batches after which a query view is easily wrong, one by one; the engine is DuckDB."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.shop_engine import Engine, Kept
from tests.support.shop_model import COLUMNS, KEYS, Row

Batch = dict[str, list[Row]]
"""Rows to put; one that has only its key is deleted."""


def order(number: int, customer: int | None, amount: int = 10, status: str | None = "a", at: int = 0) -> Row:
    return {"id": number, "customer_id": customer, "status": status, "amount": amount, "at": at}


def customer(number: int, country: str | None = "a", segment: int = 2, boss: int | None = None) -> Row:
    return {"id": number, "country": country, "segment": segment, "boss": boss}


_PAIR: Batch = {"orders": [order(1, 1)], "customer": [customer(1)]}
_GONE: Batch = {"orders": [{"id": 1}], "customer": [{"id": 1}]}

CASES: dict[str, tuple[str, list[Batch], list[Any]]] = {
    "both sides of a join deleted": ("inner", [_PAIR, _GONE], []),
    "both sides of a left join deleted": ("left", [_PAIR, _GONE], []),
    "both sides of an outer group deleted": ("group_null_side", [_PAIR, _GONE], []),
    "both sides appear at once": (
        "exists",
        [{}, {**_PAIR, "item": [{"order_id": 1, "line": 1, "product_id": 1, "qty": 3}]}],
        [1],
    ),
    "having is crossed upwards": ("having", [_PAIR, {"orders": [order(2, 1, 50)]}], ["a"]),
    "having is crossed downwards": (
        "having",
        [{**_PAIR, "orders": [order(1, 1, 50), order(2, 1)]}, {"orders": [order(1, 1, 10)]}],
        [],
    ),
    "a missing partner comes": ("without", [{"customer": [customer(1)]}, {"orders": [order(1, 1)]}], []),
    "a partner goes": ("without", [_PAIR, {"orders": [{"id": 1}]}], [1]),
    "a partner goes elsewhere": ("without", [_PAIR, {"orders": [order(1, 2)]}], [1]),
    "the second key appears": ("two_keys", [{"customer": [customer(1)]}, {"orders": [order(7, 1)]}], [(1, 7)]),
    "the second key goes": ("two_keys", [{**_PAIR, "orders": [order(7, 1)]}, {"orders": [{"id": 7}]}], [(1, None)]),
    "a partition wider than the key": (
        "number_wider",
        [{"customer": [customer(1)], "orders": [order(1, 1, 20), order(2, 1, 30)]}, {"orders": [order(3, 1, 10)]}],
        [1, 2, 3],
    ),
    "a place in another partition": (
        "number_wider",
        [
            {"customer": [customer(1), customer(2, "b")], "orders": [order(1, 1), order(2, 1), order(3, 2)]},
            {"customer": [customer(2, "a")]},
        ],
        [1, 2, 3],
    ),
    "NULL is a group": ("group", [{"orders": [order(1, None), order(2, None)]}, {"orders": [order(1, 1)]}], [None, 1]),
    "the group of NULL ends": ("group", [{"orders": [order(1, None)]}, {"orders": [order(1, 1)]}], [1]),
    "both roles of a self join": (
        "self",
        [
            {"customer": [customer(1, boss=5), customer(2, boss=5)]},
            {"customer": [customer(1, boss=6), customer(2, boss=6)]},
        ],
        [(1, 2)],
    ),
    "a key changes": ("inner", [_PAIR, {"orders": [{"id": 1}, order(4, 1)]}], [4]),
    "a NULL enters NOT IN": (
        "not_in",
        [
            {"orders": [order(1, 1)], "customer": [customer(9, "a", boss=8)]},
            {"customer": [customer(9, "a", boss=None)]},
        ],
        [],
    ),
    "NOT IN of nothing": (
        "not_in",
        [{"orders": [order(1, None)], "customer": [customer(9, "a", boss=8)]}, {"customer": [{"id": 9}]}],
        [1],
    ),
    "the first of a partition goes": (
        "newest",
        [{"orders": [order(1, 1, at=5), order(2, 1, at=9)]}, {"orders": [{"id": 2}]}],
        [1],
    ),
    "a row moves from one branch's source to nothing": ("union_all", [_PAIR, {"customer": [{"id": 1}]}], []),
    "the last of equal rows goes": (
        "distinct",
        [_PAIR, {"orders": [order(1, 1), order(2, 1)]}, {"orders": [{"id": 1}]}],
        [("a", "a")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_view_equals_its_query_after_each_batch(case: str) -> None:
    name, batches, keys = CASES[case]
    engine, view = Engine(), Kept(name)
    tables: dict[str, dict[Any, Row]] = {table: {} for table in COLUMNS}
    for batch in batches:
        old = {table: dict(rows) for table, rows in tables.items()}
        for table, rows in batch.items():
            for row in rows:
                key = tuple(row[part] for part in KEYS[table])
                if len(row) == len(key):
                    del tables[table][key]
                else:
                    tables[table][key] = row
        view.apply(engine, engine.load(old, tables))
        view.check(engine)
    assert set(view.shown) == {key if isinstance(key, tuple) else (key,) for key in keys}
