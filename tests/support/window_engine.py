"""Spark maintains the views of `tests.support.window_views`, as the job does, over states in temporary views."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tailrace.sinks.spark.one_task import set_one_task
from tailrace.sinks.target.protocol import DELETED
from tailrace.spark_jobs.maintain.analysis import run
from tailrace.spark_jobs.maintain.difference import TIMES, difference
from tailrace.spark_jobs.maintain.plan_source import PlanSource
from tailrace.spark_jobs.maintain.step_plans import CannotRunAgain, StepPlans
from tailrace.spark_jobs.query.declared import DeclaredQuery, declare
from tailrace.spark_jobs.query.rewrite import Step, state
from tailrace.spark_jobs.query.text import QueryText
from tests.support.window_views import Case
from tests.support.window_world import ARROW, CATALOG, COLUMNS

Row = tuple[Any, ...]
Rows = dict[Row, Row]


class States:
    """The states of all tables, by name in one session; plans over them stay valid when their rows change."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.session = spark.newSession()
        set_one_task(self.session)
        self._sources: dict[tuple[str, str], PlanSource] = {}
        for table, columns in COLUMNS.items():
            schema = from_arrow_schema(pa.schema([(name, ARROW[kind]) for name, kind in columns.items()]))
            for which in ("old", "new", "before", "after"):
                source = PlanSource(self.session, folder / f"{table}_{which}", schema)
                source.frame.createOrReplaceTempView(state(f"public.{table}", which))
                self._sources[table, which] = source

    def load(self, rows: Mapping[tuple[str, str], Any]) -> None:
        for which, source in self._sources.items():
            source.fill(rows[which])


class Maintained:
    """One view: its rows, and the plans of its steps for each set of tables that changed together."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.view: DeclaredQuery = declare(QueryText(case.name, case.sql), case.key, CATALOG)
        self.shown: Rows = {}
        self.changed_rows = 0
        self.planned_once = 0
        self._plans: dict[frozenset[str], StepPlans | None] = {}

    def apply(self, states: States, changed: Collection[str]) -> None:
        """Apply a batch: the rows that differ between its two states."""
        mine = frozenset(changed) & frozenset(self.view.tables)
        if not mine:
            return
        changes = self._changes(states, mine)
        names = [name for name in changes.column_names if name not in (DELETED, TIMES)]
        places = [names.index(part) for part in self.case.key]
        cells = [column(changes.column(name)) for name in names]
        for row, deleted, times in zip(
            zip(*cells, strict=True),
            changes.column(DELETED).to_pylist(),
            changes.column(TIMES).to_pylist(),
            strict=True,
        ):
            key = tuple(row[place] for place in places)
            self.changed_rows += 1
            if deleted:
                del self.shown[key]
            else:
                assert times == 1, "a key stands twice"
                self.shown[key] = row

    def _changes(self, states: States, changed: frozenset[str]) -> Any:
        steps, name = self.view.steps(changed), self.case.name
        if changed not in self._plans:
            try:
                self._plans[changed] = StepPlans(
                    states.session, steps, {}, self.case.key, lambda sql: run(states.session, sql, name)
                )
            except CannotRunAgain:
                self._plans[changed] = None
        plans = self._plans[changed]
        if plans is None:
            return self._replanned(states, steps)
        self.planned_once += 1
        for number, step in enumerate(steps[:-2]):
            plans.fill(number, step.name, plans.result(step.name))
        return plans.changes()[0]

    def _replanned(self, states: States, steps: Sequence[Step]) -> Any:
        """Plan the steps for this batch, each over the rows of those before it."""
        frames = []
        for step in steps:
            frame = run(states.session, step.sql(), self.case.name)
            if step not in steps[-2:]:
                frame = states.session.createDataFrame(frame.toArrow(), frame.schema)
                frame.createOrReplaceTempView(step.name)
            frames.append(frame)
        return difference(frames[-2], frames[-1], self.case.key, counted=True).toArrow()

    def recomputed(self, states: States) -> Rows:
        """Return the rows of the whole query over the new state, by Spark."""
        found = run(states.session, self.view.over("new"), self.case.name).toArrow()
        cells = [column(each) for each in found.columns]
        return by_key(self.case, list(zip(*cells, strict=True)), found.column_names)

    def check(self, expected: Iterable[Row]) -> None:
        """Compare the view with PostgreSQL's rows; approximate columns with their bounds."""
        names = self.view.whole.named_selects
        right = by_key(self.case, [tuple(map(plain, row)) for row in expected], names)
        bounds = dict(self.case.within)
        assert self.shown.keys() == right.keys()
        for key, row in right.items():
            for place, (mine, theirs) in enumerate(zip(self.shown[key], row, strict=True)):
                if place in bounds:
                    # four standard deviations, and one collision of a few values
                    assert abs(mine - theirs) <= max(1, ceil(4 * bounds[place] * theirs)), (key, names[place])
                else:
                    assert mine == theirs, (key, names[place], mine, theirs)

    def close(self) -> None:
        for plans in self._plans.values():
            if plans is not None:
                plans.close()


def by_key(case: Case, rows: Sequence[Row], names: Sequence[str]) -> Rows:
    places = [list(names).index(part) for part in case.key]
    found = {tuple(row[place] for place in places): row for row in rows}
    assert len(found) == len(rows), "a key stands twice"
    return found


def column(cells: Any) -> list[Any]:
    """Return Spark's values of a column in the form of `plain`: times are microseconds, structs tuples."""
    kind = cells.type
    if pa.types.is_timestamp(kind):
        return list(cells.cast(pa.int64()).to_pylist())
    if pa.types.is_struct(kind):
        cells = cells.combine_chunks()
        parts = [column(cells.field(number)) for number in range(kind.num_fields)]
        return list(zip(*parts, strict=True))
    return [plain(value) for value in cells.to_pylist()]


def plain(value: Any) -> Any:
    if isinstance(value, Decimal | float):
        return int(value) if value == int(value) else float(value)
    return tuple(map(plain, value)) if isinstance(value, list) else value
