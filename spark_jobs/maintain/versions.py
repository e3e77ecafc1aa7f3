"""Turn changes of keys into versions: rows with the interval, in time and position, of their validity."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tailrace.sinks.spark.comparable import comparable
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import FROM_LSN, FROM_ORDINAL, TO_LSN, TO_ORDINAL, VALID_FROM, VALID_TO
from tailrace.spark_jobs.topics.events import AT, LSN, OP, ORDINAL, plain

_THERE, _KNOWN, _ERA, _SAME = (f"_tailrace_{name}" for name in ("there", "known", "era", "same"))


def versions(
    changes: DataFrame,
    open_rows: DataFrame | None,
    truncates: DataFrame | None,
    key: Sequence[str],
) -> DataFrame:
    """Return the new versions, and those of `open_rows` that end, with the columns of both and `VALIDITY`.

    `changes` are events without truncates, all after `open_rows`, which has the open version of every key that they or
    `truncates` affect. A row that equals the version before it begins no new version: rows may be read again, and
    updates may change nothing. All columns count, also those that the table has lost: otherwise their changes would be
    versions in a batch that ends before the loss, and none in one that ends after it. Times of one key never go back,
    even if the source's clock does.
    """
    timeline = changes.select(
        *map(quote, plain(changes)),
        F.col(AT).alias(VALID_FROM),
        F.col(LSN).alias(FROM_LSN),
        F.col(ORDINAL).alias(FROM_ORDINAL),
        (F.col(OP) != "d").alias(_THERE),
        F.lit(False).alias(_KNOWN),
    )
    if open_rows is not None:
        known = open_rows.drop(VALID_TO, TO_LSN, TO_ORDINAL).withColumns({_THERE: F.lit(True), _KNOWN: F.lit(True)})
        timeline = timeline.unionByName(known, allowMissingColumns=True)
    own = {VALID_FROM, FROM_LSN, FROM_ORDINAL, _THERE, _KNOWN}
    compared = [(each.name, each.dataType) for each in timeline.schema if each.name not in own]
    # An era is the span between two truncates: no version continues in the next era.
    truncated = F.lit(None)
    if truncates is None:
        timeline = timeline.withColumn(_ERA, F.lit(0))
    else:
        ends = truncates.select(F.struct(LSN, ORDINAL, AT).alias("end")).distinct()
        # Each truncate is a separate statement and takes only some bytes: all fit into one row.
        timeline = timeline.crossJoin(F.broadcast(ends.agg(F.array_sort(F.collect_list("end")).alias("ends"))))
        here = F.struct(F.col(FROM_LSN).alias("lsn"), F.col(FROM_ORDINAL).alias("ordinal"))
        passed = F.filter("ends", lambda end: F.struct(end[LSN].alias("lsn"), end[ORDINAL].alias("ordinal")) < here)
        timeline = timeline.withColumn(_ERA, F.size(passed))
        truncated = F.get("ends", F.col(_ERA))
    order = Window.partitionBy(*map(quote, key), _ERA).orderBy(FROM_LSN, FROM_ORDINAL)
    values = (comparable(F.col(quote(name)), kind) for name, kind in compared)
    row = F.struct(*(value.alias(f"c{number}") for number, value in enumerate(values)))
    timeline = timeline.withColumn(_SAME, F.when(F.col(_THERE), row))
    timeline = timeline.withColumn(_SAME, F.lag(_SAME).over(order).eqNullSafe(F.col(_SAME)) & ~F.col(_KNOWN))
    timeline = timeline.where(~F.col(_SAME))
    timeline = timeline.withColumn(VALID_FROM, F.max(VALID_FROM).over(order))
    ends_at = {VALID_TO: VALID_FROM, TO_LSN: FROM_LSN, TO_ORDINAL: FROM_ORDINAL}
    timeline = timeline.withColumns({name: F.lead(of).over(order) for name, of in ends_at.items()})
    if truncates is not None:
        last = F.col(TO_LSN).isNull()
        latest = F.when(truncated.isNotNull(), F.greatest(truncated[AT], VALID_FROM))
        end = {VALID_TO: latest, TO_LSN: truncated[LSN], TO_ORDINAL: truncated[ORDINAL]}
        timeline = timeline.withColumns(
            {name: F.when(last, value).otherwise(F.col(name)) for name, value in end.items()}
        ).drop("ends")
    changed = F.col(_THERE) & (~F.col(_KNOWN) | F.col(TO_LSN).isNotNull())
    return timeline.where(changed).drop(_THERE, _KNOWN, _ERA, _SAME)


def standing_at(lsn: int) -> Column:
    """Return whether a version was valid as of an LSN: commits before it are visible, no others."""
    return (F.col(FROM_LSN) < lsn) & (F.col(TO_LSN).isNull() | (F.col(TO_LSN) >= lsn))
