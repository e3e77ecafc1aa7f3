"""The changes of a query's small batch, over looked up rows instead of whole tables.

`spark_jobs.query.lookups` says by which columns the changes reach other rows, `spark_jobs.lookup` has these rows. If
anything about them is not known, the batch reads the base tables (`spark_jobs.maintain.states`), with the same result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.types as types  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType
from sqlglot import exp

from tailrace.schemas.config.model import Config
from tailrace.schemas.reasons import reason
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.spark.temp_views import temp_view
from tailrace.sinks.target.protocol import DELETED
from tailrace.spark_jobs.lookup.known_tables import KnownTables
from tailrace.spark_jobs.lookup.row_form import RowForm
from tailrace.spark_jobs.lookup.table_rows import Log, Moment, NotKnown, Rows, TableRows
from tailrace.spark_jobs.maintain.difference import TIMES, difference
from tailrace.spark_jobs.maintain.inputs import Inputs
from tailrace.spark_jobs.maintain.plan_source import TooLarge
from tailrace.spark_jobs.maintain.step_plans import IMAGES, CannotRunAgain, Relation, StepPlans
from tailrace.spark_jobs.query.declared import DeclaredQuery
from tailrace.spark_jobs.query.lookups import Lookup, Unreachable, lookups
from tailrace.spark_jobs.query.rewrite import State, Step, state
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.latest import changes
from tailrace.spark_jobs.topics.records import Records
from tailrace.spark_jobs.views import Declared

_LOG: Final = logging.getLogger("tailrace.warehouse")
_MOST_REACHED: Final = 100_000
"""Up to this many rows of a table are looked up for a step; more are read faster with the table."""

_MOST_APPLIED: Final = 200_000
"""Up to this many changed rows are applied to the known ones; beyond, all are read anew."""

_MANY_ROWS: Final = 100_000
"""Reading so many rows takes about a second, so that a batch is visibly longer."""

_MOST_PLANS: Final = 8
"""Up to this many combinations of tables that change together are planned once; a query of more tables plans again."""

Steps = Sequence[tuple[Step, tuple[Lookup, ...]]]


@dataclass(frozen=True, slots=True)
class _At:
    """The rows of a table, with the moments of the old and the new state."""

    rows: TableRows
    moments: Mapping[State, Moment]


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a batch, as `difference` counts them; `most` is the maximum number of rows with one key."""

    frame: DataFrame
    rows: int
    most: int


