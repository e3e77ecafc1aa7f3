"""Compute the changes that turn some rows of a view into others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tailrace.schemas.errors import StateError
from tailrace.sinks.spark.comparable import comparable
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import DELETED

TIMES: Final = "tailrace_times"


def difference(before: DataFrame, after: DataFrame, key: Sequence[str], *, counted: bool = False) -> DataFrame:
    """Return the rows of `after` that `before` lacks, and the keys that only `before` has, with `DELETED`.

    If `counted`, `TIMES` is the number of rows in `after` with a row's key, and all rows of a repeated key are
    returned.
    """
    times = F.count("*").over(Window.partitionBy(*map(quote, key))) if counted else F.lit(1)
    sides = [
        frame.select(
            *(F.col(quote(name)).alias(f"{side}{number}") for number, name in enumerate(key)),
            F.struct("*").alias(side),
            *more,
        )
        for frame, side, more in ((before, "b", []), (after, "a", [times.alias(TIMES)]))
    ]
    same = reduce(Column.__and__, (F.col(f"b{n}").eqNullSafe(F.col(f"a{n}")) for n in range(len(key))))
    both = sides[0].join(sides[1], same, "full_outer")
    gone = F.col("a").isNull()
    kinds = {field.name: field.dataType for field in after.schema}
    equal = reduce(
        Column.__and__,
        (
            comparable(F.col("a")[name], kind).eqNullSafe(comparable(F.col("b")[name], kind))
            for name, kind in kinds.items()
        ),
    )
    numbers = {name: number for number, name in enumerate(key)}
    return both.where(gone | F.col("b").isNull() | ~equal | (F.col(TIMES) > 1)).select(
        *(
            (
                F.when(gone, F.col(f"b{numbers[name]}")).otherwise(F.col("a")[name])
                if name in numbers
                else F.col("a")[name]
            )
            .cast(kind)
            .alias(name)
            for name, kind in kinds.items()
        ),
        gone.alias(DELETED),
        *([F.col(TIMES)] if counted else []),
    )


def not_unique(key: Sequence[str], view: str) -> StateError:
    """Return the error for a key that several rows have."""
    return StateError(
        "TR-549",
        f'view "{view}": its key ({", ".join(key)}) is not unique in the rows of its query',
        detail="At least one key has several rows.",
        hint=f"Give [views.{view}] a key that tells its rows apart.",
    )
