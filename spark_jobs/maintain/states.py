"""The states of a query's inputs before and after a batch, under their names in the rewritten SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from typing import Self

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tailrace.sinks.spark.sql_types import quote
from tailrace.sinks.spark.temp_views import temp_view
from tailrace.sinks.target.protocol import DELETED, FIRST, FROM_LSN, FROM_ORDINAL
from tailrace.spark_jobs.lookup.known_tables import Layout
from tailrace.spark_jobs.maintain.difference import difference
from tailrace.spark_jobs.query.rewrite import State, state
from tailrace.spark_jobs.topics.latest import changes
from tailrace.spark_jobs.topics.records import Latest, Records
from tailrace.spark_jobs.topics.shapes import TableShapes

Keep = Callable[[DataFrame], DataFrame]
"""Function that puts a DataFrame into Spark's cache until the batch ends."""


class States:
    """Temporary views of one session, for a `with` block that plans the queries over them."""

    def __init__(
        self, session: SparkSession, layouts: Mapping[str, Layout], records: Records, first: Collection[str] = ()
    ) -> None:
        """`first` are the history views in which the first version of each key is to be marked (`FIRST`)."""
        self._session = session
        self._layouts = layouts
        self._records = records
        self._first = first
        self._wholes: dict[tuple[str, State], object] = {}
        self._names = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._names.close()

    def name(self, name: str, frame: DataFrame) -> None:
        """Make a DataFrame available to SQL under a name."""
        self._names.enter_context(temp_view(self._session, name, frame))

    def whole(self, table: str, which: State, source: str) -> None:
        """Name the whole table at a cut, with its present columns; `source` is its FROM item.

        It is resolved once for all views of a round. Spark's cache distinguishes two snapshots of one table, which
        Iceberg before 1.11 did not (iceberg#15741).
        """
        columns = {name: kind.simpleString() for name, kind in self._layouts[table].columns.items()}
        key = self._layouts[table].key if table in self._first else None
        self._wholes[table, which] = what = (source, key, *columns.items())

        def make() -> DataFrame:
            frame = self._session.sql(f"SELECT * FROM {source}")
            there = set(frame.columns)
            present = frame.selectExpr(
                *(
                    f"CAST({quote(name) if name in there else 'NULL'} AS {kind}) AS {quote(name)}"
                    for name, kind in columns.items()
                )
            )
            return present if key is None else _with_first(present, key)

        self.name(state(table, which), self._once(what, make))

    def images(self, table: str, changed: Latest, shapes: TableShapes, *, few: bool, beyond: bool) -> None:
        """Name the rows of the changed keys in both states; after a truncate these are all rows.

        They are the same for all views at the same cut, and so are computed once for a round. With `few`, they are
        broadcast to their joins, whose other side then needs no shuffle. `beyond`: the changes were read past the new
        state, so that they contain newer rows than its own.
        """
        if changed.facts.truncated:
            self._images(table, *self._both(table))
            return
        keep, what, (old, new) = self._records.keep, (changed.name, self._wholes[table, "old"]), self._both(table)
        hint = F.broadcast if few else _as_it_is
        found = self._once(("changes", what), lambda: keep(changes(changed.rows(self._session), changed.facts, shapes)))
        keys = hint(self._keys(table, found))
        before = self._once(("before", what), lambda: keep(self._of_keys(table, old, keys)))
        after = self._of_keys(table, new, keys) if beyond else found.where(~F.col(DELETED)).drop(DELETED)
        self._images(table, hint(before), hint(after))

    def _once(self, what: object, make: Callable[[], DataFrame]) -> DataFrame:
        return self._session.table(self._records.once(what, make))

    def differing(self, view: str, keep: Keep) -> None:
        """Name the rows of a view that differ between the two states, which are both read completely."""
        old, new = self._both(view)
        keys = keep(self._keys(view, difference(old, new, self._layouts[view].key)))
        self._images(view, keep(self._of_keys(view, old, keys)), keep(self._of_keys(view, new, keys)))

    def _keys(self, table: str, rows: DataFrame) -> DataFrame:
        key = self._layouts[table].key
        return rows.select(*(F.col(quote(name)).alias(f"tailrace_k{number}") for number, name in enumerate(key)))

    def _of_keys(self, table: str, rows: DataFrame, keys: DataFrame) -> DataFrame:
        # A view's key may hold NULL.
        key = enumerate(self._layouts[table].key)
        same = [F.col(quote(name)).eqNullSafe(F.col(f"tailrace_k{number}")) for number, name in key]
        return rows.join(keys, reduce(Column.__and__, same), "left_semi")

    def _both(self, table: str) -> tuple[DataFrame, DataFrame]:
        return self._session.table(state(table, "old")), self._session.table(state(table, "new"))

    def _images(self, table: str, old: DataFrame, new: DataFrame) -> None:
        self.name(state(table, "before"), old)
        self.name(state(table, "after"), new)


def _with_first(versions: DataFrame, key: Sequence[str]) -> DataFrame:
    """Mark the first version of each key, which stays the first: new versions only come after it."""
    place = (FROM_LSN, FROM_ORDINAL)
    of_key = Window.partitionBy(*(F.col(quote(name)) for name in key if name not in place)).orderBy(*place)
    return versions.withColumn(FIRST, F.row_number().over(of_key) == 1)


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame
