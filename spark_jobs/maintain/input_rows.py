"""The rows of a query's inputs for a small batch: looked up as of its old and its new state, never read as a whole.

Rows of captured tables are brought forward by the topics. Those of other views by the batches of these views, which
tell `KnownTables` what they have written. Rows that are not known are filled from the base table, or the view's table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import BooleanType, StructField, StructType

from tailrace.schemas.config.model import Config
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.spark.cached_size import cached_bytes
from tailrace.sinks.target.protocol import DELETED, FIRST, FROM_LSN, FROM_ORDINAL
from tailrace.spark_jobs.lookup.known_tables import KnownTables, Layout, fill, rows_of_table, rows_of_view
from tailrace.spark_jobs.lookup.table_rows import Log, Moment, NotKnown, Rows, TableRows
from tailrace.spark_jobs.maintain.batch import FEW_ROWS
from tailrace.spark_jobs.maintain.inputs import Inputs
from tailrace.spark_jobs.query.catalog import is_view
from tailrace.spark_jobs.query.lookups import Lookup
from tailrace.spark_jobs.query.rewrite import State
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.topics.latest import changes
from tailrace.spark_jobs.topics.records import Records
from tailrace.spark_jobs.views import Declared

MOST_REACHED: Final = 100_000
"""Up to this many rows of an input are looked up for a step; more are read faster with the input."""

_MOST_APPLIED: Final = 200_000
"""Up to this many changed rows are applied to the known ones; beyond, all are read again."""

_MOST_BYTES: Final = 128 << 20
"""Up to this many bytes of records in Spark's cache are applied: their rows are collected in this process."""


