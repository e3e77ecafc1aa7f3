"""Views in an Iceberg warehouse: the applied cut is a property of the snapshot that holds the data.

* A batch is one commit: MERGE of changed rows, or INSERT OVERWRITE with all rows if the content is replaced.
* The applied cut is that of the newest ancestor that has the property; rewrites by other tools carry none.
* With soft deletes, a deleted row stays, with `DELETED_AT`. Comparisons, repairs and queries read only the live rows.
  Such a table is written by MERGE in any case.
* Deletes only go through MERGE: Iceberg may turn DELETE FROM into a metadata delete, which carries no property.
* A rebuild with the live table's columns fills a branch and becomes current by `set_current_snapshot`; with other
  columns it fills a separate table, which one CREATE OR REPLACE TABLE AS SELECT copies.

Reserved in the namespace: tables ``{view}__g{n}``; in a table: branches ``g{n}`` (`sinks.iceberg.generations`), tags
``pin*`` (`sinks.iceberg.maintenance`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import orjson
from pyspark.sql.types import StructType

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.errors import RebuildError
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.catalog import opened
from tailrace.sinks.iceberg.direct.compaction import Merged
from tailrace.sinks.iceberg.direct.writers import DirectWriters
from tailrace.sinks.iceberg.generations import GENERATION, Generations, Snapshot
from tailrace.sinks.iceberg.layout import TableLayout
from tailrace.sinks.iceberg.place import Place
from tailrace.sinks.spark.java_classes import java_class
from tailrace.sinks.spark.one_task import in_one_task
from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.spark.temp_views import temp_view
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.protocol import DELETED, DELETED_AT, Applied, Commit, HistoryFrom
from tailrace.sinks.target.spooled_rows import SpooledRows
from tailrace.sinks.target.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

CUT: Final = "tailrace.cut"
KEY: Final = "tailrace.key"
DEFINITION: Final = "tailrace.definition"
INPUTS: Final = "tailrace.inputs"
LEVEL: Final = "tailrace.level_ms"
HISTORY_FROM: Final = "tailrace.history_from"
LAYOUT: Final = "tailrace.layout"
CONFIGURED: Final = "tailrace.configured"
"""Table property: the names of the properties that the configuration has set."""

_SMALL_RECORDS: Final = 500_000

_LIVE: Final = f"{DELETED_AT} IS NULL"
"""Condition of a table with soft deletes, for Spark and pyiceberg."""

_FIRST_USE: Final = threading.Lock()
"""Serializes set-up: if two sessions create a catalog's own tables or a namespace concurrently, one fails."""

_PROPERTY: Final = "spark.sql.iceberg.snapshot-property."

_TABLE_PROPERTIES: Final = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Saves a shuffle; batches are small, and a rebuild reads few partitions.
    "write.distribution-mode": "none",
    "write.merge.distribution-mode": "none",
    # A rebuild commits to its branch while follow commits to the live one: both update the same metadata pointer.
    "commit.retry.num-retries": "20",
    # Each commit adds one or two manifests, and each scan reads them all: by default up to a hundred.
    "commit.manifest.min-count-to-merge": "5",
    # Each commit writes a new metadata file; the old files would stay forever.
    "write.metadata.delete-after-commit.enabled": "true",
}


OnChange = Callable[[FewRows | None, Applied, Applied], None]
"""Called with the changes of a small batch, else None, the state before its commit and the state that it made."""


