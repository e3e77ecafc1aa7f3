"""The changes of a query's small batch, over looked up rows instead of whole tables.

`spark_jobs.query.lookups` says by which columns the changes reach other rows, `spark_jobs.lookup` has these rows. If
anything about them is not known, the batch reads the base tables (`spark_jobs.maintain.states`), with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.types as types  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from sqlglot import exp

from tailrace.schemas.config.model import Config
from tailrace.schemas.reasons import reason
from tailrace.schemas.records.position import Cut
from tailrace.sinks.spark.temp_views import temp_view
from tailrace.sinks.target.few_rows import FewRows
from tailrace.spark_jobs.lookup.known_tables import KnownTables
from tailrace.spark_jobs.lookup.row_form import RowForm
from tailrace.spark_jobs.lookup.table_rows import NotKnown, Rows
from tailrace.spark_jobs.maintain.difference import TIMES, difference
from tailrace.spark_jobs.maintain.group_sums import GroupSums, OverOld
from tailrace.spark_jobs.maintain.input_rows import MOST_REACHED, InputAt, InputRows
from tailrace.spark_jobs.maintain.plan_source import TooLarge
from tailrace.spark_jobs.maintain.step_plans import IMAGES, CannotRunAgain, Relation, StepPlans
from tailrace.spark_jobs.query.declared import DeclaredQuery
from tailrace.spark_jobs.query.lookups import Lookup, Unreachable, lookups
from tailrace.spark_jobs.query.rewrite import State, Step, state
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.views import Declared

_LOG: Final = logging.getLogger("tailrace.warehouse")
_MOST_PLANS: Final = 8
"""Up to this many combinations of tables that change together are planned once; a query of more tables plans again."""

Steps = Sequence[tuple[Step, tuple[Lookup, ...]]]


@dataclass(frozen=True, slots=True)
class _Way:
    """Which tables have changed, and whether groups are brought forward by sums."""

    changed: tuple[str, ...]
    by_sums: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a batch, as `difference` counts them; `most` is the maximum number of rows with one key."""

    changed: DataFrame | FewRows | None
    """None if there are none."""
    rows: int
    most: int


@dataclass(frozen=True, slots=True)
class Runs:
    """What runs the statements of a batch."""

    sql: Callable[[str], DataFrame]
    """A statement over the session's temporary views."""
    over_old: OverOld
    """A statement over the inputs at the applied cut."""
    count: Callable[[DataFrame], Changes]
    """Computes a `difference`, once for counting and writing."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch, whose steps are known."""

    way: _Way
    steps: Steps
    at: Mapping[str, InputAt]
    relations: dict[str, Any]
    """What values are looked up from, by name in the SQL: the images, results of steps, and looked up rows."""
    seen: SeenCut


