"""Views by time are PostgreSQL's own rows after every batch of random changes."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import ROUNDS
from tests.support.time_joins import approximate, as_of, interval_joins
from tests.support.window_engine import Maintained, States
from tests.support.window_views import Case, frames, grouped, sessions
from tests.support.window_world import COLUMNS, Oracle, World, states

SEED = int(os.environ.get("TAILRACE_TEST_SEED", "1"))
BATCHES = 4 if ROUNDS == 1 else 8
KINDS = {each.__name__: list(each()) for each in (grouped, sessions, frames, interval_joins, as_of, approximate)}
CASES = {case.name: case for kind in KINDS.values() for case in kind}
SHORT = (
    *("tumbling 1 hours 1 hours 15 minutes tz", "hopping 15 minutes 10 minutes 0 seconds at", "device clocks"),
    *("session 10 minutes tz", "session with its own gap", "frame tz -150 seconds 600 seconds", "inner around at"),
    *("left after tz", "without a day before tz", "as of LEFT tz", "about 0.05", "percentiles"),
)
"""With `TAILRACE_TEST_ROUNDS=1`; more rounds run all of `CASES`."""


def history(
    cases: Iterable[Case], spark: SparkSession, oracle: Oracle, folder: Path, seed: int, batches: int
) -> dict[str, str]:
    """Apply random batches until a view differs from PostgreSQL; return each wrong view's error."""
    folder.mkdir()
    kept, world, spark_states = [Maintained(case) for case in cases], World(seed), States(spark, folder)
    old: Any = {table: {} for table in COLUMNS}
    try:
        for number in range(batches + 1):
            world.fill() if number == 0 else world.change()
            new = copy.deepcopy(world.tables)
            spark_states.load(states(old, new))
            oracle.load(new)
            changed = [f"public.{table}" for table in COLUMNS if old[table] != new[table]]
            wrong = {}
            for view in kept:
                try:
                    view.apply(spark_states, changed)
                    view.check(oracle.rows(view.case.oracle))
                    if view.case.within:
                        assert view.shown == view.recomputed(spark_states)
                except (AssertionError, KeyError) as error:
                    wrong[view.case.name] = f"seed {seed}, batch {number}: {error!r:.600}"
            if wrong:
                return wrong
            old = new
        assert min((view.changed_rows, view.case.name) for view in kept) > (0, "")
        return {}
    finally:
        for view in kept:
            view.close()


@pytest.fixture
def oracle(database: str) -> Iterator[Oracle]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield Oracle(connection)


def test_there_are_enough_views() -> None:
    assert len(CASES) == sum(map(len, KINDS.values())) >= 50


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_views_are_postgresql_s_rows(seed: int, spark: SparkSession, oracle: Oracle, tmp_path: Path) -> None:
    names = SHORT if ROUNDS == 1 else CASES
    assert history([CASES[name] for name in names], spark, oracle, tmp_path / "states", seed, BATCHES) == {}
