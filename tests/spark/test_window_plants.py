"""Mistakes planted in the rewriter, one or more for each kind of view by time: the random test finds each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from tailrace.spark_jobs.query import rewrite, units
from tailrace.spark_jobs.query.times import is_window
from tests.spark.test_windows import BATCHES, CASES, history, oracle
from tests.support.window_world import Oracle

__all__ = ["oracle"]
_REWRITER = rewrite.Rewriter
_IMAGE, _FROM, _UNIT = rewrite.image_of, rewrite.from_clause, units.unit
_RESTRICTED, _AFFECTED, _BESIDE = _REWRITER.restricted, _REWRITER._affected, _REWRITER._beside  # noqa: SLF001


def _only_after(source: Any, image: str) -> exp.Expr:
    """Recompute only what new rows are in: a deleted row leaves its window, and does not split its session."""
    return _IMAGE(source, "after")


def _open_join(query: exp.Select, plan: Any, *rest: Any) -> exp.Select:
    """Leave the bounds out of an interval."""
    return _without_bounds(_FROM(query, plan, *rest))


def _open_match(self: Any, *args: Any) -> exp.Select:
    """Leave the bounds out of an interval in which a LEFT JOIN matches."""
    return _without_bounds(_BESIDE(self, *args))


def _without_bounds(query: exp.Select) -> exp.Select:
    for node in list(query.find_all(exp.LTE, exp.GTE, exp.Between)):
        if isinstance(node, exp.Between):
            low = exp.LT(this=node.args["low"].copy(), expression=node.this.copy())
            node.replace(exp.and_(low, exp.LT(this=node.this.copy(), expression=node.args["high"].copy())))
        else:
            strict = exp.LT if isinstance(node, exp.LTE) else exp.GT
            node.replace(strict(this=node.this, expression=node.expression))
    return query


def _row_alone(block: Any, keys: Any) -> tuple[exp.Expr, ...]:
    """Recompute only changed rows of a frame, and not those that have them in their frames."""
    return tuple(units.rows_of(block, keys)) if block.windows else _UNIT(block, keys)


def _one_minute(block: Any, keys: Any) -> tuple[exp.Expr, ...]:
    """Recompute sessions of the rows in the minute of a changed row, without their neighbors."""
    calls = [part for part in block.group if is_window(part, "session_window")]
    at = [exp.Literal.string("minute"), *(call.expressions[0].copy() for call in calls)]
    return (*_UNIT(block, keys), *([exp.Anonymous(this="date_trunc", expressions=at)] if calls else []))


def _changed_rows(self: Any, block: Any, which: Any) -> exp.Select:
    """Recompute groups of their changed rows alone."""
    found = _RESTRICTED(self, block, which)
    for table in list(found.find_all(exp.Table)) if block.aggregates else ():
        if table.name.endswith(f"__{which}"):
            image = {"old": "before", "new": "after"}[which]
            table.set("this", exp.to_identifier(table.name.removesuffix(which) + image, quoted=True))
    return found


def _another_of_equals(self: Any, block: Any, which: Any) -> exp.Select:
    """Let another one of equal times be the newest."""
    found = _RESTRICTED(self, block, which)
    for window in found.find_all(exp.Window):
        order = window.args.get("order")
        if order is not None and len(order.expressions) > 1:
            last = order.expressions[-1]
            last.set("desc", not last.args.get("desc"))
    return found


def _only_the_left_side(self: Any, block: Any, source: Any) -> Iterator[exp.Select]:
    """Join rows of the right side only with later ones of the left side."""
    late = source is not block.sources[0]
    yield from (query.where(exp.false()) if late else query for query in _AFFECTED(self, block, source))


@pytest.mark.parametrize(
    ("place", "name", "mistake", "view"),
    [
        (rewrite, "image_of", _only_after, "tumbling 1 hours 1 hours 15 minutes tz"),
        (rewrite, "image_of", _only_after, "hopping 15 minutes 10 minutes 0 seconds at"),
        (rewrite, "image_of", _only_after, "session 10 minutes tz"),
        (rewrite, "unit", _one_minute, "session 10 minutes tz"),
        (rewrite, "unit", _row_alone, "frame tz -150 seconds 600 seconds"),
        (rewrite, "from_clause", _open_join, "inner around at"),
        (_REWRITER, "_beside", _open_match, "left around at"),
        (rewrite, "image_of", _only_after, "left after tz"),
        (_REWRITER, "_affected", _only_the_left_side, "without a day before tz"),
        (_REWRITER, "_affected", _only_the_left_side, "as of LEFT tz"),
        (rewrite, "unit", _row_alone, "as of INNER at"),
        (_REWRITER, "restricted", _another_of_equals, "as of LEFT tz"),
        (_REWRITER, "restricted", _changed_rows, "about 0.05"),
        (_REWRITER, "restricted", _changed_rows, "percentiles"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) and not isinstance(value, type) else "",
)
def test_a_planted_mistake_makes_the_view_differ(
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    mistake: Any,
    view: str,
    spark: SparkSession,
    oracle: Oracle,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(place, name, mistake)
    seeds = (1, 4)
    assert any(view in history([CASES[view]], spark, oracle, tmp_path / str(seed), seed, BATCHES) for seed in seeds)