@dataclass(slots=True)
class Reached:
    """Small batches of one query view by lookup. `session` is the view's own."""

    view: Declared
    session: SparkSession
    config: Config
    records: Records
    inputs: Inputs
    tables: KnownTables
    _query: DeclaredQuery | None = field(default=None, init=False)
    _read: frozenset[str] = field(default=frozenset(), init=False)
    """The names of all columns in the query."""
    _steps: dict[tuple[str, ...], Steps | str] = field(default_factory=dict, init=False)
    """For tables that changed together: the steps with their lookups, or why there are none."""
    _plans: dict[tuple[str, ...], StepPlans | Mapping[Relation, StructType]] = field(default_factory=dict, init=False)
    """For the same: the plans of the steps; if they cannot run again, the relations of which that is known."""
    _noted: str = field(default="", init=False)

    def changes(
        self,
        query: DeclaredQuery,
        changed: Sequence[str],
        applied: Cut,
        seen: SeenCut,
        sql: Callable[[str], DataFrame],
        count: Callable[[DataFrame], Changes],
    ) -> Changes | None:
        """Return the changes of the view in a batch; None, with a line in the log, if tables have to be read.

        `changed` are the tables that the batch changes, from the cut `applied` to that of `seen`; `sql` runs a
        statement, `count` computes a `difference`. Call it with the session set for one task.
        """
        try:
            steps = self._planned(query, tuple(changed))
            at = self._moments(steps, changed, applied, seen)
            plans = self._step_plans(query, steps, tuple(changed), at, sql)
            if plans is not None:
                try:
                    return self._run_again(plans, steps, changed, at)
                except TooLarge:
                    pass
            return count(self._run(query, steps, changed, at, sql))
        except NotKnown as error:
            self._note(str(error))
            return None

    def _note(self, text: str) -> None:
        """Log once why tables are read."""
        if text != self._noted:
            self._noted = text
            _LOG.info('view "%s": a small batch reads its tables: %s', self.view.name, text)

    def _planned(self, query: DeclaredQuery, changed: tuple[str, ...]) -> Steps:
        if not self.config.spark.lookups:
            raise NotKnown("spark.lookups is off")
        if self.view.views:
            raise NotKnown("it reads other views")
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

    def _moments(
        self,
        steps: Sequence[tuple[Step, Sequence[Lookup]]],
        changed: Sequence[str],
        applied: Cut,
        seen: SeenCut,
    ) -> dict[str, _At]:
        """Bring the rows of all tables that are needed to the cut."""
        wanted = {lookup for _, found in steps for lookup in found}
        at: dict[str, _At] = {}
        for table in dict.fromkeys((*changed, *sorted(lookup.table for lookup in wanted))):
            topic = self.view.topic_of[table]
            shapes = self.records.shapes(topic)
            rows = self.tables.of(self.config.warehouse, topic, shapes)
            if without := sorted(self._read & (shapes.columns.keys() - rows.form.columns.keys())):
                raise NotKnown(f'column "{without[0]}" of {table} has a nested type')
            old, new = (tuple(cut.offsets.get(topic, ())) for cut in (applied, seen.cut))
            for by in sorted({lookup.by for lookup in wanted if lookup.table == table}):
                rows.ensure_index(by)
            with rows.renewal:
                self._renew(table, rows, (applied, old), (seen.cut, new), seen)
            at[table] = _At(rows, {"old": old, "new": new})
        if now_ms() - seen.level_ms >= self.config.kafka.min_compaction_lag_ms and not seen.is_end:
            # compaction may have removed records while they were read
            for each in at.values():
                each.rows.drop()
            raise NotKnown("reading took longer than the compaction lag")
        return at

    def _renew(
        self, table: str, rows: TableRows, old: tuple[Cut, Moment], new: tuple[Cut, Moment], seen: SeenCut
    ) -> None:
        """Bring the rows of a table from the old to the new cut, or fill them from its base table."""
        topic, (_, end) = self.view.topic_of[table], new
        known = rows.moment(Log.of(seen.cut))
        if known is not None:
            start, level_ms = known
            if start == end or _is_after(start, end):
                return
            # a tombstone may be gone by the time that the topic promises to retain it
            recent = seen.level_ms - level_ms < self.config.kafka.delete_retention_ms / 2
            if recent and _is_after(end, start) and self._apply(topic, rows, start, end, seen):
                return
        cut, start = old
        self._fill(table, rows, cut, start, seen)
        if start != end and not self._apply(topic, rows, start, end, seen):
            self._fill(table, rows, *new, seen)

    def _apply(self, topic: str, rows: TableRows, start: Moment, end: Moment, seen: SeenCut) -> bool:
        """Apply the changes of a span; False if they are too many, or the table was truncated."""
        found = self.records.latest(topic, list(start), list(end))
        if found is None or not found.facts.rows:
            if found is not None and found.facts.truncated:
                return False
            rows.pass_over(end, seen.level_ms)
            return True
        if found.facts.truncated or found.facts.rows > _MOST_APPLIED:
            return False
        shapes = self.records.shapes(topic, found.facts.schema_ids)
        changed = changes(found.rows(self.session), found.facts, shapes).toArrow()
        rows.advance(changed, changed.column(DELETED).to_pylist(), end, seen.level_ms)
        return True

    def _fill(self, table: str, rows: TableRows, cut: Cut, moment: Moment, seen: SeenCut) -> None:
        snapshot = self.inputs.snapshot(table, cut)
        if snapshot is None:
            raise NotKnown(f"the base table of {table} is not at this cut")
        began = time.monotonic()
        try:
            count = rows.fill(self.inputs.rows_of(table, snapshot), moment, Log.of(cut), seen.level_ms)
        except NotKnown:
            raise
        except Exception as error:
            # Spark may have rights, or a file system, that this process has not
            rows.drop()
            raise NotKnown(f"the base table of {table} cannot be read here: {reason(error)}") from None
        level = logging.INFO if count >= _MANY_ROWS else logging.DEBUG
        _LOG.log(level, "rows for lookups read: %s: %d rows in %.1f s", table, count, time.monotonic() - began)

    def _step_plans(
        self,
        query: DeclaredQuery,
        steps: Steps,
        changed: tuple[str, ...],
        at: Mapping[str, _At],
        sql: Callable[[str], DataFrame],
    ) -> StepPlans | None:
        """Return the plans of the steps for these tables; None if they cannot run again, or not here."""
        if not self.config.spark.master.startswith("local"):
            return None  # tasks of a cluster have no file of this machine
        relations: dict[Relation, StructType] = {}
        for table in changed:
            for image in ("before", "after"):
                relations[IMAGES, state(table, image)] = self._layout(table, at[table].rows.form)
        for number, (_, found) in enumerate(steps):
            for lookup in found:
                form = at[lookup.table].rows.form
                relations[number, state(lookup.table, lookup.which)] = self._layout(lookup.table, form)
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

    def _run_again(self, plans: StepPlans, steps: Steps, changed: Sequence[str], at: Mapping[str, _At]) -> Changes:
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
        return Changes(self.session.createDataFrame(rows, schema), rows.num_rows, most or 0)

    def _run(
        self,
        query: DeclaredQuery,
        steps: Steps,
        changed: Sequence[str],
        at: Mapping[str, _At],
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

    def _images(self, changed: Sequence[str], at: Mapping[str, _At]) -> dict[str, Any]:
        """Return the rows of the changed keys before and after the batch, Arrow tables by name in the SQL."""
        relations: dict[str, Any] = {}
        for table in changed:
            own = at[table]
            images = own.rows.images(own.moments["old"], own.moments["new"])
            for image, rows in zip(("before", "after"), images, strict=True):
                relations[state(table, image)] = own.rows.form.decode(list(rows.values()))
        return relations

    def _look_up(self, found: Sequence[Lookup], at: Mapping[str, _At], relations: dict[str, Any]) -> dict[str, Any]:
        """Look up the rows of a step; return those of each table's state, Arrow tables by name in the SQL.

        `relations` are what values are looked up from: the images, the results of steps, and what this adds.
        """
        states: dict[tuple[str, State], Rows] = {}
        for lookup in found:
            own = at[lookup.table]
            values = _values(lookup, relations, own.rows.form)
            rows = own.rows.rows(own.moments[lookup.which], lookup.by, values, _MOST_REACHED)
            relations[lookup.name] = own.rows.form.decode(list(rows.values()))
            # a state may be reached on several ways
            states.setdefault((lookup.table, lookup.which), {}).update(rows)
        return {
            state(table, which): at[table].rows.form.decode(list(rows.values()))
            for (table, which), rows in states.items()
        }

    def _name(self, names: ExitStack, table: str, which: str, rows: Any, at: Mapping[str, _At]) -> None:
        frame = self.session.createDataFrame(rows, self._layout(table, at[table].rows.form))
        names.enter_context(temp_view(self.session, state(table, which), frame))

    def _layout(self, table: str, form: RowForm) -> StructType:
        """Return the columns of a table's looked up rows."""
        columns = self.records.shapes(self.view.topic_of[table]).columns
        return StructType([StructField(name, kind) for name, kind in columns.items() if name in form.columns])


def _not_many(rows: Any) -> Any:
    if rows.num_rows > _MOST_REACHED:
        raise NotKnown(f"more than {_MOST_REACHED} rows are reached")
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


def _is_after(one: Moment, other: Moment) -> bool:
    """Whether no partition is behind that of another moment; a new table has none yet."""
    padded = (*other, *(0 for _ in range(len(one) - len(other))))
    return len(one) >= len(other) and all(mine >= its for mine, its in zip(one, padded, strict=True))
