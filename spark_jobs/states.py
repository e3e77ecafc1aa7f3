"""The states of a query's tables around one batch, under the names that the rewritten SQL has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from sinks.kinds import quote
from spark_jobs.latest import changes
from spark_jobs.query.rewrite import State, state
from spark_jobs.records import Latest
from spark_jobs.shapes import TableShapes


class States:
    """Temporary views of one session; a later batch replaces them."""

    def __init__(self, session: SparkSession, shapes: Mapping[str, TableShapes]) -> None:
        self._session = session
        self._shapes = shapes

    def whole(self, table: str, which: State, source: str) -> None:
        """Name the whole table at a cut, with its present columns; `source` stands for it in FROM.

        Spark's cache tells two snapshots of one table apart, which Iceberg before 1.11 did not (iceberg#15741).
        """
        frame = self._session.sql(f"SELECT * FROM {source}")
        there = set(frame.columns)
        columns = [
            f"CAST({quote(name) if name in there else 'NULL'} AS {kind.simpleString()}) AS {quote(name)}"
            for name, kind in self._shapes[table].columns.items()
        ]
        frame.selectExpr(*columns).createOrReplaceTempView(state(table, which))

    def images(self, table: str, changed: Latest, keep: Callable[[DataFrame], DataFrame]) -> None:
        """Name the rows of the changed keys in both states; after a truncate these are all rows."""
        key = self._shapes[table].key
        old, new = (self._session.table(state(table, which)) for which in ("old", "new"))
        if not changed.facts.truncated:
            rows = changes(changed.rows(self._session), changed.facts, self._shapes[table])
            keys = keep(rows.select(*map(quote, key)))
            old, new = (whole.join(keys, list(key), "left_semi") for whole in (old, new))
            old, new = keep(old), keep(new)
        old.createOrReplaceTempView(state(table, "before"))
        new.createOrReplaceTempView(state(table, "after"))
