"""Compare the live generation of a view with the staged one, key by key, both as of the same cut.

Both are brought to one cut under the lease and pinned there (a snapshot, a point in time); `follow` continues during
the comparison. The driver receives only counts and the keys to list.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial, reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tailrace.schemas.errors import StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.opensearch.compare import Counts, Difference, Points, opened
from tailrace.sinks.opensearch.target import OpenSearchTarget
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.jobs.swap import advance, alone, catch_up, held, live_of, staged_of
from tailrace.spark_jobs.maintain.difference import comparable
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared

_SAME_CUT_WAIT_S: Final = 30.0
_SLICES: Final = 8
"""Number of slices of an index that are compared separately."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison; columns that only one generation has are listed, but not compared."""

    view: str
    lsn: str
    live: int
    staged: int
    only_live_columns: tuple[str, ...]
    only_staged_columns: tuple[str, ...]
    counts: Counts
    keys: tuple[Difference, ...]

    @property
    def different(self) -> bool:
        return bool(self.counts.total or self.only_live_columns or self.only_staged_columns)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "different": self.different}

    def lines(self) -> Iterator[str]:
        """Yield the result as lines of text."""
        counts = self.counts
        yield f"{self.view}: generation {self.live} (live) and {self.staged} (staged), both at {self.lsn}"
        yield f"rows             {counts.live} and {counts.staged}"
        yield f"only live        {counts.only_live}"
        yield f"only staged      {counts.only_staged}"
        yield f"different        {counts.changed}"
        if counts.repeated:
            yield f"more than once   {counts.repeated}"
        for which, columns in (("live", self.only_live_columns), ("staged", self.only_staged_columns)):
            if columns:
                yield f"columns that only the {which} one has: {', '.join(columns)}"
        for each in self.keys:
            key = ", ".join(f"{name}={value}" for name, value in each.key.items())
            yield f"  {key}  {each.what}" + (f": {', '.join(each.columns)}" if each.columns else "")


def compare(shared: Shared, view: KeptView, limit: int) -> Comparison:
    """Compare the live generation with the staged one; list up to `limit` differing keys.

    StateError if none is staged (TR-571), or if they cannot be compared at one cut and by one key (TR-574).
    """
    target = view.batch.target
    with alone(shared, view), ExitStack() as pins:
        live = live_of(view)
        staged = staged_of(view, target.generations(), live)
        _check_begin(view, live, staged)
        view.check_tombstones(staged, staged.level_since_ms, shared.cuts.wait(view.declared))
        staged = catch_up(shared, view, staged)
        deadline = time.monotonic() + _SAME_CUT_WAIT_S
        while True:
            with held(view):
                live, staged = _level(shared, view, staged)
                if live.cut.offsets == staged.cut.offsets:
                    pair = _pin(shared, view, (live.generation, staged.generation), pins)
                    break
            if time.monotonic() > deadline:
                raise _apart(view, live, staged)
            time.sleep(1.0)
        counts, keys = pair.compare(limit)
        return Comparison(
            view.declared.name,
            format_lsn(staged.cut.flushed_lsn),
            live.generation,
            staged.generation,
            *pair.alone,
            counts,
            tuple(keys[:limit]),
        )


def _level(shared: Shared, view: KeptView, staged: Applied) -> tuple[Applied, Applied]:
    """Bring both generations to the newest cut; the live one only if it is of the configured definition."""
    live, level_ms = view.load()
    assert live is not None
    seen = shared.cuts.wait(view.declared)
    if live.definition == view.declared.definition:
        view.check_tombstones(live, level_ms, seen)
        live = advance(shared, view, live, seen, live.generation)
        view.publish(live, max(level_ms, seen.level_ms))
    while seen.cut.order < live.cut.order:
        seen = shared.cuts.newest(view.declared, wait=1.0) or seen
    return live, advance(shared, view, staged, seen, staged.generation)


def _apart(view: KeptView, live: Applied, staged: Applied) -> StateError:
    return _incomparable(
        view,
        f"The live one was built from another query and stands at {format_lsn(live.cut.flushed_lsn)}, the staged one"
        f" at {format_lsn(staged.cut.flushed_lsn)}.",
        "Only a `tailrace views follow` that was started with the former query brings the live one forward.",
    )


def _check_begin(view: KeptView, live: Applied, staged: Applied) -> None:
    """Raise StateError (TR-574) if the two histories begin at different LSNs.

    Rows from before the later beginning are not differences.
    """
    if live.history_from != staged.history_from:
        both = (format_lsn(each.history_from.lsn) if each.history_from else "none" for each in (live, staged))
        detail = f"Their histories begin at different LSNs: {' and '.join(both)}."
        raise _incomparable(view, detail, f"tailrace views swap {view.declared.name}")


def _incomparable(view: KeptView, detail: str, hint: str) -> StateError:
    name = view.declared.name
    return StateError("TR-574", f'the generations of view "{name}" cannot be compared', detail=detail, hint=hint)


def _pin(shared: Shared, view: KeptView, numbers: tuple[int, int], pins: ExitStack) -> _Tables | _Indexes:
    target = view.batch.target
    keys = [target.key(number) for number in numbers]
    if keys[0] != keys[1]:
        texts = (f"({', '.join(key)})" for key in keys)
        raise _incomparable(view, f"Their keys are {' and '.join(texts)}.", f"tailrace views swap {view.declared.name}")
    if isinstance(target, OpenSearchTarget):
        assert shared.config.search is not None
        columns = [list(target.columns(number)) for number in numbers]
        indexes = tuple(target.index(number) for number in numbers)
        both = tuple(name for name in columns[0] if name in columns[1])
        points = pins.enter_context(opened(shared.config.search, indexes, keys[0], both, _SLICES))
        return _Indexes(shared, points, _alone(columns[0], columns[1]))
    assert isinstance(target, IcebergTarget)
    live, staged = (target.rows(number) for number in numbers)
    return _Tables(live, staged, keys[0], _alone(live.columns, staged.columns))


def _alone(live: Sequence[str], staged: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(n for n in live if n not in staged), tuple(n for n in staged if n not in live)


@dataclass(frozen=True, slots=True)
class _Indexes:
    """Two indexes at points in time; each Spark task compares one slice of them."""

    shared: Shared
    points: Points
    alone: tuple[tuple[str, ...], tuple[str, ...]]

    def compare(self, limit: int) -> tuple[Counts, list[Difference]]:
        slices = self.shared.session.sparkContext.parallelize(range(_SLICES), _SLICES)
        counts, keys = Counts(), []
        for found, listed in slices.mapPartitions(partial(self.points.compare, limit=limit)).collect():
            counts.add(found)
            keys += listed
        return counts, keys


@dataclass(frozen=True, slots=True)
class _Tables:
    """Two snapshots, joined by their key."""

    live: DataFrame
    staged: DataFrame
    key: Sequence[str]
    alone: tuple[tuple[str, ...], tuple[str, ...]]

    def compare(self, limit: int) -> tuple[Counts, list[Difference]]:
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
