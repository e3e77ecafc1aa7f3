"""Compare two snapshots of a view in one Spark job; the driver receives counts and the keys to list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tailrace.sinks.spark.comparable import comparable
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.comparison import Counts, Difference


@dataclass(frozen=True, slots=True)
class Tables:
    """Two snapshots, joined by their key."""

    live: DataFrame
    staged: DataFrame
    key: Sequence[str]

    @property
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of the live and of the staged generation."""
        return tuple(self.live.columns), tuple(self.staged.columns)

    def compare(self, session: SparkSession, limit: int) -> tuple[Counts, list[Difference]]:
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
        rows = marked.where("what <> 'same'").take(limit) if counts.total else []
        keys = [
            Difference(
                {name: row[f"k{number}"] for number, name in enumerate(self.key)}, row["what"], tuple(row["columns"])
            )
            for row in rows
        ]
        return counts, keys

    def _marked(self) -> DataFrame:
        """Return the joined keys, each with its kind of difference and the columns that differ."""
        columns = [name for name in self.live.columns if name in self.staged.columns]
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
        return both.select(*keys, what.alias("what"), listed.alias("columns"))


def _equal(live: Column, staged: Column, was: DataType, now: DataType) -> Column:
    if was == now:
        return comparable(live, was).eqNullSafe(comparable(staged, now))
    return live.cast("string").eqNullSafe(staged.cast("string"))
