"""Compare two DataFrames by their key in Spark; the driver receives counts and the keys to list.

Rows are compared by hashes first, summed over chunks of keys: that moves and sorts no rows. Only the rows of chunks
that differ are joined. A sum does not depend on the order of the rows, and counts each of several equal rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, Self

import orjson
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType

from tailrace.sinks.spark.comparable import comparable, hashed
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.comparison import Counts, Difference
from tailrace.sinks.target.protocol import DELETED

Values = list[Any]
"""The values of a row in the order of `Tables.common`."""

_PARTS: Final = 1_000_000
"""A sample is chosen to this precision."""

_CHUNKS: Final = 4096
"""Number of chunks of keys; the driver receives one row of sums for each, of both sides."""

_Fold = tuple[int, int, int]
"""Of a chunk: the number of rows, and the sums of the halves of their hashes."""

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
        live, staged = self._folds(self.live), self._folds(self.staged, repeats=True)
        # a key that the staged side repeats is a difference, even if the live side repeats it as often
        repeated = {chunk for chunk, (_, most) in staged.items() if most > 1}
        differing = {
            chunk
            for chunk in live.keys() | staged.keys()
            if chunk in repeated or live.get(chunk, _NO_ROWS)[0] != staged.get(chunk, _NO_ROWS)[0]
        }
        counts = Counts(_rows(live, live), _rows(staged, staged))
        if not differing:
            return counts, []
        marked = self._marked(differing)
        found = {row["what"]: row["count"] for row in marked.groupBy("what").count().collect()}
        counts.only_live, counts.only_staged = found.get("only live", 0), found.get("only staged", 0)
        counts.changed = found.get("different", 0)
        # A key that occurs twice on one side is joined twice with that of the other.
        joined = counts.changed + found.get("same", 0)
        there = _rows(live, differing) + _rows(staged, differing)
        counts.repeated = 2 * joined + counts.only_live + counts.only_staged - there
        if not counts.total:
            return counts, []
        keys = (f"k{number}" for number in range(len(self.key)))
        return counts, marked.where("what <> 'same'").select(*keys, *columns).take(limit)

    def _folds(self, rows: DataFrame, *, repeats: bool = False) -> dict[int, tuple[_Fold, int]]:
        """Return the fold of each chunk of a side that has rows, and how often its most frequent key occurs.

        Without `repeats`, that is not counted, and is 1.
        """
        hashes = rows.select(self._key_hash(rows).alias("k"), self._hash_of(rows, self.common).alias("h")).select(
            "k", _chunk(F.col("k")).alias("chunk"), F.shiftright("h", 32).alias("high"), F.expr("h & 4294967295 AS low")
        )
        # halves, because a sum of 64 bits would overflow
        sums = (F.sum("high").alias("high"), F.sum("low").alias("low"))
        if repeats:
            by_key = hashes.groupBy("chunk", "k").agg(F.count("*").alias("rows"), *sums)
            folds = by_key.groupBy("chunk").agg(F.sum("rows").alias("rows"), *sums, F.max("rows").alias("most"))
        else:
            folds = hashes.groupBy("chunk").agg(F.count("*").alias("rows"), *sums, F.lit(1).alias("most"))
        return {row["chunk"]: ((row["rows"], row["high"], row["low"]), row["most"]) for row in folds.collect()}

    def _rows_of(self, rows: DataFrame, chunks: Collection[int] | None) -> DataFrame:
        return rows if chunks is None else rows.where(_chunk(self._key_hash(rows)).isin(*chunks))

    def _key_hash(self, rows: DataFrame) -> Column:
        return self._hash_of(rows, self.key)

    def _hash_of(self, rows: DataFrame, names: Sequence[str]) -> Column:
        """Return the hash of these columns; columns of which the sides have different types are compared as texts."""
        hashes = []
        for name in names:
            value, kind = F.col(quote(name)), self.staged.schema[name].dataType
            same = self.live.schema[name].dataType == kind
            hashes.append(hashed(value, kind) if same else hashed(value.cast("string"), StringType()))
        return F.xxhash64(*hashes)

    def _values(self, row: str | None) -> Values | None:
        if row is None:
            return None
        found, columns = orjson.loads(row), self.common
        values = [found[f"c{number}"] for number in range(len(columns))]
        if not self.are_json:
            return values
        pairs = zip(columns, values, strict=True)
        return [value if name in self.key or value is None else orjson.loads(value) for name, value in pairs]

    def _marked(self, chunks: Collection[int] | None = None) -> DataFrame:
        """Return the joined keys, each with its kind of difference, the columns that differ, and both rows.

        `chunks` are those of the keys; by default, all.
        """
        columns = self.common
        sides = [
            frame.select(
                *(F.col(quote(name)).alias(f"{side}{number}") for number, name in enumerate(self.key)),
                F.struct(*(F.col(quote(name)).alias(f"c{number}") for number, name in enumerate(columns))).alias(side),
            )
            for frame, side in ((self._rows_of(self.live, chunks), "l"), (self._rows_of(self.staged, chunks), "s"))
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


_NO_ROWS: Final[tuple[_Fold, int]] = ((0, 0, 0), 0)


def _rows(folds: Mapping[int, tuple[_Fold, int]], chunks: Collection[int]) -> int:
    """Return the number of rows in these chunks."""
    return sum(folds.get(chunk, _NO_ROWS)[0][0] for chunk in chunks)


def _chunk(key_hash: Column) -> Column:
    return F.pmod(key_hash, F.lit(_CHUNKS)).cast("int")


def _equal(live: Column, staged: Column, was: DataType, now: DataType) -> Column:
    if was == now:
        return comparable(live, was).eqNullSafe(comparable(staged, now))
    return live.cast("string").eqNullSafe(staged.cast("string"))
