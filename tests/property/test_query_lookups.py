"""Steps over looked up rows have the same result as over whole tables; DuckDB runs both, and the query as written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlglot import exp

from tailrace.spark_jobs.query import lookups
from tailrace.spark_jobs.query.declared import DeclaredQuery
from tailrace.spark_jobs.query.lookups import Unreachable
from tests.property.test_query_rewrite import history, wrong_views
from tests.support.shop_engine import Kept, declared
from tests.support.shop_model import EXAMPLES

_BATCHES = 15


def looked_up(*names: str) -> dict[str, Kept]:
    chosen = names or tuple(name for name, example in EXAMPLES.items() if not example.spark_only)
    return {name: Kept(name, by_lookup=True) for name in chosen}


def test_views_maintained_by_lookup_are_their_queries() -> None:
    kept = {name: view for name, view in looked_up().items() if name in _reachable()}
    assert history(kept, 7, _BATCHES) == {}
    assert min((view.looked_up, name) for name, view in kept.items()) > (2, "")


def _planned(view: DeclaredQuery, table: str) -> list[tuple[lookups.Lookup, ...]]:
    return [lookups.lookups(step.query, view.tables) for step in view.steps([f"public.{table}"])]


def _reachable() -> Iterator[str]:
    """Yield the examples that a change of at least one table reaches by equality."""
    for name in EXAMPLES:
        view = declared(name)
        for table in view.tables:
            with suppress(Unreachable):
                if any(_planned(view, table.partition(".")[2])):
                    yield name
                    break


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("inner", "orders"), ("inner", "customer"), ("left", "customer"), ("three", "product"), ("chain", "customer"),
        ("group", "orders"), ("having", "customer"), ("one_to_many", "orders"), ("number", "orders"),
        ("window_over_groups", "orders"), ("semi", "orders"), ("anti", "item"), ("in", "orders"),
        ("not_exists", "orders"), ("scalar", "orders"), ("nested_rows", "product"), ("union", "orders"),
    ],
)  # fmt: skip
def test_the_usual_queries_are_reached_by_equality(name: str, table: str) -> None:
    assert any(_planned(declared(name), table))


@pytest.mark.parametrize(
    ("name", "table", "source"),
    [("crossed", "product", "c"), ("not_in", "orders", "c"), ("group_expression", "orders", "orders"),
     ("newest", "orders", "t"), ("null_side", "orders", "d"), ("nested_groups", "orders", "t"),
     ("group_null_side", "orders", "o")],
)  # fmt: skip
def test_a_query_without_an_equality_is_refused_with_the_source(name: str, table: str, source: str) -> None:
    view = declared(name)
    with pytest.raises(Unreachable, match=f'"{source}"'):
        _planned(view, table)


_SELECT: Any = lookups._Select  # noqa: SLF001
_BOUNDS, _PUSHED, _TIGHTEN, _IN = _SELECT._bounds, _SELECT._pushed, _SELECT._tighten, _SELECT._in  # noqa: SLF001
_LOOK_UP: Any = lookups._Plan.look_up  # noqa: SLF001


def _without_null(self: Any, table: str, which: Any, bounds: Any) -> Any:
    """NULL is a unit like any other, but is not looked up."""
    return _LOOK_UP(self, table, which, [lookups._Bound(b.name, b.of, b.column, nulls=False) for b in bounds])  # noqa: SLF001


def _every_join_filters(self: Any) -> None:
    self._filters += [part for on in self._on.values() for part in on]
    _TIGHTEN(self)


def _every_left_is_inner(self: Any) -> None:
    self._inner |= self._left
    _every_join_filters(self)


def _any_output(self: Any, given: Any) -> Any:
    """Restrict a nested query by an output that is neither grouped nor partitioned by."""
    select = self._select
    self._select = exp.Select(expressions=[part.copy() for part in select.expressions if part.find(exp.Window) is None])
    try:
        return _PUSHED(self, given)
    finally:
        self._select = select


def _only_the_first(self: Any, table: str, which: Any, bounds: Any) -> Any:
    """Take the values of one of several relations."""
    first = [lookups._Bound(b.name, b.of, lookups._Column(b.column.places[:1]), b.nulls) for b in bounds]  # noqa: SLF001
    return _LOOK_UP(self, table, which, first)


@pytest.mark.parametrize(
    ("place", "name", "mistake", "names"),
    [
        (lookups._Plan, "look_up", _without_null, ("group", "number")),  # noqa: SLF001
        (_SELECT, "_tighten", _every_join_filters, ("number_wider", "group_two_sides")),
        (_SELECT, "_tighten", _every_left_is_inner, ("null_side",)),
        (_SELECT, "_pushed", _any_output, ("placed",)),
        (lookups._Plan, "look_up", _only_the_first, ("inner", "left", "three")),  # noqa: SLF001
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) and not isinstance(value, type) else "",
)
def test_a_mistake_planted_in_the_lookups_makes_a_view_differ(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, mistake: Any, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(place, name, mistake)
    assert any(any(wrong_views(looked_up(*names), seed, _BATCHES)) for seed in range(3))
