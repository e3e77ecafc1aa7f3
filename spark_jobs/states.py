"""The states of what a query reads around one batch, under the names that the rewritten SQL has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from sinks.kinds import quote
from spark_jobs.difference import difference
from spark_jobs.latest import changes
from spark_jobs.query.rewrite import State, state
from spark_jobs.records import Latest
from spark_jobs.shapes import TableShapes

Keep = Callable[[DataFrame], DataFrame]
"""What puts a DataFrame into Spark's cache until the batch ends."""


class Layout(Protocol):
    """Columns and key of a table or a view, as they are now."""

    @property
    def columns(self) -> Mapping[str, DataType]: ...

    @property
    def key(self) -> Sequence[str]: ...


class States:
    """Temporary views of one session; a later batch replaces them."""

    def __init__(self, session: SparkSession, layouts: Mapping[str, Layout]) -> None:
        self._session = session
        self._layouts = layouts

    def whole(self, table: str, which: State, source: str) -> None:
        """Name the whole table at a cut, with its present columns; `source` stands for it in FROM.

        Spark's cache tells two snapshots of one table apart, which Iceberg before 1.11 did not (iceberg#15741).
        """
        frame = self._session.sql(f"SELECT * FROM {source}")
        there = set(frame.columns)
        columns = [
            f"CAST({quote(name) if name in there else 'NULL'} AS {kind.simpleString()}) AS {quote(name)}"
            for name, kind in self._layouts[table].columns.items()
        ]
        frame.selectExpr(*columns).createOrReplaceTempView(state(table, which))

    def images(self, table: str, changed: Latest, shapes: TableShapes, keep: Keep) -> None:
        """Name the rows of the changed keys in both states; after a truncate these are all rows."""
        if changed.facts.truncated:
            self._name(table, *self._both(table))
        else:
            self._restrict(table, changes(changed.rows(self._session), changed.facts, shapes), keep)

    def differing(self, view: str, keep: Keep) -> None:
        """Name the rows of a view that are not the same in both states: both states are read whole."""
        self._restrict(view, difference(*self._both(view), self._layouts[view].key), keep)

    def _restrict(self, table: str, rows: DataFrame, keep: Keep) -> None:
        key = self._layouts[table].key
        keys = keep(rows.select(*(F.col(quote(name)).alias(f"tailrace_k{number}") for number, name in enumerate(key))))
        # A view's key may hold NULL.
        same = [F.col(quote(name)).eqNullSafe(F.col(f"tailrace_k{number}")) for number, name in enumerate(key)]
        old, new = (keep(whole.join(keys, reduce(Column.__and__, same), "left_semi")) for whole in self._both(table))
        self._name(table, old, new)

    def _both(self, table: str) -> tuple[DataFrame, DataFrame]:
        return self._session.table(state(table, "old")), self._session.table(state(table, "new"))

    def _name(self, table: str, old: DataFrame, new: DataFrame) -> None:
        old.createOrReplaceTempView(state(table, "before"))
        new.createOrReplaceTempView(state(table, "after"))
