"""One batch of a query view: recompute the units that changed, over its inputs at both cuts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tailrace.schemas.records.position import Cut
from tailrace.sinks.spark.one_task import in_one_task
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.protocol import Applied, Target
from tailrace.spark_jobs.maintain.analysis import run
from tailrace.spark_jobs.maintain.batch import FEW_ROWS, Report, check_definition, fill, own_cut, read_whole, settled
from tailrace.spark_jobs.maintain.difference import TIMES, difference, not_unique
from tailrace.spark_jobs.maintain.inputs import Inputs
from tailrace.spark_jobs.maintain.kept_view import Shared
from tailrace.spark_jobs.maintain.late import LateRows
from tailrace.spark_jobs.maintain.states import Layout, States
from tailrace.spark_jobs.query.catalog import TableInfo
from tailrace.spark_jobs.query.declared import DeclaredQuery, declare
from tailrace.spark_jobs.query.late import EventTime, event_times
from tailrace.spark_jobs.query.rewrite import State, Step
from tailrace.spark_jobs.topics.cuts import SeenCut, advanced
from tailrace.spark_jobs.topics.records import Every, Latest
from tailrace.spark_jobs.topics.shapes import TableShapes
from tailrace.spark_jobs.views import Declared, check_shapes

_FEW_UNITS = 100_000
"""Up to this many units are broadcast to the tasks that restrict a table to them."""


@dataclass(slots=True)
class QueryBatch:
    """Batches of one query view; `session` is the view's own, and so are its temporary views."""

    view: Declared
    target: Target
    session: SparkSession
    shared: Shared
    inputs: Inputs
    _cached: list[DataFrame] = field(default_factory=list)
    _found: tuple[Mapping[str, TableInfo], DeclaredQuery] | None = None
    """The catalog that the query was last parsed with, and the result."""

    def advance(
        self, applied: Applied | None, seen: SeenCut, report: Report, *, generation: int | None = None
    ) -> Applied:
        """Bring a generation from `applied` to the cut, or a newer one; a cut at or before it changes nothing.

        With nothing applied, the whole query is computed: into `generation`, or into a new one, which becomes live.
        """
        since, staged = applied, generation
        if applied is not None:
            check_definition(self.view, applied)
            if advanced(applied, seen.cut):
                # Even without a change: otherwise the inputs would seem not to be maintained (TR-526).
                seen = self._bring(seen, renew=False)
                if not self.inputs.follow_on(applied):
                    since, generation = None, applied.generation
            done = settled(self.view, self.target, since, own_cut(self.view, seen)) if since else None
            if done is not None:
                return done
        else:
            seen = self._bring(seen, renew=True)
        if staged is not None:
            self.inputs.pin(staged, since.cut if since else seen.cut)
        try:
            cut, changed = self._read(since, seen)
            query = self._declared(None if since is None else changed)
            report.stage("read")
            if since is None:
                report.replaced = True
                return self._replace(query, cut, generation, report)
            return self._merge(query, since, cut, changed, report)
        finally:
            for frame in self._cached:
                frame.unpersist()
            self._cached.clear()
            report.stage("apply")

    def layout(self) -> tuple[Mapping[str, DataType], tuple[str, ...]]:
        """Return the columns and the key of the query over its inputs as they are now."""
        seen = self.inputs.renew(self.shared.cuts.wait(self.view))
        query = self._declared(None)
        rows = self._whole(query, own_cut(self.view, seen))
        return _columns(rows), query.key

    def _bring(self, seen: SeenCut, *, renew: bool) -> SeenCut:
        seen = self.inputs.renew(seen) if renew else self.inputs.advance(seen)
        self.target.inputs = self.inputs.generations()
        return seen

    def _read(self, since: Applied | None, brought: SeenCut) -> tuple[Cut, dict[str, Latest]]:
        """Return the cut to advance to, and the changed keys since `since`, by topic.

        The cut is the one that the inputs were brought to, or a newer one if reading the changes takes too long.
        """

        def read(seen: SeenCut) -> tuple[Cut, dict[str, Latest]]:
            if seen is not brought:
                seen = self._bring(seen, renew=False)
                if since is not None and not self.inputs.follow_on(since):
                    raise self.inputs.rebuilt()
            cut = own_cut(self.view, seen)
            if since is None:
                return cut, {}
            spans = {
                topic: self.shared.records.latest(topic, since.cut.offsets.get(topic, []), cut.offsets.get(topic, []))
                for topic in self.view.topics_read
            }
            return cut, {topic: span for topic, span in spans.items() if span is not None}

        newest_cut = partial(self.shared.cuts.wait, self.view)
        cut, changed = read_whole(self.view, self.shared.config.kafka, newest_cut, brought, read)
        # Documents of an interrupted batch are in the index: they are known only at that batch's own cut.
        return since.unfinished if since and since.unfinished else cut, changed

    def _declared(self, changed: Mapping[str, Latest] | None) -> DeclaredQuery:
        """Parse the query with the tables' present columns, at least those of `changed`; None: all may be new.

        The columns do not come from the base tables: another process may have advanced one past a change of columns.
        """
        if changed is None:
            self.shared.records.forget_shapes()
        catalog: dict[str, TableInfo] = {}
        for table, topic in self.view.topic_of.items():
            ids = changed[topic].facts.schema_ids if changed and topic in changed else frozenset()
            shapes = self.shared.records.shapes(topic, ids)
            check_shapes(self.view, shapes)
            catalog[table] = TableInfo(tuple(shapes.columns), shapes.key)
        for view in self.view.views:
            layout = self.inputs.layout(view)
            catalog[view] = TableInfo(tuple(layout.columns), layout.key)
        assert self.view.text is not None
        if self._found is None or self._found[0] != catalog:
            self._found = catalog, declare(self.view.text, self.view.key or (), catalog, self.view.refresh)
        found = self._found[1]
        self._event_times(found)
        return found

    def _replace(self, query: DeclaredQuery, cut: Cut, generation: int | None, report: Report) -> Applied:
        rows = self._rows(query, cut, report)
        return fill(self.target, _columns(rows), rows, query.key, cut, generation)

    def _merge(
        self, query: DeclaredQuery, applied: Applied, cut: Cut, changed: Mapping[str, Latest], report: Report
    ) -> Applied:
        topics, inputs = self.view.topic_of, self.inputs
        tables = [table for table in topics if topics[table] in changed]
        views = [view for view in self.view.views if inputs.snapshot(view, applied.cut) != inputs.snapshot(view, cut)]
        if not tables and not views:
            return self.target.unchanged(applied, cut)
        if query.root is None:
            # No difference: recomputed rows of the old cut may differ from those in the view.
            report.replaced = True
            return self.target.replace(applied.generation, self._rows(query, cut, report), query.key, cut)
        facts = [changed[topics[table]].facts for table in tables]
        few = not views and not any(each.truncated for each in facts) and sum(each.rows for each in facts) <= FEW_ROWS
        # An interrupted batch is completed at its own cut, with changes that were read up to a newer one.
        beyond = applied.unfinished is not None
        with (
            in_one_task(self.session, few=few and inputs.are_small),
            self._states(query, {"old": applied.cut, "new": cut}) as states,
        ):
            for table in tables:
                shapes = self.shared.records.shapes(topics[table])
                states.images(table, changed[topics[table]], shapes, few=few, beyond=beyond)
            for view in views:
                states.differing(view, self._keep)
            report.late = self._note_late(query, tables, applied.cut, cut)
            before, after, few = self._affected(query.steps([*tables, *views]), states, few)
            changes = self._keep(difference(before, after, query.key, counted=True))
            report.rows, most = changes.agg(F.count("*"), F.max(TIMES)).collect()[0]
            if most and most > 1:
                raise not_unique(query.key, self.view.name)
        if not report.rows:
            return self.target.unchanged(applied, cut)
        return self.target.merge(applied.generation, changes.drop(TIMES), query.key, cut, few=few)

    def _affected(self, steps: Sequence[Step], states: States, few: bool) -> tuple[DataFrame, DataFrame, bool]:
        """Run the steps; return the affected rows before and after, and whether the batch is still `few`.

        A small number of units is broadcast; rows are put in one partition, so that comparing them needs no shuffle.
        """
        for step in steps[:-2]:
            found = self._sql(step.sql())
            if few and step.is_units:
                found = self._keep(found)
                few = found.count() <= _FEW_UNITS
                found = F.broadcast(found) if few else found
            else:
                found = self._keep(found.repartition(1) if few else found)
            states.name(step.name, found)
        before, after = (self._sql(step.sql()) for step in steps[-2:])
        return (before.repartition(1), after.repartition(1), few) if few else (before, after, few)

    def _event_times(self, query: DeclaredQuery) -> tuple[EventTime, ...]:
        """Return the event-time columns that lateness is measured by; none if the view has no lateness."""
        if self.view.lateness_s is None:
            return ()
        return event_times(query.whole, query.text, self.view.tables)

    def _note_late(self, query: DeclaredQuery, changed: Collection[str], before: Cut, cut: Cut) -> int:
        """List the late rows of this batch; return their number."""
        times = [time for time in self._event_times(query) if time.table in changed]
        warehouse, lateness_s = self.shared.config.warehouse, self.view.lateness_s
        if not times or warehouse is None or lateness_s is None:
            return 0
        late = LateRows(self.session, warehouse, self.view.name, lateness_s)
        found: dict[EventTime, tuple[DataFrame, Every, TableShapes]] = {}
        for time in times:
            topic = self.view.topic_of[time.table]
            shapes = self.shared.records.shapes(topic)
            rows = late.of(time, shapes.key)
            if rows is None:
                continue
            # Read again for the positions: batches do not retain them, and late rows are rare.
            every = self.shared.records.every(topic, before.offsets.get(topic, []), cut.offsets[topic])
            if every is not None:
                found[time] = (rows, every, shapes)
        return late.note(found, cut) if found else 0

    def _rows(self, query: DeclaredQuery, cut: Cut, report: Report) -> DataFrame:
        """Compute the whole query once: the checked rows are those written. Excess data spills to disk."""
        rows = self._keep(self._whole(query, cut))
        keys = rows.groupBy(*map(quote, query.key)).agg(F.count("*").alias(TIMES))
        most, count = keys.agg(F.max(TIMES), F.sum(TIMES)).collect()[0]
        if most and most > 1:
            raise not_unique(query.key, self.view.name)
        report.rows = count or 0
        return rows

    def _whole(self, query: DeclaredQuery, cut: Cut) -> DataFrame:
        with self._states(query, {"new": cut}):
            return self._sql(query.over("new"))

    def _states(self, query: DeclaredQuery, cuts: Mapping[State, Cut]) -> States:
        layouts: dict[str, Layout] = {
            table: self.shared.records.shapes(topic) for table, topic in self.view.topic_of.items()
        }
        layouts |= {view: self.inputs.layout(view) for view in self.view.views}
        states = States(self.session, layouts, self.shared.records, query.histories)
        for name in query.tables:
            for which, cut in cuts.items():
                states.whole(name, which, self.inputs.at(name, cut))
        return states

    def _sql(self, sql: str) -> DataFrame:
        return run(self.session, sql, self.view.name)

    def _keep(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.persist())
        return frame


def _columns(rows: DataFrame) -> dict[str, DataType]:
    return {column.name: column.dataType for column in rows.schema}
