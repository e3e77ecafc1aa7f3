"""The SQL that maintains query views, run by DuckDB: after every batch each view equals its query.

DuckDB runs the query as it was written, and knows nothing of how it was taken apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import duckdb
import pytest
from sqlglot import exp

from tailrace.spark_jobs.query import blocks, rewrite, units
from tests.support.shop_engine import Engine, Kept
from tests.support.shop_model import COLUMNS, EXAMPLES, Key, Row, ShopModel

_BATCHES = 40


def wrong_views(kept: Mapping[str, Kept], seed: int, batches: int) -> Iterator[tuple[str, str]]:
    """Apply random batches to all views until one differs from its query; yield each wrong view with its error."""
    engine, model = Engine(), ShopModel(seed)
    old: dict[str, dict[Key, Row]] = {table: {} for table in COLUMNS}
    for number in range(batches):
        model.fill() if number == 0 else model.change()
        new = {table: dict(rows) for table, rows in model.tables.items()}
        changed = engine.load(old, new)
        is_wrong = False
        for name, view in kept.items():
            try:
                view.apply(engine, changed)
                view.check(engine)
            except (AssertionError, KeyError, duckdb.Error) as error:
                is_wrong = True
                yield name, f"batch {number}: {error!r:.600}"
        if is_wrong:
            return
        old = new


def history(kept: Mapping[str, Kept], seed: int, batches: int) -> dict[str, str]:
    """Return the views that are wrong after the same batch, the first with any."""
    return dict(wrong_views(kept, seed, batches))


def all_kept() -> dict[str, Kept]:
    return {name: Kept(name) for name, example in EXAMPLES.items() if not example.spark_only}


@pytest.mark.parametrize("seed", range(2))
def test_views_are_their_queries_after_every_batch(seed: int) -> None:
    kept = all_kept()
    assert history(kept, seed, _BATCHES) == {}
    assert min((view.batches, name) for name, view in kept.items()) > (2, "")


def _one_state(query: exp.Expr, which: str) -> exp.Expr:
    return _AT(query, "new")


def _plain_equality(self: Any, block: Any, which: Any) -> exp.Select:
    found = _RESTRICTED(self, block, which)
    for node in list(found.find_all(exp.NullSafeEQ)):
        if "tailrace_units" in node.sql():
            node.replace(exp.EQ(this=node.this, expression=node.expression))
    return found


def _left_as_inner(query: exp.Select, plan: Any, *rest: Any) -> exp.Select:
    return _FROM(query, [(read, replace(source, how="inner"), on) for read, source, on in plan], *rest)


def _without_unknown(self: Any, found: Any) -> Any:
    source = _SUBQUERY(self, found)
    return replace(source, on=tuple(part.find(exp.EQ) or part for part in source.on))


def _only_before(source: Any, image: str) -> exp.Expr:
    return _IMAGE(source, "before")


def _others_new(sources: Any, which: Any) -> Any:
    return _STATES(sources, "new")


def _others_old(sources: Any, which: Any) -> Any:
    return _STATES(sources, "old")


def _key_alone(block: Any, keys: Any) -> tuple[exp.Expr, ...]:
    return tuple(units.rows_of(block, keys)) if block.windows else _UNIT(block, keys)


_AT, _IMAGE, _FROM, _UNIT = rewrite.at, rewrite.image_of, rewrite.from_clause, units.unit
_STATES = rewrite.states_of
_RESTRICTED, _SUBQUERY = rewrite.Rewriter.restricted, blocks.BlockReader.subquery


@pytest.mark.parametrize(
    ("place", "name", "mistake"),
    [
        (rewrite, "at", _one_state),
        (rewrite, "image_of", _only_before),
        (rewrite, "from_clause", _left_as_inner),
        (rewrite, "states_of", _others_new),
        (rewrite, "states_of", _others_old),
        (rewrite, "unit", _key_alone),
        (rewrite.Rewriter, "restricted", _plain_equality),
        (blocks.BlockReader, "subquery", _without_unknown),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_mistake_planted_in_the_rewriter_makes_a_view_differ(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, mistake: Any
) -> None:
    monkeypatch.setattr(place, name, mistake)
    assert any(wrong_views(all_kept(), 0, _BATCHES))
