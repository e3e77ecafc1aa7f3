"""Two contents are compared by sums of hashes: each case has a difference that a weaker sum would miss, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tailrace.sinks.target.comparison import Counts
from tailrace.sinks.target.tables import Tables

SCHEMA = "id int, a string, b string, f double, items array<string>, sets map<string, int>, pair struct<x: int, y: int>"
ROW = (1, "a", "b", 1.5, ["x", "y"], {"k": 1, "l": 2}, (1, 2))


def row(number: int, **values: Any) -> tuple[Any, ...]:
    names = [each.split()[0] for each in SCHEMA.replace("map<string, int>", "map").split(", ")][:7]
    return tuple(values.get(name, number if name == "id" else value) for name, value in zip(names, ROW, strict=True))


class Case(NamedTuple):
    """Rows of both sides, and the keys that differ by the kind of difference."""

    live: Sequence[tuple[Any, ...]]
    staged: Sequence[tuple[Any, ...]]
    only_live: int = 0
    only_staged: int = 0
    changed: int = 0
    repeated: int = 0


CASES = {
    "equal, in another order": Case([row(1), row(2)], [row(2), row(1)]),
    "maps in another order": Case([row(1, sets={"k": 1, "l": 2})], [row(1, sets={"l": 2, "k": 1})]),
    "nothing": Case([], []),
    "values swapped between two rows": Case([row(1, a="x"), row(2, a="y")], [row(1, a="y"), row(2, a="x")], changed=2),
    "values swapped between two columns": Case([row(1, a="x", b="y")], [row(1, a="y", b="x")], changed=1),
    "a value and a NULL swapped": Case([row(1, a=None, b="y")], [row(1, a="y", b=None)], changed=1),
    "a letter in the next column": Case([row(1, a="ab", b="c")], [row(1, a="a", b="bc")], changed=1),
    "NULL at another place of an array": Case([row(1, items=[None, "x"])], [row(1, items=["x", None])], changed=1),
    "an array with a NULL, and without": Case([row(1, items=["x", None])], [row(1, items=["x"])], changed=1),
    "an empty array and NULL": Case([row(1, items=[])], [row(1, items=None)], changed=1),
    "a NULL at another place of a struct": Case([row(1, pair=(None, 1))], [row(1, pair=(1, None))], changed=1),
    "values of a map swapped": Case([row(1, sets={"k": 1, "l": 2})], [row(1, sets={"k": 2, "l": 1})], changed=1),
    "zero and its negative": Case([row(1, f=0.0)], [row(1, f=-0.0)], changed=1),
    "a row twice": Case([row(1), row(1), row(2)], [row(1), row(2)], repeated=1),
    "a row twice instead of another": Case([row(1), row(1)], [row(1), row(2)], only_staged=1, repeated=1),
    "a row twice on both sides": Case([row(1), row(1)], [row(1), row(1)], repeated=4),
    # an exclusive or would be the same
    "rows twice, another one each": Case(
        [row(1), row(2), row(2)], [row(1), row(3), row(3)], only_live=2, only_staged=2, repeated=0
    ),
    "a row less and one more": Case([row(1), row(2)], [row(2), row(3)], only_live=1, only_staged=1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_differs_is_found(spark: SparkSession, name: str) -> None:
    case = CASES[name]
    live, staged = (spark.createDataFrame(list(rows), SCHEMA).repartition(3) for rows in (case.live, case.staged))
    counts, listed = Tables(live, staged, ["id"]).compare(spark, 20)
    expected = Counts(len(case.live), len(case.staged), case.only_live, case.only_staged, case.changed, case.repeated)
    assert counts == expected
    assert bool(listed) == (case.only_live + case.only_staged + case.changed > 0)


def test_values_of_two_types_are_compared_as_texts(spark: SparkSession) -> None:
    live = spark.createDataFrame([(1, 5), (2, 6)], "id int, n int")
    staged = spark.createDataFrame([(1, 5), (2, 7)], "id bigint, n bigint")
    counts, (difference,) = Tables(live, staged, ["id"]).compare(spark, 20)
    assert (counts.live, counts.staged, counts.total) == (2, 2, 1)
    assert (difference.key, difference.columns) == ({"id": 2}, ("n",))


def test_only_rows_of_chunks_that_differ_are_joined(spark: SparkSession) -> None:
    live = spark.range(100_000).selectExpr("id", "id * 7 AS n")
    staged = live.selectExpr("id", "if(id = 4711, 0, n) AS n")
    counts, ((difference, there, computed),) = Tables(live, staged, ["id"]).with_rows(20)
    assert (counts.live, counts.staged, counts.changed, counts.total) == (100_000, 100_000, 1, 1)
    assert (difference.key, there, computed) == ({"id": 4711}, [4711, 4711 * 7], [4711, 0])
