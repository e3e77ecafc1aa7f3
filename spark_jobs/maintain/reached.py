"""The changes of a query's small batch, over looked up rows instead of whole tables.

`spark_jobs.query.lookups` says by which columns the changes reach other rows, `spark_jobs.lookup` has these rows. If
anything about them is not known, the batch reads the base tables (`spark_jobs.maintain.states`), with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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
class Changes:
    """The changes of a batch, as `difference` counts them; `most` is the maximum number of rows with one key."""

    changed: DataFrame | FewRows
    rows: int
    most: int


@dataclass(slots=True)
class Reached:
    """Small batches of one query view by lookup. `session` is the view's own."""

    view: Declared
    session: SparkSession
    config: Config
    rows: InputRows
    known: KnownTables
    _query: DeclaredQuery | None = field(default=None, init=False)
    _read: frozenset[str] = field(default=frozenset(), init=False)
    """The names of all columns in the query."""
    _steps: dict[tuple[str, ...], Steps | str] = field(default_factory=dict, init=False)
    """For tables that changed together: the steps with their lookups, or why there are none."""
    _plans: dict[tuple[str, ...], StepPlans | Mapping[Relation, StructType]] = field(default_factory=dict, init=False)
    """For the same: the plans of the steps; if they cannot run again, the relations of which that is known."""

    def changes(
        self,
        query: DeclaredQuery,
        changed: Sequence[str],
        applied: Cut,
        seen: SeenCut,
        sql: Callable[[str], DataFrame],
        count: Callable[[DataFrame], Changes],
    ) -> Changes | None:
        """Return the changes of the view in a batch; None, with a line in the log, if its inputs have to be read.

        `changed` are the inputs that the batch changes, from the cut `applied` to that of `seen`; `sql` runs a
        statement, `count` computes a `difference`. Call it with the session set for one task.
        """
        try:
            steps = self._planned(query, tuple(changed))
            wanted = {lookup for _, found in steps for lookup in found}
            names = dict.fromkeys((*changed, *sorted(lookup.table for lookup in wanted)))
            at = self.rows.at(names, wanted, self._read, query.histories, applied, seen)
            plans = self._step_plans(query, steps, tuple(changed), at, sql)
            if plans is not None:
                try:
                    return self._run_again(plans, steps, changed, at)
                except TooLarge:
                    pass
            return count(self._run(query, steps, changed, at, sql))
        except NotKnown as error:
            self.known.note(self.view.name, str(error))
            return None

    def _planned(self, query: DeclaredQuery, changed: tuple[str, ...]) -> Steps:
        if not self.config.spark.lookups:
            raise NotKnown("spark.lookups is off")
        if query is not self._query:
            self._query = query
            self._read = frozenset(column.name for column in query.whole.find_all(exp.Column))
            self._steps.clear()
            for each in list(self._plans):
                self._forget_plans(each)
        if changed not in self._steps:
            try:
                steps = query.steps(changed)
                self._steps[changed] = [(step, lookups(step.query, query.tables)) for step in steps]
            except Unreachable as error:
                self._steps[changed] = f"{error} cannot be reached by equality from {', '.join(changed)}"
        found = self._steps[changed]
        if isinstance(found, str):
            raise NotKnown(found)
        return found

    def _step_plans(
        self,
        query: DeclaredQuery,
        steps: Steps,
        changed: tuple[str, ...],
        at: Mapping[str, InputAt],
        sql: Callable[[str], DataFrame],
    ) -> StepPlans | None:
        """Return the plans of the steps for these tables; None if they cannot run again, or not here."""
        if not self.config.spark.master.startswith("local"):
            return None  # tasks of a cluster have no file of this machine
        relations: dict[Relation, StructType] = {}
        for table in changed:
            for image in ("before", "after"):
                relations[IMAGES, state(table, image)] = at[table].columns
        for number, (_, found) in enumerate(steps):
            for lookup in found:
                relations[number, state(lookup.table, lookup.which)] = at[lookup.table].columns
        known = self._plans.get(changed)
        if isinstance(known, StepPlans):
            if known.relations == relations:
                return known
            self._forget_plans(changed)
        elif known == relations:
            return None
        if len(self._plans) >= _MOST_PLANS:
            self._forget_plans(next(iter(self._plans)))
        try:
            plans = StepPlans(self.session, [step for step, _ in steps], relations, query.key, sql)
        except (CannotRunAgain, TooLarge, AnalysisException, pa.ArrowException) as error:
            # this way is only faster: whatever is wrong shows in the other one
            _LOG.debug('view "%s": planned anew for each batch: %s', self.view.name, reason(error))
            self._plans[changed] = relations
            return None
        self._plans[changed] = plans
        return plans

    def _forget_plans(self, changed: tuple[str, ...]) -> None:
        plans = self._plans.pop(changed)
        if isinstance(plans, StepPlans):
            plans.close()

    def _run_again(self, plans: StepPlans, steps: Steps, changed: Sequence[str], at: Mapping[str, InputAt]) -> Changes:
        relations = self._images(changed, at)
        for table in changed:
            for image in ("before", "after"):
                plans.fill(IMAGES, state(table, image), relations[state(table, image)])
        for number, (step, found) in enumerate(steps):
            for name, rows in self._look_up(found, at, relations).items():
                plans.fill(number, name, rows)
            if number < len(steps) - 2:
                relations[step.name] = _not_many(plans.result(step.name))
                plans.fill(number, step.name, relations[step.name])
        rows, schema = plans.changes()
        most = pc.max(rows.column(TIMES)).as_py()
        kept = StructType([each for each in schema if each.name != TIMES])
        return Changes(FewRows.collected(self.session, rows.drop_columns([TIMES]), kept), rows.num_rows, most or 0)

    def _run(
        self,
        query: DeclaredQuery,
        steps: Steps,
        changed: Sequence[str],
        at: Mapping[str, InputAt],
        sql: Callable[[str], DataFrame],
    ) -> DataFrame:
        """Plan and run the steps; return the `difference` between the last two, planned only."""
        relations = self._images(changed, at)
        affected: list[DataFrame] = []
        with ExitStack() as names:
            for table in changed:
                for image in ("before", "after"):
                    self._name(names, table, image, relations[state(table, image)], at)
            for number, (step, found) in enumerate(steps):
                looked_up = self._look_up(found, at, relations)
                for table, which in {(lookup.table, lookup.which) for lookup in found}:
                    self._name(names, table, which, looked_up[state(table, which)], at)
                frame = sql(step.sql())
                if number >= len(steps) - 2:
                    affected.append(frame)
                    continue
                relations[step.name] = few = _not_many(frame.toArrow())
                names.enter_context(temp_view(self.session, step.name, self.session.createDataFrame(few, frame.schema)))
        before, after = affected
        return difference(before, after, query.key, counted=True)

    def _images(self, changed: Sequence[str], at: Mapping[str, InputAt]) -> dict[str, Any]:
        """Return the rows of the changed keys before and after the batch, Arrow tables by name in the SQL."""
        relations: dict[str, Any] = {}
        for table in changed:
            for image, rows in at[table].images():
                relations[state(table, image)] = rows
        return relations

    def _look_up(self, found: Sequence[Lookup], at: Mapping[str, InputAt], relations: dict[str, Any]) -> dict[str, Any]:
        """Look up the rows of a step; return those of each table's state, Arrow tables by name in the SQL.

        `relations` are what values are looked up from: the images, the results of steps, and what this adds.
        """
        states: dict[tuple[str, State], Rows] = {}
        for lookup in found:
            own = at[lookup.table]
            values = _values(lookup, relations, own.rows.form)
            rows = own.look_up(lookup.which, lookup.by, values)
            relations[lookup.name] = own.rows.form.decode(list(rows.values()))
            # a state may be reached on several ways
            states.setdefault((lookup.table, lookup.which), {}).update(rows)
        return {state(table, which): at[table].decoded(rows, which) for (table, which), rows in states.items()}

    def _name(self, names: ExitStack, table: str, which: str, rows: Any, at: Mapping[str, InputAt]) -> None:
        frame = self.session.createDataFrame(rows, at[table].columns)
        names.enter_context(temp_view(self.session, state(table, which), frame))


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