@dataclass(frozen=True, slots=True)
class InputAt:
    """The rows of an input, with the moments of the old and the new state.

    `first_of` are the columns by which the versions of a history are those of one key, if its first version is to be
    marked (`FIRST`); otherwise empty.
    """

    rows: TableRows
    moments: Mapping[State, Moment]
    columns: StructType
    first_of: tuple[str, ...] = ()

    def images(self, read: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Yield the rows of the changed keys `before` and `after` the batch, as Arrow tables.

        Without rows that have changed in none of the columns `read`: nothing follows from them.
        """
        before, after = self.rows.images(self.moments["old"], self.moments["new"])
        if not self.first_of:
            both = before.keys() & after.keys()
            for key in [key for key in both if not self.rows.form.differs(before[key], after[key], read)]:
                del before[key], after[key]
        yield "before", self.decoded(before, "old")
        yield "after", self.decoded(after, "new")

    def look_up(self, which: State, by: tuple[str, ...], values: list[Any]) -> Rows:
        """Return the rows in a state whose columns `by` equal one of the tuples of `values`."""
        return self.rows.rows(self.moments[which], by, values, MOST_REACHED)

    def decoded(self, rows: Rows, which: State) -> Any:
        """Return looked up rows of a state as an Arrow table with `columns`."""
        import pyarrow as pa  # type: ignore[import-untyped]

        table = self.rows.form.decode(list(rows.values()))
        if not self.first_of:
            return table
        begins = self._first(table, which)
        mine = zip(*(table.column(name).to_pylist() for name in (*self.first_of, FROM_LSN, FROM_ORDINAL)), strict=True)
        marks = [tuple(row[-2:]) == begins[row[:-2]] for row in mine]
        return table.append_column(FIRST, pa.array(marks, pa.bool_()))

    def _first(self, table: Any, which: State) -> dict[tuple[Any, ...], tuple[int, int]]:
        """Return where the first version of each key in `table` begins, according to all versions of these keys."""
        keys = table.group_by(list(self.first_of)).aggregate([])
        values = [keys.column(name).combine_chunks() for name in self.first_of]
        found = self.rows.form.decode(list(self.look_up(which, self.first_of, values).values()))
        begins: dict[tuple[Any, ...], tuple[int, int]] = {}
        for row in zip(
            *(found.column(name).to_pylist() for name in (*self.first_of, FROM_LSN, FROM_ORDINAL)), strict=True
        ):
            key, at = row[:-2], (row[-2], row[-1])
            begins[key] = min(at, begins.get(key, at))
        return begins


class InputRows:
    """Brings the known rows of one query's inputs to the cuts of its batches."""

    def __init__(
        self,
        view: Declared,
        session: SparkSession,
        config: Config,
        records: Records,
        inputs: Inputs,
        known: KnownTables,
    ) -> None:
        self._view: Final = view
        self._session: Final = session
        self._config: Final = config
        self._records: Final = records
        self._inputs: Final = inputs
        self._known: Final = known

    def at(
        self,
        names: Iterable[str],
        wanted: Collection[Lookup],
        read: frozenset[str],
        firsts: Collection[str],
        applied: Cut,
        seen: SeenCut,
    ) -> dict[str, InputAt]:
        """Return the rows of inputs, by name, at the cut `applied` and at that of `seen`.

        `wanted` are the lookups to expect, `read` the names of all columns in the query, `firsts` the histories whose
        first versions it needs marked. NotKnown if the rows of one are not known at both cuts.
        """
        found: dict[str, InputAt] = {}
        for name in names:
            layout = self._layout(name)
            rows = self._known.of(self._config.warehouse, self._called(name), layout)
            if without := sorted(read & (layout.columns.keys() - rows.form.columns.keys())):
                raise NotKnown(f'column "{without[0]}" of {name} has a nested type')
            columns = [StructField(each, kind) for each, kind in layout.columns.items() if each in rows.form.columns]
            first_of: tuple[str, ...] = ()
            if name in firsts:
                first_of = tuple(each for each in layout.key if each not in (FROM_LSN, FROM_ORDINAL))
                columns.append(StructField(FIRST, BooleanType()))
            by = {lookup.by for lookup in wanted if lookup.table == name}
            for index in sorted(by | ({first_of} if first_of else set())):
                rows.ensure_index(index)
            with rows.renewal:
                renew = self._renew_view if is_view(name) else self._renew_table
                moments = renew(name, rows, applied, seen)
            found[name] = InputAt(rows, moments, StructType(columns), first_of)
        if now_ms() - seen.level_ms >= self._config.kafka.min_compaction_lag_ms and not seen.is_end:
            # compaction may have removed records while they were read
            for name, at in found.items():
                if not is_view(name):
                    at.rows.drop()
            raise NotKnown("reading took longer than the compaction lag")
        return found

    def _layout(self, name: str) -> Layout:
        return self._inputs.layout(name) if is_view(name) else self._records.shapes(self._view.topic_of[name])

    def _called(self, name: str) -> str:
        if is_view(name):
            return rows_of_view(self._config.warehouse, name)
        return rows_of_table(self._view.topic_of[name], commits=self._view.commits)

    def _renew_table(self, table: str, rows: TableRows, applied: Cut, seen: SeenCut) -> Mapping[State, Moment]:
        """Bring the rows of a table from the old to the new cut, or fill them from its base table."""
        topic = self._view.topic_of[table]
        start, end = (tuple(cut.offsets.get(topic, ())) for cut in (applied, seen.cut))
        moments: Mapping[State, Moment] = {"old": start, "new": end}
        known = rows.moment(Log.of(seen.cut))
        if known is not None:
            there, level_ms = known
            if there == end or _is_after(there, end):
                return moments
            # a tombstone may be gone by the time that the topic promises to retain it
            recent = seen.level_ms - level_ms < self._config.kafka.delete_retention_ms / 2
            if recent and _is_after(end, there) and self._apply(topic, rows, there, end, seen):
                return moments
        self._fill_table(table, rows, applied, start, seen)
        if start != end and not self._apply(topic, rows, start, end, seen):
            self._fill_table(table, rows, seen.cut, end, seen)
        return moments

    def _fill_table(self, table: str, rows: TableRows, cut: Cut, moment: Moment, seen: SeenCut) -> None:
        snapshot = self._inputs.snapshot(table, cut)
        if snapshot is None:
            raise NotKnown(f"the base table of {table} is not at this cut")
        fill(rows, table, self._inputs.rows_of(table, snapshot), moment, Log.of(seen.cut), seen.level_ms)

    def _renew_view(self, view: str, rows: TableRows, applied: Cut, seen: SeenCut) -> Mapping[State, Moment]:
        """Return the commits that made the two states of a view; fill its rows if they are of other states."""
        old, new = (self._inputs.commit(view, cut) for cut in (applied, seen.cut))
        if old is None or new is None:
            raise NotKnown(f'view "{view}" is not at this cut')
        moments: Mapping[State, Moment] = {"old": (old,), "new": (new,)}
        log = Log.of(seen.cut)
        if rows.moment(log) is not None and rows.knows((old,)) and rows.knows((new,)):
            return moments
        # not at the new state but at the newest: only from there on, the batches of the view say what they change
        newest = self._inputs.newest(view)
        assert newest.snapshot_id is not None  # it is in the warehouse
        read = partial(self._inputs.rows_of, view)
        self._known.bring_to(newest.snapshot_id, view, rows, read, log, seen.level_ms)
        if rows.knows((old,)) and rows.knows((new,)):
            return moments
        raise NotKnown(f'what has changed in view "{view}" is not known')

    def _apply(self, topic: str, rows: TableRows, start: Moment, end: Moment, seen: SeenCut) -> bool:
        """Apply the changes of a span; False if they are too many, or the table was truncated."""
        found = self._records.latest(topic, list(start), list(end))
        if found is None or not found.facts.rows:
            if found is not None and found.facts.truncated:
                return False
            rows.pass_over(end, seen.level_ms)
            return True
        if found.facts.truncated or found.facts.rows > _MOST_APPLIED:
            return False
        shapes = self._records.shapes(topic, found.facts.schema_ids)
        if found.here is None and cached_bytes(found.rows(self._session)) > _MOST_BYTES:
            return False
        if found.facts.rows <= FEW_ROWS:
            changed = self._records.few(found, shapes).arrow()
        else:
            changed = changes(found.rows(self._session), found.facts, shapes).toArrow()
        rows.advance(changed, changed.column(DELETED).to_pylist(), end, seen.level_ms)
        return True


def _is_after(one: Moment, other: Moment) -> bool:
    """Whether no partition is behind that of another moment; a new table has none yet."""
    padded = (*other, *(0 for _ in range(len(one) - len(other))))
    return len(one) >= len(other) and all(mine >= its for mine, its in zip(one, padded, strict=True))