class IcebergTarget(Generations):
    """One view's table. Do not share `session`: the property setting would leak into other commits."""

    kind: Final = "warehouse"

    def __init__(
        self,
        session: SparkSession,
        warehouse: Warehouse,
        view: str,
        definition: str | None = None,
        layout: TableLayout | None = None,
    ) -> None:
        self._session = session
        self._definition = definition
        self._layout = layout or TableLayout()
        self._warehouse = warehouse
        self._catalog = warehouse.catalog
        self._namespace = warehouse.namespace
        self._view = view
        self._places: dict[int, Place] = {}
        self._direct = DirectWriters(session, warehouse)
        self._fits: dict[str, tuple[int, StructType]] = {}
        """Columns that a table is known to have, with the id of its schema then."""
        self._records = 0
        """Number of rows in the generation that was last inspected."""
        self.on_change: OnChange | None = None
        """Is called behind each `merge` into the live table."""
        self._settled: set[str] = set()
        """Tables whose sort order and properties are known to be those of the configuration."""
        # Otherwise INSERT OVERWRITE would leave the partitions that get no rows.
        session.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
        with _FIRST_USE:
            session.sql(f"CREATE NAMESPACE IF NOT EXISTS {_quoted(self._catalog, self._namespace)}")

    @property
    def layout(self) -> TableLayout:
        """The layout that the configuration declares."""
        return self._layout

    @property
    def is_small(self) -> bool:
        """True if the generation that was last inspected is small enough for a single task."""
        return self._records <= _SMALL_RECORDS

    def close(self) -> None:
        """Release what other processes may need: the key indexes. The next small batch opens them again."""
        self._direct.close()

    def live(self) -> Applied | None:
        """Return the state of the generation that readers see; None if nothing was ever applied."""
        place = Place(self._view)
        found = self._applied(place)
        if found is not None:
            self._places[found.generation] = place
        return found

    def stage(self, columns: Mapping[str, DataType], key: Sequence[str]) -> int:
        """Prepare a new generation beside the live one and return its number."""
        self._layout.check(self._view, columns)
        live = self.live()
        if live is None:
            self._places[1] = Place(self._view)
            return 1
        generation = live.generation + 1
        name = f"g{generation}"
        # The remains of an earlier attempt have a cut of their own, which must not count.
        for place in (Place(self._view, name), Place(f"{self._view}__{name}")):
            self._direct.drop(place)
        self._session.sql(f"ALTER TABLE {self._table(self._view)} DROP BRANCH IF EXISTS {name}")
        self._session.sql(f"DROP TABLE IF EXISTS {self._table(f'{self._view}__{name}')} PURGE")
        types = {column: _type_name(kind) for column, kind in columns.items()}
        same = self._types(self._view) == types and self.key(live.generation) == tuple(key)
        if same and self._recorded(Place(self._view)).partition_by == self._layout.partition_by:
            self._session.sql(f"ALTER TABLE {self._table(self._view)} CREATE BRANCH {name}")
            self._places[generation] = Place(self._view, name)
        else:
            self._places[generation] = Place(f"{self._view}__{name}")
        return generation

    def merge_small(self, target_bytes: int) -> Merged | None:
        """Merge small data files of the live generation; None if Iceberg's own procedure has to do it."""
        table = self._loaded(self._view)
        if table is None or not self.takes_spooled or table.spec().isPartitioned():
            return None
        return self._direct.merge_small(Place(self._view), table, target_bytes)

    @property
    def takes_spooled(self) -> bool:
        """Whether `replace` takes spooled rows: Spark alone writes partitions, and as properties say."""
        layout = self._layout
        return not (layout.partition_by or layout.sort_by or layout.soft_deletes or layout.properties)

    def replace(self, generation: int, rows: DataFrame | SpooledRows, key: Sequence[str], commit: Commit) -> Applied:
        """Replace the whole content of a generation by `rows`."""
        place = self._places[generation]
        if isinstance(rows, SpooledRows):
            if self._loaded(place.table) is None:
                empty = self._session.createDataFrame([], rows.schema)
                with temp_view(self._session, "tailrace_rows", empty):
                    self._create("CREATE TABLE", place.table, key, self._layout, "tailrace_rows")
            self._evolve(place, rows.schema)
            table = self._loaded(place.table)
            self._direct.replace(place, table, rows, self._values(generation, commit, key))
            return self._committed(place, generation, commit.cut, table)
        with temp_view(self._session, "tailrace_rows", rows), self._properties(generation, commit, key):
            if self._loaded(place.table) is None:
                self._create("CREATE TABLE", place.table, key, self._layout, "tailrace_rows")
            else:
                columns = _columns(self._evolve(place, rows.schema), rows)
                self._session.sql(
                    f"INSERT OVERWRITE {self._written(place)} ({', '.join(map(quote, columns))}) "
                    f"SELECT {', '.join(columns.values())} FROM tailrace_rows"
                )
        return self._committed(place, generation, commit.cut)

    def merge(self, generation: int, changes: DataFrame | FewRows, key: Sequence[str], commit: Commit) -> Applied:
        """Bring a generation to the cut of `commit`; `changes` has one row per key, with `DELETED`."""
        place = self._places[generation]
        on_change = self.on_change if place == Place(self._view) else None
        table = self._loaded(place.table)
        before = self._applied(place, table) if on_change is not None and table is not None else None
        done = self._merge(place, table, generation, changes, key, commit)
        if on_change is not None and before is not None:
            on_change(changes if isinstance(changes, FewRows) else None, before, done)
        return done

    def _merge(
        self,
        place: Place,
        table: Any,
        generation: int,
        changes: DataFrame | FewRows,
        key: Sequence[str],
        commit: Commit,
    ) -> Applied:
        given = StructType([each for each in changes.schema if each.name != DELETED])
        few, soft = isinstance(changes, FewRows), self._layout.soft_deletes
        if isinstance(changes, FewRows):
            directly = not soft and self._fits_directly(place, table, given)
            if directly and self._direct.merge(
                place, table, changes.arrow(), key, self._values(generation, commit, key)
            ):
                return self._committed(place, generation, commit.cut, table)
            changes = changes.frame(self._session)
        columns = _columns(self._evolve(place, given), changes, prefix="s.")
        # <=>: with =, a key that contains NULL would be inserted again in each batch.
        match = " AND ".join(f"t.{quote(name)} <=> s.{quote(name)}" for name in key)
        deletion, inserted = "DELETE", f"AND NOT s.{DELETED} "
        if soft:
            # a repair knows no time: its deletions are those of the cut
            at = f"coalesce({columns[DELETED_AT]}, timestamp_micros({commit.cut.commit_ts_us}))"
            columns[DELETED_AT] = f"CASE WHEN s.{DELETED} THEN {at} END"
            deletion, inserted = f"UPDATE SET t.{quote(DELETED_AT)} = {at}", ""
        sets = ", ".join(f"t.{quote(name)} = {value}" for name, value in columns.items())
        with (
            temp_view(self._session, "tailrace_changes", changes),
            self._properties(generation, commit, key),
            in_one_task(self._session, few=few and self.is_small),
        ):
            self._session.sql(
                f"MERGE INTO {self._written(place)} t USING tailrace_changes s ON {match} "
                f"WHEN MATCHED AND s.{DELETED} THEN {deletion} WHEN MATCHED THEN UPDATE SET {sets} "
                f"WHEN NOT MATCHED {inserted}THEN "
                f"INSERT ({', '.join(map(quote, columns))}) VALUES ({', '.join(columns.values())})"
            )
        return self._committed(place, generation, commit.cut)

    def append(self, generation: int, rows: DataFrame | FewRows, commit: Commit) -> Applied:
        """Add rows to a generation and bring it to the cut of `commit`."""
        place = self._places[generation]
        if isinstance(rows, FewRows):
            table = self._loaded(place.table)
            if self._fits_directly(place, table, rows.schema) and self._direct.append(
                place, table, rows.arrow(), self._values(generation, commit)
            ):
                return self._committed(place, generation, commit.cut, table)
            rows = rows.frame(self._session)
        columns = _columns(self._evolve(place, rows.schema), rows)
        with temp_view(self._session, "tailrace_rows", rows), self._properties(generation, commit):
            self._session.sql(
                f"INSERT INTO {self._written(place)} ({', '.join(map(quote, columns))}) "
                f"SELECT {', '.join(columns.values())} FROM tailrace_rows"
            )
        return self._committed(place, generation, commit.cut)

    def unchanged(self, applied: Applied, commit: Commit) -> Applied:
        """Return the state with the new cut, without a snapshot: only the views topic records such a cut."""
        return replace(applied, cut=commit.cut, unfinished=None)

    def snapshot_at(self, cut: Cut, of: Applied | None = None) -> int | None:
        """Return the snapshot of the live generation at `cut`; None if `cut` is before its first cut.

        It is the snapshot with the newest cut that is not after `cut`, so the generation must have been at `cut`. With
        `of`, the search is in the generation of that state, whatever is live now.
        """
        found = self._at(cut, of)
        return found[0] if found is not None else None

    def commit_at(self, cut: Cut, of: Applied) -> int | None:
        """Return the same, but of a state that was rewritten in fewer files the snapshot from before."""
        found = self._at(cut, of)
        return found[1] if found is not None else None

    def _at(self, cut: Cut, of: Applied | None) -> tuple[int, int] | None:
        """Return the snapshot to read at a cut, and that of the commit that made its rows."""
        rewritten: int | None = None
        for snapshot in self._ancestors(Place(self._view), of.snapshot_id if of else None):
            summary = snapshot.summary()
            stored = summary.get(CUT)
            if stored is None:
                rewritten = rewritten or snapshot.snapshotId()
                continue
            if of is not None and int(summary.get(GENERATION)) != of.generation:
                return None
            if Cut.from_json(stored).order <= cut.order:
                commit = int(snapshot.snapshotId())
                return rewritten or commit, commit
            rewritten = None
        return None

    def batches(self, snapshot: int) -> Iterator[Any]:
        """Yield the rows that are live at a snapshot as Arrow batches, read by pyiceberg in this process."""
        soft = self._recorded(Place(self._view), snapshot).soft_deletes
        with opened(self._warehouse) as catalog:
            table = catalog.load_table((self._namespace, self._view))
            scan = table.scan(_LIVE, snapshot_id=snapshot) if soft else table.scan(snapshot_id=snapshot)
            yield from scan.to_arrow_batch_reader()

    def columns(self) -> dict[str, DataType]:
        """Return the live table's columns, without `DELETED_AT` of soft deletes."""
        found = {field.name: field.dataType for field in self._session.table(self.table()).schema}
        if self._recorded(Place(self._view)).soft_deletes:
            found.pop(DELETED_AT, None)
        return found

    def live_at(self, snapshot: int) -> str:
        """Return the FROM item of the rows that are live at a snapshot of the live table."""
        there = f"{self.table()} VERSION AS OF {snapshot}"
        soft = self._recorded(Place(self._view), snapshot).soft_deletes
        return f"(SELECT * FROM {there} WHERE {_LIVE})" if soft else there

    def rows(self, generation: int) -> DataFrame:
        """Return a generation's present rows, without soft-deleted ones; later batches do not change them."""
        found = self.stored_rows(generation)
        soft = self._recorded(self._places[generation]).soft_deletes
        return found.where(_LIVE).drop(DELETED_AT) if soft else found

    def snapshots(self) -> list[Snapshot]:
        """Return the live generation's chain of snapshots, newest first; one Spark job, one row per snapshot."""
        rows = self._session.sql(
            "SELECT snapshot_id, parent_id, unix_millis(committed_at) AS ms, operation, "
            f"try_element_at(summary, '{CUT}') AS cut FROM {self.table()}.snapshots"
        ).collect()
        known = {row.snapshot_id: row for row in rows}
        found: list[Snapshot] = []
        head = self._loaded(self._view).currentSnapshot()
        row = known.get(head.snapshotId()) if head is not None else None
        while row is not None:
            cut = Cut.from_json(row.cut) if row.cut else None
            found.append(Snapshot(row.snapshot_id, row.ms, cut, row.operation == "replace"))
            row = known.get(row.parent_id)
        return found

    def oldest_ms(self) -> int:
        """Return the time of the oldest snapshot of any generation, in milliseconds since 1970."""
        return int(self._loaded(self._view).snapshots().iterator().next().timestampMillis())

    def tag(self, name: str, snapshot: int, retain_days: int | None = None) -> None:
        """Tag a snapshot, which then does not expire, or not before `retain_days` if given."""
        retain = f" RETAIN {retain_days} DAYS" if retain_days else ""
        self._session.sql(f"ALTER TABLE {self.table()} CREATE OR REPLACE TAG {name} AS OF VERSION {snapshot}{retain}")

    @contextmanager
    def tagged(self, name: str) -> Iterator[None]:
        """Tag the newest snapshot of the live generation for the block, so that it does not expire meanwhile."""
        self.tag(name, next(self._ancestors(Place(self._view))).snapshotId())
        try:
            yield
        finally:
            self.untag(name)

    def untag(self, name: str) -> None:
        """Drop a tag."""
        self._session.sql(f"ALTER TABLE {self.table()} DROP TAG IF EXISTS {name}")

    def referenced(self) -> set[int]:
        """Return the snapshots of all branches and tags, each with its ancestors back to the first with a cut."""
        found: set[int] = set()
        for name in dict(self._loaded(self._view).refs()):
            for snapshot in self._ancestors(Place(self._view, str(name))):
                found.add(int(snapshot.snapshotId()))
                if snapshot.summary().get(CUT) is not None:
                    break
        return found

    def tags(self) -> dict[str, int]:
        """Return the tags, each with the time of its snapshot, in milliseconds since 1970."""
        table = self._loaded(self._view)
        refs = {} if table is None else dict(table.refs())
        return {name: table.snapshot(ref.snapshotId()).timestampMillis() for name, ref in refs.items() if ref.isTag()}

    def table(self) -> str:
        """Return the live table's name in Spark SQL."""
        return self._table(self._view)

    def key(self, generation: int) -> tuple[str, ...]:
        """Return the key columns that a generation was written with."""
        place = self._places[generation]
        found = (snapshot.summary().get(KEY) for snapshot in self._ancestors(place))
        stored = next((key for key in found if key is not None), None)
        return tuple(orjson.loads(stored or self._loaded(place.table).properties().get(KEY)))

    def pair(self, live: int, staged: int, key: tuple[str, ...], pins: ExitStack) -> Tables:
        """Return two generations to compare, each at its newest snapshot."""
        return Tables(self.rows(live), self.rows(staged), key)

    def pair_with(self, generation: int, rows: DataFrame, key: Sequence[str], pins: ExitStack) -> Tables:
        """Return a generation, at its newest snapshot, and rows to compare it with."""
        return Tables(self.rows(generation), rows, key)

    def mend(self, generation: int, pair: Tables, rows: DataFrame, key: Sequence[str], commit: Commit) -> Applied:
        """Merge the differing rows at the generation's own cut.

        By Spark in any case: a key index may not know rows that something else has written.
        """
        return self.merge(generation, pair.changes(), key, commit)

    def shape_as(self, generation: int, rows: DataFrame) -> None:
        """Give a generation the columns of `rows`, before a query reads it to compute the rows to write."""
        self._evolve(self._places[generation], rows.schema)

    def is_live(self, generation: int) -> bool:
        """Whether readers see a generation; it must have been staged or inspected here."""
        return self._places[generation] == Place(self._view)

    def reached(self, generation: int) -> str:
        """Return the Spark SQL name of a staged or live generation."""
        return self._written(self._places[generation])

    def swap(self, generation: int, key: Sequence[str]) -> None:
        """Make another generation live, atomically for all readers; the old one stays as a branch."""
        place, live = self._places[generation], self.live()
        if live is None or live.generation == generation:
            return
        table = self._table(self._view)
        was, new = (next(self._ancestors(each)).snapshotId() for each in (Place(self._view), place))
        self._session.sql(f"ALTER TABLE {table} CREATE OR REPLACE BRANCH g{live.generation} AS OF VERSION {was}")
        head = self._session.sql(f"SELECT * FROM {self._head(place)}").schema
        columns = {field.name: field.dataType.simpleString() for field in head}
        same = columns == self._types(self._view) and tuple(key) == self.key(live.generation)
        layout = replace(self._recorded(place), properties=self._layout.properties)
        if place.table == self._view and same and layout.partition_by == self._recorded(Place(self._view)).partition_by:
            self.call("set_current_snapshot", f"snapshot_id => {new}")
            self._settle(self._view, layout)
        else:
            with self._carried(place):
                self._create("CREATE OR REPLACE TABLE", self._view, key, layout, self._head(place))
        self._drop(place)
        self._places[generation] = Place(self._view)

    def _fits_directly(self, place: Place, table: Any, given: StructType) -> bool:
        """Whether Java's table, None if there is none, can be written without Spark (`sinks.iceberg.direct`).

        It then has all columns of `given`.
        """
        if table is None or table.spec().isPartitioned():
            return False
        if self._fits.get(place.table) != (table.schema().schemaId(), given):
            self._evolve(place, given)
            table.refresh()
            self._fits[place.table] = table.schema().schemaId(), given
        return True

    def _applied(self, place: Place, table: Any = None) -> Applied | None:
        """Return the state of a generation; `table`: Java's table with its newest metadata, loaded if not given."""
        for snapshot in self._ancestors(place, table=table):
            summary = snapshot.summary()
            if summary.get(CUT) is not None:
                self._records = int(summary.get("total-records") or 0)
                begins = summary.get(HISTORY_FROM)
                return Applied(
                    int(summary.get(GENERATION)),
                    Cut.from_json(summary.get(CUT)),
                    snapshot.snapshotId(),
                    definition=summary.get(DEFINITION),
                    inputs=orjson.loads(summary.get(INPUTS) or "{}"),
                    level_ms=int(summary.get(LEVEL) or snapshot.timestampMillis()),
                    history_from=HistoryFrom.from_json(begins) if begins else None,
                )
        return None

    def _ancestors(self, place: Place, head: int | None = None, table: Any = None) -> Iterator[Any]:
        """Yield a generation's snapshots, the newest first, starting at `head` if given."""
        table = table or self._loaded(place.table)
        snapshot = None if table is None else table.snapshot(place.ref if head is None else head)
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parentId()
            snapshot = table.snapshot(parent) if parent is not None else None

    def _committed(self, place: Place, generation: int, cut: Cut, table: Any = None) -> Applied:
        """Read the state back, so that a commit without our property is never taken as applied."""
        found = self._applied(place, table)
        if found is None or found.cut != cut or found.generation != generation:
            raise RebuildError(
                "TR-521",
                f'view "{self._view}": the cut is not on the snapshot that was just written',
                view=self._view,
                detail="Something else commits to this table, or Spark ignored the snapshot property.",
                before=f"Let nothing else write to {self._namespace}.{self._view}, then: ",
            )
        return found

    @cached_property
    def _spark3_util(self) -> Any:
        return java_class(self._session._jvm, "org.apache.iceberg.spark.Spark3Util")

    def _loaded(self, table: str) -> Any:
        """Reload the table's metadata by Iceberg's Java API, without a Spark job. None if there is no table."""
        from pyspark.errors import AnalysisException

        try:
            return self._spark3_util.loadIcebergTable(self._session._jsparkSession, self._table(table))
        except AnalysisException as error:
            if "NOT_FOUND" in (error.getCondition() or ""):
                return None
            raise

    def _create(self, verb: str, table: str, key: Sequence[str], layout: TableLayout, rows: str) -> None:
        """Create a table of these rows, in their partitions and order, in one commit.

        A new table has no sort order before it exists, so its first rows are sorted by the query itself.
        """
        properties = {**_TABLE_PROPERTIES, **layout.distribution, **layout.properties}
        if layout.sort_by:
            properties["write.distribution-mode"] = "none"
        properties[KEY] = orjson.dumps(list(key)).decode()
        self._session.sql(
            f"{verb} {self._table(table)} USING iceberg {layout.partitioned()} TBLPROPERTIES ({_pairs(properties)}) "
            f"AS SELECT * FROM {rows} {layout.ordered(self._catalog)}"
        )
        self._settle(table, layout)

    def _settle(self, table: str, layout: TableLayout) -> None:
        """Give a table the sort order and the properties of a layout, if it has others; this can be repeated."""
        if not layout.is_order_of(self._loaded(table)):
            self._session.sql(f"ALTER TABLE {self._table(table)} {layout.written_order()}")
        there = {str(name): str(value) for name, value in dict(self._loaded(table).properties()).items()}
        wanted = {**_TABLE_PROPERTIES, **layout.distribution, **layout.properties}
        before = orjson.loads(there.get(CONFIGURED, "[]"))
        if layout.properties or before:
            wanted[CONFIGURED] = orjson.dumps(sorted(layout.properties)).decode()
        if changed := {name: value for name, value in wanted.items() if there.get(name) != value}:
            self._session.sql(f"ALTER TABLE {self._table(table)} SET TBLPROPERTIES ({_pairs(changed)})")
        if dropped := [name for name in before if name not in wanted and name in there]:
            names = ", ".join(_text_literal(name) for name in dropped)
            self._session.sql(f"ALTER TABLE {self._table(table)} UNSET TBLPROPERTIES ({names})")
        self._settled.add(table)

    def _recorded(self, place: Place, head: int | None = None) -> TableLayout:
        """Return the layout that a generation was written with, without properties; `head` is a snapshot of it."""
        found = (each.summary() for each in self._ancestors(place, head))
        newest = next((summary for summary in found if summary.get(CUT) is not None), None)
        return TableLayout.from_json(None if newest is None else newest.get(LAYOUT))

    def _types(self, table: str) -> dict[str, str]:
        schema = self._session.table(self._table(table)).schema
        return {field.name: field.dataType.simpleString() for field in schema}

    def _evolve(self, place: Place, given: StructType) -> dict[str, str]:
        """Add columns and widen types; return all columns with their types.

        RebuildError (TR-522) for a type change that Iceberg cannot make in place.
        """
        if place.table not in self._settled:
            self._settle(place.table, self._layout)
        there = self._types(place.table)
        table = self._table(place.table)
        for field in given:
            name, kind = field.name, _type_name(field.dataType)
            if name not in there:
                self._session.sql(f"ALTER TABLE {table} ADD COLUMN {quote(name)} {kind}")
                there[name] = kind
            elif there[name] != kind:
                if not _widens(there[name], kind):
                    raise RebuildError(
                        "TR-522",
                        f'view "{self._view}": column "{name}" was {there[name]} and is {kind} now',
                        view=self._view,
                        detail="The table cannot change it in place.",
                    )
                self._session.sql(f"ALTER TABLE {table} ALTER COLUMN {quote(name)} TYPE {kind}")
                there[name] = kind
        return there

    def _values(self, generation: int, commit: Commit, key: Sequence[str] | None = None) -> dict[str, str]:
        """Return the snapshot properties of a write."""
        values = {CUT: commit.cut.to_json(), GENERATION: str(generation)}
        if key is not None:
            values[KEY] = orjson.dumps(list(key)).decode()
        if self._definition is not None:
            values[DEFINITION] = self._definition
        if (layout := self._layout.to_json()) is not None:
            values[LAYOUT] = layout
        if commit.inputs:
            values[INPUTS] = orjson.dumps(dict(commit.inputs)).decode()
        if commit.level_ms is not None:
            values[LEVEL] = str(commit.level_ms)
        if commit.history_from is not None:
            values[HISTORY_FROM] = commit.history_from.to_json()
        return values

    def _properties(
        self, generation: int, commit: Commit, key: Sequence[str] | None = None
    ) -> AbstractContextManager[None]:
        """Give these properties to the snapshots of the block."""
        return self._set(self._values(generation, commit, key))

    @contextmanager
    def _carried(self, place: Place) -> Iterator[None]:
        """Copy our properties of the source snapshot to the next commit, which has the same rows."""
        found = next(each for each in self._ancestors(place) if each.summary().get(CUT) is not None)
        values = {str(name): str(value) for name, value in found.summary().items() if name.startswith("tailrace.")}
        with self._set({LEVEL: str(found.timestampMillis()), **values}):
            yield

    @contextmanager
    def _set(self, values: Mapping[str, str]) -> Iterator[None]:
        for name, value in values.items():
            self._session.conf.set(_PROPERTY + name, value)
        try:
            yield
        finally:
            for name in values:
                self._session.conf.unset(_PROPERTY + name)

    def _table(self, table: str) -> str:
        return _quoted(self._catalog, self._namespace, table)

    def _written(self, place: Place) -> str:
        return self._table(place.table) + ("" if place.ref == "main" else f".branch_{place.ref}")


def _columns(types: Mapping[str, str], rows: DataFrame, prefix: str = "") -> dict[str, str]:
    """Return the SQL expression for every column of a table: NULL if the source no longer has the column."""
    given = set(rows.columns)
    return {name: prefix + quote(name) if name in given else f"CAST(NULL AS {kind})" for name, kind in types.items()}


def _type_name(kind: DataType) -> str:
    """Return the type name of a column in the table: Iceberg has no integers smaller than int."""
    # A field name in a struct is followed by a colon, so it is not replaced.
    return re.sub(r"\b(tinyint|smallint)(?=[,>]|$)", "int", kind.simpleString())


def _widens(old: str, new: str) -> bool:
    """Return whether Iceberg can widen a type to another; `spark_jobs.topics.shapes.widens` on type names."""
    if (old, new) in (("int", "bigint"), ("float", "double")):
        return True
    if old.startswith("decimal(") and new.startswith("decimal("):
        (had, had_scale), (has, scale) = (kind[8:-1].split(",") for kind in (old, new))
        return had_scale == scale and int(had) <= int(has)
    return False


def _quoted(*names: str) -> str:
    return ".".join(map(quote, names))


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{_text_literal(name)} = {_text_literal(value)}" for name, value in properties.items())


def _text_literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
