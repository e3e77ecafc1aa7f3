"""Spark's own analysis of a query and its steps over empty tables: functions, types, ambiguities.

Our parser checks names and structure, but not the arguments of Spark's functions. No data is read or written here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.shapes import SHAPES
from tailrace.schemas.table_names import split_name
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.spark.temp_views import temp_view
from tailrace.sinks.target.protocol import FIRST
from tailrace.spark_jobs.maintain.history_batch import HistoryBatch
from tailrace.spark_jobs.query.catalog import is_view
from tailrace.spark_jobs.query.declared import DeclaredQuery
from tailrace.spark_jobs.query.rewrite import state
from tailrace.spark_jobs.topics.shapes import table_shapes
from tailrace.spark_jobs.views import Declared, declare

_STATES: Final = ("old", "new", "before", "after")


class Analysis:
    """Analyzes the queries of one configuration; `stored` are the schemas of the pipeline."""

    def __init__(self, session: SparkSession, config: Config, stored: Sequence[StoredSchema]) -> None:
        self._session = session
        self._config = config
        self._stored = stored

    def check(self, view: Declared, query: DeclaredQuery, lower: Mapping[str, DeclaredQuery]) -> None:
        """Raise ConfigError (TR-550) if Spark refuses the query or a step for changes in one of its tables.

        `lower` are the queries of the views below it, by name.
        """
        with ExitStack() as names:
            self._name(view, query, lower, names)
            run(self._session, query.over("new"), view.name)
            for table in query.tables if query.root is not None else ():
                with ExitStack() as steps:
                    for step in query.steps([table]):
                        found = run(self._session, step.sql(), view.name)
                        steps.enter_context(temp_view(self._session, step.name, found))

    def _name(self, view: Declared, query: DeclaredQuery, lower: Mapping[str, DeclaredQuery], names: ExitStack) -> None:
        for table in query.tables:
            columns = self._columns(table, view, lower)
            if table in query.histories:
                columns = {**columns, FIRST: BooleanType()}
            fields = [StructField(name, kind) for name, kind in columns.items()]
            empty = self._session.createDataFrame([], StructType(fields))
            for which in _STATES:
                names.enter_context(temp_view(self._session, state(table, which), empty))

    def _columns(self, name: str, reader: Declared, lower: Mapping[str, DeclaredQuery]) -> dict[str, DataType]:
        topics = Topics(self._config.kafka.prefix)
        if not is_view(name):
            shapes = table_shapes(self._session, reader.topic_of[name], self._stored)
            return (shapes.with_commits() if reader.commits else shapes).columns
        view = declare(self._config, name)
        if view.text is None:
            topic = topics.table(*split_name(self._config.views[name].table or ""))
            columns = table_shapes(self._session, topic, self._stored).columns
            return {**columns, **(HistoryBatch.own if SHAPES[view.shape].has_versions else {})}
        with ExitStack() as names:
            self._name(view, lower[name], lower, names)
            found = run(self._session, lower[name].over("new"), name).schema
        return {field.name: field.dataType for field in found}


def run(session: SparkSession, sql: str, view: str) -> DataFrame:
    """Return the analyzed result of a statement. ConfigError (TR-550) if Spark refuses it."""
    try:
        return session.sql(sql)
    except AnalysisException as error:
        # The message can be shown: analysis knows the query and the columns, but no values.
        raise ConfigError(
            "TR-550",
            f'view "{view}": Spark cannot run its query [{error.getCondition()}]',
            detail=" ".join(str(error).split("\n", 1)[0].split())[:500],
            hint=f"Change `query` of [views.{view}].",
        ) from None