@dataclass(slots=True)
class Reached:
    """Small batches of one query view by lookup. `session` is the view's own."""

    view: Declared
    session: SparkSession
    config: Config
    rows: InputRows
    known: KnownTables
    sums: GroupSums
    _query: DeclaredQuery | None = field(default=None, init=False)
    _read: frozenset[str] = field(default=frozenset(), init=False)
    """The names of all columns in the query."""
    _steps: dict[_Way, Steps | str] = field(default_factory=dict, init=False)
    """For tables that changed together: the steps with their lookups, or why there are none."""
    _plans: dict[_Way, StepPlans | Mapping[Relation, StructType]] = field(default_factory=dict, init=False)
    """For the same: the plans of the steps; if they cannot run again, the relations of which that is known."""

    def changes(
        self, query: DeclaredQuery, changed: Sequence[str], applied: Cut, seen: SeenCut, runs: Runs
    ) -> Changes | None:
        """Return the changes of the view in a batch; None, with a line in the log, if its inputs have to be read.

        `changed` are the inputs that the batch changes, from the cut `applied` to that of `seen`. Call it with the
        session set for one task.
        """
        try:
            by_sums = self._has_sums(query, tuple(changed)) and self.sums.ready(query, applied, seen, runs.over_old)
            steps = self._planned(query, _Way(tuple(changed), by_sums))
            wanted = {lookup for _, found in steps for lookup in found}
            names = dict.fromkeys((*changed, *sorted(lookup.table for lookup in wanted)))
            at = self.rows.at(names, wanted, self._read, query.histories, applied, seen)
            relations = self._images(changed, at)
            mine = tuple(table for table in changed if any(relations[name].num_rows for name in _image_names(table)))
            if not mine:
                self.sums.pass_over(seen)
                return Changes(None, 0, 0)
            way = _Way(mine, by_sums)
            batch = _Batch(way, self._planned(query, way), at, relations, seen)
            plans = self._step_plans(batch, query.key, runs.sql)
            if plans is not None:
                try:
                    return self._run_again(plans, batch)
                except TooLarge:
                    pass
            return runs.count(self._run(batch, query.key, runs.sql))
        except NotKnown as error:
            self.known.note(self.view.name, str(error))
            return None

    def _has_sums(self, query: DeclaredQuery, changed: tuple[str, ...]) -> bool:
        """Whether what a batch adds to sums can be looked up."""
        if query.sums is None:
            return False
        with suppress(NotKnown):
            self._planned(query, _Way(changed, by_sums=True))
            return True
        return False

    def _planned(self, query: DeclaredQuery, way: _Way) -> Steps:
        if not self.config.spark.lookups:
            raise NotKnown("spark.lookups is off")
        if query is not self._query:
            self._query = query
            self._read = frozenset(column.name for column in query.whole.find_all(exp.Column))
            self._steps.clear()
            for each in list(self._plans):
                self._forget_plans(each)
        if way not in self._steps:
            try:
                steps = query.steps(way.changed, by_sums=way.by_sums)
                self._steps[way] = [(step, lookups(step.query, query.tables)) for step in steps]
            except Unreachable as error:
                self._steps[way] = f"{error} cannot be reached by equality from {', '.join(way.changed)}"
        found = self._steps[way]
        if isinstance(found, str):
            raise NotKnown(found)
        return found

    def _step_plans(self, batch: _Batch, key: Sequence[str], sql: Callable[[str], DataFrame]) -> StepPlans | None:
        """Return the plans of the batch's steps; None if they cannot run again, or not here."""
        if not self.config.spark.master.startswith("local"):
            return None  # tasks of a cluster have no file of this machine
        relations: dict[Relation, StructType] = {}
        for table in batch.way.changed:
            for name in _image_names(table):
                relations[IMAGES, name] = batch.at[table].columns
        for number, (step, found) in enumerate(batch.steps):
            for lookup in found:
                relations[number, state(lookup.table, lookup.which)] = batch.at[lookup.table].columns
            for name in step.sums:
                relations[number, name] = self.sums.schema
        known = self._plans.get(batch.way)
        if isinstance(known, StepPlans):
            if known.relations == relations:
                return known
            self._forget_plans(batch.way)
        elif known == relations:
            return None
        if len(self._plans) >= _MOST_PLANS:
            self._forget_plans(next(iter(self._plans)))
        try:
            plans = StepPlans(self.session, [step for step, _ in batch.steps], relations, key, sql)
        except (CannotRunAgain, TooLarge, AnalysisException, pa.ArrowException) as error:
            # this way is only faster: whatever is wrong shows in the other one
            _LOG.debug('view "%s": planned anew for each batch: %s', self.view.name, reason(error))
            self._plans[batch.way] = relations
            return None
        self._plans[batch.way] = plans
        return plans

    def _forget_plans(self, way: _Way) -> None:
        plans = self._plans.pop(way)
        if isinstance(plans, StepPlans):
            plans.close()

    def _run_again(self, plans: StepPlans, batch: _Batch) -> Changes:
        for table in batch.way.changed:
            for name in _image_names(table):
                plans.fill(IMAGES, name, batch.relations[name])
        for number, (step, found) in enumerate(batch.steps):
            for name, rows in self._look_up(found, batch).items():
                plans.fill(number, name, rows)
            if number < len(batch.steps) - 2:
                for name, rows in self._results(step, plans.result(step.name), batch):
                    plans.fill(number, name, rows)
        rows, schema = plans.changes()
        most = pc.max(rows.column(TIMES)).as_py()
        kept = StructType([each for each in schema if each.name != TIMES])
        return Changes(FewRows.collected(self.session, rows.drop_columns([TIMES]), kept), rows.num_rows, most or 0)

    def _run(self, batch: _Batch, key: Sequence[str], sql: Callable[[str], DataFrame]) -> DataFrame:
        """Plan and run the steps; return the `difference` between the last two, planned only."""
        affected: list[DataFrame] = []
        with ExitStack() as names:

            def named(name: str, rows: Any, columns: StructType) -> None:
                names.enter_context(temp_view(self.session, name, self.session.createDataFrame(rows, columns)))

            for table in batch.way.changed:
                for name in _image_names(table):
                    named(name, batch.relations[name], batch.at[table].columns)
            for number, (step, found) in enumerate(batch.steps):
                looked_up = self._look_up(found, batch)
                for table, which in {(lookup.table, lookup.which) for lookup in found}:
                    named(state(table, which), looked_up[state(table, which)], batch.at[table].columns)
                frame = sql(step.sql())
                if number >= len(batch.steps) - 2:
                    affected.append(frame)
                    continue
                for name, rows in self._results(step, frame.toArrow(), batch):
                    named(name, rows, self.sums.schema if step.sums else frame.schema)
        before, after = affected
        return difference(before, after, key, counted=True)

    def _results(self, step: Step, rows: Any, batch: _Batch) -> list[tuple[str, Any]]:
        """Return what later steps read of the result of a step, Arrow tables with their names in the SQL."""
        if step.sums:
            return list(zip(step.sums, self.sums.around(_not_many(rows), batch.seen), strict=True))
        batch.relations[step.name] = _not_many(rows)
        return [(step.name, rows)]

    def _images(self, changed: Sequence[str], at: Mapping[str, InputAt]) -> dict[str, Any]:
        """Return the rows of the changed keys before and after the batch, Arrow tables by name in the SQL."""
        relations: dict[str, Any] = {}
        for table in changed:
            for image, rows in at[table].images(self._read):
                relations[state(table, image)] = rows
        return relations

    def _look_up(self, found: Sequence[Lookup], batch: _Batch) -> dict[str, Any]:
        """Look up the rows of a step; return those of each table's state, Arrow tables by name in the SQL."""
        at, relations = batch.at, batch.relations
        states: dict[tuple[str, State], Rows] = {}
        for lookup in found:
            own = at[lookup.table]
            values = _values(lookup, relations, own.rows.form)
            rows = own.look_up(lookup.which, lookup.by, values)
            relations[lookup.name] = own.rows.form.decode(list(rows.values()))
            # a state may be reached on several ways
            states.setdefault((lookup.table, lookup.which), {}).update(rows)
        return {state(table, which): at[table].decoded(rows, which) for (table, which), rows in states.items()}


