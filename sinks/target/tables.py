"""Compare two DataFrames by their key in Spark; the driver receives counts and the keys to list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, Self

import orjson
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tailrace.sinks.spark.comparable import comparable
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.comparison import Counts, Difference
from tailrace.sinks.target.protocol import DELETED

Values = list[Any]
"""The values of a row in the order of `Tables.common`."""

_PARTS: Final = 1_000_000
"""A sample is chosen to this precision."""

_WITH_NULLS: Final = {"ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True)
class Tables:
    """Two contents of a view, joined by their key; if `are_json`, all columns but the key are JSON texts.

    `form` turns rows of the view into those of the staged side.
    """

    live: DataFrame
    staged: DataFrame
    key: Sequence[str]
    are_json: bool = False
    form: Callable[[DataFrame], DataFrame] = lambda rows: rows

    @property
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of the live and of the staged generation."""
        return tuple(self.live.columns), tuple(self.staged.columns)

    @property
    def common(self) -> list[str]:
        """The columns that both have: those that are compared."""
        return [name for name in self.live.columns if name in self.staged.columns]

    def against(self, rows: DataFrame) -> Self:
        """Return the same live side with other rows to compare it with."""
        return replace(self, staged=self.form(rows))

    def of_keys(self, rows: DataFrame) -> Self:
        """Return the live side restricted to the keys of `rows`, which may have no other values."""
        names = {name: f"tailrace_k{number}" for number, name in enumerate(self.key)}
        keys = self.form(rows).select(*(F.col(quote(name)).alias(other) for name, other in names.items()))
        same = reduce(Column.__and__, (F.col(quote(name)).eqNullSafe(F.col(other)) for name, other in names.items()))
        return replace(self, live=self.live.join(keys, same, "left_semi"))

    def sampled(self, share: float) -> Self:
        """Return both sides restricted to a share of the keys, from 0 to 1, the same ones each time."""
        kinds = {name: self.staged.schema[name].dataType for name in self.key}
        # the live side may have a narrower type: equal keys need equal hashes
        hashed = F.xxhash64(*(F.col(quote(name)).cast(kind) for name, kind in kinds.items()))
        chosen = F.pmod(hashed, F.lit(_PARTS)) < round(share * _PARTS)
        return replace(self, live=self.live.where(chosen), staged=self.staged.where(chosen))

    def compare(self, session: SparkSession, limit: int) -> tuple[Counts, list[Difference]]:
        counts, rows = self._compared(limit, ["what", "columns"])
        return counts, [self._difference(row) for row in rows]

    def with_rows(self, limit: int) -> tuple[Counts, list[tuple[Difference, Values | None, Values | None]]]:
        """Compare like `compare`; list with each key the values of its live and of its staged row, if there is one."""
        rows = (F.to_json(side, _WITH_NULLS).alias(side) for side in ("l", "s"))
        counts, found = self._compared(limit, ["what", "columns", *rows])
        return counts, [(self._difference(row), self._values(row["l"]), self._values(row["s"])) for row in found]

    def changes(self) -> DataFrame:
        """Return what makes the live side equal: its differing keys with their staged rows, or with `DELETED`.

        A key that the live side has more than once is returned as often.
        """
        numbers = {name: number for number, name in enumerate(self.key)}
        values = (
            (F.col(f"k{numbers[name]}") if name in numbers else F.col("s")[f"c{place}"])
            .cast(self.staged.schema[name].dataType)
            .alias(name)
            for place, name in enumerate(self.common)
        )
        return self._marked().where("what <> 'same'").select(*values, F.col("s").isNull().alias(DELETED))

    def _difference(self, row: Row) -> Difference:
        key = {name: row[f"k{number}"] for number, name in enumerate(self.key)}
        return Difference(key, row["what"], tuple(row["columns"]))

    def _compared(self, limit: int, columns: Sequence[str | Column]) -> tuple[Counts, list[Row]]:
        """Return the counts and up to `limit` differing rows of `_marked`, with the key and these columns."""
        marked = self._marked()
        found = {row["what"]: row["count"] for row in marked.groupBy("what").count().collect()}
        counts = Counts(
            self.live.count(),
            self.staged.count(),
            found.get("only live", 0),
            found.get("only staged", 0),
            found.get("different", 0),
        )
        # A key that occurs twice on one side is joined twice with that of the other.
        joined = counts.changed + found.get("same", 0)
        counts.repeated = 2 * joined + counts.only_live + counts.only_staged - counts.live - counts.staged
        if not counts.total:
            return counts, []
        keys = (f"k{number}" for number in range(len(self.key)))
        return counts, marked.where("what <> 'same'").select(*keys, *columns).take(limit)

    def _values(self, row: str | None) -> Values | None:
        if row is None:
            return None
        found, columns = orjson.loads(row), self.common
        values = [found[f"c{number}"] for number in range(len(columns))]
        if not self.are_json:
            return values
        pairs = zip(columns, values, strict=True)
        return [value if name in self.key or value is None else orjson.loads(value) for name, value in pairs]

    def _marked(self) -> DataFrame:
        """Return the joined keys, each with its kind of difference, the columns that differ, and both rows."""
        columns = self.common
        sides = [
            frame.select(
                *(F.col(quote(name)).alias(f"{side}{number}") for number, name in enumerate(self.key)),
                F.struct(*(F.col(quote(name)).alias(f"c{number}") for number, name in enumerate(columns))).alias(side),
            )
            for frame, side in ((self.live, "l"), (self.staged, "s"))
        ]
        same = reduce(Column.__and__, (F.col(f"l{n}").eqNullSafe(F.col(f"s{n}")) for n in range(len(self.key))))
        types = [(self.live.schema[name].dataType, self.staged.schema[name].dataType) for name in columns]
        others = F.array_compact(
            F.array(
                *(
                    F.when(~_equal(F.col("l")[f"c{number}"], F.col("s")[f"c{number}"], *types[number]), F.lit(name))
                    for number, name in enumerate(columns)
                )
            )
        )
        what = (
            F.when(F.col("s").isNull(), "only live")
            .when(F.col("l").isNull(), "only staged")
            .when(F.size(others) > 0, "different")
            .otherwise("same")
        )
        both = sides[0].join(sides[1], same, "full_outer")
        keys = (F.coalesce(F.col(f"l{n}"), F.col(f"s{n}")).alias(f"k{n}") for n in range(len(self.key)))
        paired = F.col("l").isNotNull() & F.col("s").isNotNull()
        listed = F.when(paired, others).otherwise(F.array().cast("array<string>"))
        return both.select(*keys, what.alias("what"), listed.alias("columns"), "l", "s")


def _equal(live: Column, staged: Column, was: DataType, now: DataType) -> Column:
    if was == now:
        return comparable(live, was).eqNullSafe(comparable(staged, now))
    return live.cast("string").eqNullSafe(staged.cast("string"))
