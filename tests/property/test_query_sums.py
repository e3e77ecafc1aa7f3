"""Groups that are brought forward by sums are those of the query; DuckDB adds up, and runs the query as written."""

from __future__ import annotations

from typing import Any

import pytest
from sqlglot import exp

from tailrace.spark_jobs.query import rewrite, sums
from tailrace.spark_jobs.query.declared import declare
from tailrace.spark_jobs.query.text import QueryText
from tests.property.test_query_rewrite import history, wrong_views
from tests.support.shop_engine import Kept
from tests.support.shop_model import CATALOG

_BATCHES = 40
_NAMES = ("having", "sums", "sums_of_pairs")


def by_sums(**how: Any) -> dict[str, Kept]:
    return {name: Kept(name, by_sums=True, **how) for name in _NAMES}


@pytest.mark.parametrize("by_lookup", [False, True], ids=["whole", "by_lookup"])
@pytest.mark.parametrize("seed", range(2))
def test_views_maintained_by_sums_are_their_queries(seed: int, *, by_lookup: bool) -> None:
    kept = by_sums(by_lookup=by_lookup)
    assert history(kept, seed, _BATCHES) == {}
    assert min((view.batches, name) for name, view in kept.items()) > (1, "")


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT status, max(amount) AS m FROM public.orders GROUP BY status", "status"),
        ("SELECT status, avg(amount) AS m FROM public.orders GROUP BY status", "status"),
        ("SELECT status, count(DISTINCT amount) AS m FROM public.orders GROUP BY status", "status"),
        ("SELECT status, sum(DISTINCT amount) AS m FROM public.orders GROUP BY status", "status"),
        ("SELECT status, count(amount, at) AS m FROM public.orders GROUP BY status", "status"),
        ("SELECT status, count(*) AS n, sum(count(*)) OVER (PARTITION BY status) AS m FROM public.orders"
         " GROUP BY status", "status"),
        ("SELECT window.start AS s, count(*) AS n FROM public.orders GROUP BY window(at, '1 hour')", "s"),
        ("SELECT c.id, count(o.id) AS n FROM public.customer c LEFT JOIN public.orders o ON o.customer_id = c.id"
         " GROUP BY c.id", "id"),
        ("SELECT status, count(*) AS n FROM public.orders WHERE customer_id IN (SELECT id FROM public.customer)"
         " GROUP BY status", "status"),
        ("SELECT t.status, count(*) AS n FROM (SELECT status FROM public.orders) t GROUP BY t.status", "status"),
        ("SELECT DISTINCT status, count(*) AS n FROM public.orders GROUP BY status", "status"),
        ("SELECT status, id FROM public.orders", "id"),
    ],
)  # fmt: skip
def test_other_queries_recompute_their_groups(sql: str, key: str) -> None:
    assert declare(QueryText("v", sql), (key,), CATALOG).sums is None


def _one_state(sources: Any, which: Any) -> Any:
    return _STATES(sources, "new")


def _only_after(source: Any, image: str) -> exp.Expr:
    return _IMAGE(source, "after")


def _without_condition(self: Any, node: exp.Expr, condition: Any) -> exp.Expr:
    found: exp.Expr = _AGGREGATE(self, node, None)
    return found


def _count_all(self: Any, node: exp.Expr, condition: Any) -> exp.Expr:
    """NULL is counted."""
    found: exp.Expr = _AGGREGATE(self, node, condition)
    return exp.column("n") if isinstance(node, exp.Count) else found


_STATES, _IMAGE = rewrite.states_of, rewrite.image_of
_AGGREGATE: Any = sums._Reader._aggregate  # noqa: SLF001


@pytest.mark.parametrize(
    ("place", "name", "mistake"),
    [
        (sums, "states_of", _one_state),
        (sums, "image_of", _only_after),
        (sums._Reader, "_aggregate", _without_condition),  # noqa: SLF001
        (sums._Reader, "_aggregate", _count_all),  # noqa: SLF001
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) and not isinstance(value, type) else "",
)
def test_a_mistake_planted_in_the_sums_makes_a_view_differ(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, mistake: Any
) -> None:
    monkeypatch.setattr(place, name, mistake)
    assert any(wrong_views(by_sums(), 0, _BATCHES))