def _image_names(table: str) -> tuple[str, str]:
    return state(table, "before"), state(table, "after")


def _not_many(rows: Any) -> Any:
    if rows.num_rows > MOST_REACHED:
        raise NotKnown(f"more than {MOST_REACHED} rows are reached")
    return rows


def _values(lookup: Lookup, relations: Mapping[str, Any], form: RowForm) -> list[Any]:
    """Return the distinct values of a lookup, an Arrow array for each of its columns, with these columns' types."""

    kinds = [form.columns[name] for name in lookup.by]
    parts = []
    for each in lookup.values:
        columns = [
            _as_type(relations[each.relation].column(name), kind)
            for name, kind in zip(each.columns, kinds, strict=True)
        ]
        parts.append(pa.table(columns, names=list(lookup.by)))
    found = pa.concat_tables(parts)
    for name, null in zip(lookup.by, lookup.nulls, strict=True):
        if not null:
            found = found.filter(found.column(name).is_valid())
    distinct = found.group_by(list(lookup.by)).aggregate([])
    return [distinct.column(name).combine_chunks() for name in lookup.by]


def _as_type(column: Any, kind: Any) -> Any:
    """Return a column with another type, if its values are equal in Spark exactly when they are then."""

    if column.type == kind:
        return column
    same = (types.is_integer, types.is_decimal, _is_text, types.is_floating, _is_moment, _is_local)
    if not any(check(column.type) and check(kind) for check in same):
        raise NotKnown(f"values of type {column.type} are compared with {kind}")
    try:
        found = column.cast(kind)
    except pa.ArrowInvalid:
        raise NotKnown(f"values of type {column.type} do not fit {kind}") from None
    if types.is_floating(kind) and types.is_float32(kind):
        raise NotKnown(f"values of type {column.type} are compared with {kind}")
    return found


def _is_text(kind: Any) -> bool:

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_moment(kind: Any) -> bool:

    # whatever the zone that it is shown in
    return bool(types.is_timestamp(kind) and kind.tz is not None)


def _is_local(kind: Any) -> bool:

    return bool(types.is_timestamp(kind) and kind.tz is None)
