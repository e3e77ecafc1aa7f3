"""Late rows by a model in Python, after random batches with rows at the limit itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.schemas.config.model import Warehouse
from tailrace.spark_jobs.maintain import late
from tailrace.spark_jobs.maintain.late import LateRows
from tailrace.spark_jobs.query.late import EventTime
from tailrace.spark_jobs.query.rewrite import state
from tests.spark.test_windows import SEED
from tests.support.window_engine import States
from tests.support.window_world import COLUMNS, MINUTE, Row, World, states

_FAR = 253402300800000000 + 366 * 24 * 60 * MINUTE
"""A time after 9999, such as PostgreSQL's infinity: it makes no other row late."""


_BY: list[tuple[str, ...]] = [(), ("k",), ("k", "v")]


@pytest.mark.parametrize("by", _BY)
@pytest.mark.parametrize(("column", "lateness_s"), [("tz", 0.0), ("at", 3600.5), ("tz", 90 * 86400.0)])
def test_late_rows_are_those_older_than_the_newest_of_the_previous_batch(
    column: str, lateness_s: float, by: tuple[str, ...], spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    assert late_rows(column, lateness_s, spark, warehouse, tmp_path, by) > 0


def test_a_limit_by_other_columns_is_found(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    of_all = partial(LateRows, by=())
    monkeypatch.setattr("tests.spark.test_late_rows_model.LateRows", lambda *arguments: of_all(*arguments[:-1]))
    with pytest.raises(AssertionError):
        late_rows("tz", 0.0, spark, warehouse, tmp_path, ("k",))


def test_a_limit_by_the_rows_of_the_batch_itself_is_found(
    monkeypatch: pytest.MonkeyPatch, spark: SparkSession, warehouse: Warehouse, tmp_path: Path
) -> None:
    monkeypatch.setattr(late, "state", lambda table, which: state(table, which.replace("old", "new")))
    with pytest.raises(AssertionError):
        late_rows("tz", 0.0, spark, warehouse, tmp_path)


def late_rows(
    column: str,
    lateness_s: float,
    spark: SparkSession,
    warehouse: Warehouse,
    folder: Path,
    by: Sequence[str] = (),
) -> int:
    """Compare late rows with the model after random batches; return their number."""
    names = list(COLUMNS["event"])
    world, spark_states, place = World(SEED), States(spark, folder), names.index(column)
    found = LateRows(spark_states.session, warehouse, "late_model", lateness_s, by)
    lateness_us = round(lateness_s * 1_000_000)
    old: Any = {table: {} for table in COLUMNS}
    count = 0

    def group(row: Row) -> Row:
        return tuple(row[names.index(name)] for name in by)

    for number in range(4):
        world.fill() if number == 0 else world.change()
        new = copy.deepcopy(world.tables)
        limits: dict[Row, int] = {}
        for row in old["event"].values():
            if row[place] is not None and row[place] < _FAR:
                limits[group(row)] = max(limits.get(group(row), row[place] - lateness_us), row[place] - lateness_us)
        # a batch of one group has the rows at its limit, some of them with a clock that is fast
        for one in range(3):
            limit = limits.get(group((0, one, 0, 0, 7)), 0)
            beside = (limit - 1, limit, limit + 1, limit + lateness_us + 60 * MINUTE, _FAR)
            rows = {100 + 10 * one + step: (100 + 10 * one + step, one, at, at, 7) for step, at in enumerate(beside)}
            new["event"] |= rows
            world.tables["event"] |= rows
        spark_states.load(states(old, new))
        expected = {
            (key, limits[group(row)])
            for key, row in new["event"].items()
            if row != old["event"].get(key) and row[place] is not None and row[place] < limits.get(group(row), -_FAR)
        }
        frame = found.of(EventTime("public.event", column), ["id"])
        listed = (
            [] if frame is None else [tuple(row) for row in frame.select("id", F.unix_micros("late_before")).collect()]
        )
        assert sorted(listed) == sorted(expected), number
        count += len(listed)
        old = new
    return count
