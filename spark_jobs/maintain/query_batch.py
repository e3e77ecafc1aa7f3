"""One batch of a query view: recompute the units that changed, over its inputs at both cuts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tailrace.schemas.records.position import Cut
from tailrace.sinks.spark.one_task import in_one_task
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.lookup.known_tables import KnownTables, Layout, rows_of_table
from tailrace.spark_jobs.lookup.table_rows import Moment, NotKnown
from tailrace.spark_jobs.maintain.analysis import run
from tailrace.spark_jobs.maintain.batch import FEW_ROWS, Content, Report, ViewBatch, are_few, own_cut, read_whole
from tailrace.spark_jobs.maintain.difference import TIMES, difference, not_unique
from tailrace.spark_jobs.maintain.group_sums import GroupSums
from tailrace.spark_jobs.maintain.input_rows import InputRows
from tailrace.spark_jobs.maintain.inputs import Inputs
from tailrace.spark_jobs.maintain.late import LateRows
from tailrace.spark_jobs.maintain.reached import Changes, Reached, Runs
from tailrace.spark_jobs.maintain.states import States
from tailrace.spark_jobs.query.catalog import TableInfo
from tailrace.spark_jobs.query.declared import DeclaredQuery, declare
from tailrace.spark_jobs.query.late import EventTime, event_times
from tailrace.spark_jobs.query.rewrite import State, Step
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.records import Every, Latest
from tailrace.spark_jobs.topics.shapes import TableShapes
from tailrace.spark_jobs.views import check_shapes

_FEW_UNITS = 100_000
"""Up to this many units are broadcast to the tasks that restrict a table to them."""


@dataclass(slots=True)
class QueryBatch(ViewBatch[dict[str, Latest]]):
    """Batches of one query view, which read the changed keys, by topic. The session's temporary views are its own."""

    inputs: Inputs
    known: KnownTables
    _sums: GroupSums = field(init=False)
    _reached: Reached = field(init=False)
    _found: tuple[Mapping[str, TableInfo], DeclaredQuery] | None = field(default=None, init=False)
    """The catalog that the query was last parsed with, and the result."""

    def __post_init__(self) -> None:
        rows = InputRows(self.view, self.session, self.config, self.records, self.inputs, self.known)
        self._sums = GroupSums(self.view.name, self.config, self.known, self._moment)
        self._reached = Reached(self.view, self.session, self.config, rows, self.known, self._sums)

    def layout(self) -> tuple[Mapping[str, DataType], tuple[str, ...]]:
        seen = self.inputs.renew(self.cuts.wait(self.view))
        query = self._declared(None)
        return _columns(self._whole(query, own_cut(self.view, seen))), query.key

    def prepare(self, applied: Applied | None, seen: SeenCut, generation: int | None) -> tuple[Applied | None, SeenCut]:
        """Bring the inputs to the cut, even without a change: otherwise they would seem not maintained (TR-526)."""
        seen = self.inputs.renew(seen) if applied is None else self.inputs.advance(seen)
        if applied is not None and not self.inputs.follow_on(applied):
            applied = None
        if generation is not None:
            self.inputs.pin(generation, applied.cut if applied else seen.cut)
        return applied, seen

    def inputs_read(self) -> Mapping[str, int]:
        return self.inputs.generations()

    def check_inputs(self, applied: Applied) -> None:
        for name in (*self.view.tables, *self.view.views):
            self.inputs.at(name, applied.cut)

    def read(self, applied: Applied | None, seen: SeenCut) -> tuple[SeenCut, dict[str, Latest]]:
        brought = seen  # by `prepare`

        def read(seen: SeenCut) -> tuple[SeenCut, dict[str, Latest]]:
            if seen is not brought:
                seen = self.inputs.advance(seen)
                if applied is not None and not self.inputs.follow_on(applied):
                    raise self.inputs.rebuilt()
            if applied is None:
                return seen, {}
            start, end = applied.cut.offsets, own_cut(self.view, seen).offsets
            spans = {
                topic: self.records.latest(topic, start.get(topic, []), end.get(topic, []))
                for topic in self.view.topics_read
            }
            return seen, {topic: span for topic, span in spans.items() if span is not None}

        return read_whole(self.view, self.config.kafka, self.cuts.wait, brought, read)

    def whole(self, found: dict[str, Latest], seen: SeenCut, report: Report) -> Content:
        query = self._declared(None)
        self._sums.doubt()
        rows = self._rows(query, own_cut(self.view, seen), report)
        return Content(_columns(rows), rows, query.key)

    def change(self, applied: Applied, found: dict[str, Latest], seen: SeenCut, report: Report) -> Applied:
        done = self._changed(applied, found, seen, report)
        self._sums.committed(done.cut)
        return done

    def _changed(self, applied: Applied, found: dict[str, Latest], seen: SeenCut, report: Report) -> Applied:
        query = self._declared(found)
        if applied.unfinished is not None:
            # Documents of an interrupted batch are in the index: they are known only at that batch's own cut.
            seen = replace(seen, cut=applied.unfinished)
        topics, inputs, cut = self.view.topic_of, self.inputs, own_cut(self.view, seen)
        tables = [table for table in topics if topics[table] in found]
        views = [view for view in self.view.views if inputs.commit(view, applied.cut) != inputs.commit(view, cut)]
        if not tables and not views:
            return self.unchanged(applied, seen)
        if query.root is None:
            # No difference: recomputed rows of the old cut may differ from those in the view.
            report.replaced = True
            rows = self._rows(query, cut, report)
            return self.target.replace(applied.generation, rows, query.key, self.commit(seen))
        facts = [found[topics[table]].facts for table in tables]
        few = not any(each.truncated for each in facts) and sum(each.rows for each in facts) <= FEW_ROWS
        # An interrupted batch is completed at its own cut, with changes that were read up to a newer one.
        beyond = applied.unfinished is not None
        changes: Changes | None = None
        # late rows are found in the whole tables
        if few and not beyond and not self._event_times(query):
            with in_one_task(self.session, few=True):
                runs = Runs(self._sql, lambda sql: self._over(query, {"old": applied.cut}, sql), self._count)
                changes = self._reached.changes(query, [*tables, *views], applied.cut, seen, runs)
        if changes is None:
            self._sums.skip()
            # what changes in views is found by comparing all of their rows
            few = few and not views
            with (
                in_one_task(self.session, few=few and inputs.are_small),
                self._states(query, {"old": applied.cut, "new": cut}) as states,
            ):
                for table in tables:
                    shapes = self.records.shapes(topics[table])
                    states.images(table, found[topics[table]], shapes, few=few, beyond=beyond)
                for view in views:
                    states.differing(view, self.persist_until_batch_end)
                report.late = self._note_late(query, tables, applied.cut, cut)
                before, after, few = self._affected(query.steps([*tables, *views]), states, few)
                changes = self._count(difference(before, after, query.key, counted=True))
        if changes.most > 1:
            raise not_unique(query.key, self.view.name)
        report.rows = changes.rows
        if not changes.rows:
            return self.unchanged(applied, seen)
        # A few changed rows of a table that many others are joined with may change many rows of the view.
        written = changes.changed
        assert written is not None  # there are rows
        if isinstance(written, FewRows):
            written = written if changes.rows <= FEW_ROWS else written.frame()
        elif few and are_few(changes.rows, written):
            written = FewRows.of(written.drop(TIMES))
        else:
            written = written.drop(TIMES)
        return self.target.merge(applied.generation, written, query.key, self.commit(seen))

    def _count(self, changes: DataFrame) -> Changes:
        """Compute a `difference`, once for counting and writing."""
        frame = self.persist_until_batch_end(changes)
        rows, most = frame.agg(F.count("*"), F.max(TIMES)).collect()[0]
        return Changes(frame, rows, most or 0)

    def _declared(self, changed: Mapping[str, Latest] | None) -> DeclaredQuery:
        """Parse the query with the tables' present columns, at least those of `changed`; None: all may be new.

        The columns do not come from the base tables: another process may have advanced one past a change of columns.
        """
        if changed is None:
            self.records.forget_shapes()
        catalog: dict[str, TableInfo] = {}
        for table, topic in self.view.topic_of.items():
            ids = changed[topic].facts.schema_ids if changed and topic in changed else frozenset()
            shapes = self.records.shapes(topic, ids)
            check_shapes(self.view, shapes)
            catalog[table] = TableInfo(tuple(shapes.columns), shapes.key, tuple(shapes.commits))
        for view in self.view.views:
            layout = self.inputs.layout(view)
            catalog[view] = TableInfo(tuple(layout.columns), layout.key)
        assert self.view.text is not None
        if self._found is None or self._found[0] != catalog:
            self._found = catalog, declare(self.view.text, self.view.key or (), catalog, self.view.refresh)
        found = self._found[1]
        self._event_times(found)
        return found

    def _affected(self, steps: Sequence[Step], states: States, few: bool) -> tuple[DataFrame, DataFrame, bool]:
        """Run the steps; return the affected rows before and after, and whether the batch is still `few`.

        A small number of units is broadcast; rows are put in one partition, so that comparing them needs no shuffle.
        """
        for step in steps[:-2]:
            found = self._sql(step.sql())
            if few and step.is_units:
                found = self.persist_until_batch_end(found)
                few = found.count() <= _FEW_UNITS
                found = F.broadcast(found) if few else found
            else:
                found = self.persist_until_batch_end(found.repartition(1) if few else found)
            states.name(step.name, found)
        before, after = (self._sql(step.sql()) for step in steps[-2:])
        return (before.repartition(1), after.repartition(1), few) if few else (before, after, few)

    def _event_times(self, query: DeclaredQuery) -> tuple[EventTime, ...]:
        """Return the event-time columns that lateness is measured by; none if the view has no lateness."""
        if self.view.lateness_s is None:
            return ()
        assert self._found is not None  # the query has been declared
        tables = {table: self._found[0][table] for table in self.view.tables}
        return event_times(query.whole, query.text, tables, self.view.lateness_by)

    def _note_late(self, query: DeclaredQuery, changed: Collection[str], before: Cut, cut: Cut) -> int:
        """List the late rows of this batch; return their number."""
        times = [time for time in self._event_times(query) if time.table in changed]
        warehouse, lateness_s = self.config.warehouse, self.view.lateness_s
        if not times or warehouse is None or lateness_s is None:
            return 0
        late = LateRows(self.session, warehouse, self.view.name, lateness_s, self.view.lateness_by)
        found: dict[EventTime, tuple[DataFrame, Every, TableShapes]] = {}
        for time in times:
            topic = self.view.topic_of[time.table]
            shapes = self.records.shapes(topic)
            rows = late.of(time, shapes.key)
            if rows is None:
                continue
            # Read again for the positions: batches do not retain them, and late rows are rare.
            every = self.records.every(topic, before.offsets.get(topic, []), cut.offsets[topic])
            if every is not None:
                found[time] = (rows, every, shapes)
        return late.note(found, cut) if found else 0

    def _rows(self, query: DeclaredQuery, cut: Cut, report: Report) -> DataFrame:
        """Compute the whole query once: the checked rows are those written. Excess data spills to disk."""
        rows = self.persist_until_batch_end(self._whole(query, cut))
        keys = rows.groupBy(*map(quote, query.key)).agg(F.count("*").alias(TIMES))
        most, count = keys.agg(F.max(TIMES), F.sum(TIMES)).collect()[0]
        if most and most > 1:
            raise not_unique(query.key, self.view.name)
        report.rows = count or 0
        return rows

    def doubt_lookups(self) -> None:
        """Have all processes read again what small batches look up: it may be wrong, if rows of the view were."""
        for topic in self.view.topics_read:
            self.known.doubt(self.config.warehouse, rows_of_table(topic, commits=self.view.commits))
        self._sums.doubt()

    def computed(self, cut: Cut) -> tuple[DeclaredQuery, DataFrame]:
        """Return the query, and its rows over its inputs as they were at a cut, which they must have had."""
        query = self._declared(None)
        return query, self._whole(query, cut)

    def _whole(self, query: DeclaredQuery, cut: Cut) -> DataFrame:
        return self._over(query, {"new": cut}, query.over("new"))

    def _over(self, query: DeclaredQuery, cuts: Mapping[State, Cut], sql: str) -> DataFrame:
        with self._states(query, cuts):
            return self._sql(sql)

    def _moment(self, cut: Cut) -> Moment:
        """Return what tells the state of the inputs at a cut from others: offsets of topics, commits of views."""
        found: list[int] = []
        for topic in sorted(self.view.topics_read):
            offsets = cut.offsets.get(topic, ())
            found += [len(offsets), *offsets]
        for view in self.view.views:
            commit = self.inputs.commit(view, cut)
            if commit is None:
                raise NotKnown(f'view "{view}" is not at this cut')
            found.append(commit)
        return tuple(found)

    def _states(self, query: DeclaredQuery, cuts: Mapping[State, Cut]) -> States:
        layouts: dict[str, Layout] = {table: self.records.shapes(topic) for table, topic in self.view.topic_of.items()}
        layouts |= {view: self.inputs.layout(view) for view in self.view.views}
        states = States(self.session, layouts, self.records, query.histories)
        for name in query.tables:
            for which, cut in cuts.items():
                states.whole(name, which, self.inputs.at(name, cut))
        return states

    def _sql(self, sql: str) -> DataFrame:
        return run(self.session, sql, self.view.name)


def _columns(rows: DataFrame) -> dict[str, DataType]:
    return {column.name: column.dataType for column in rows.schema}
