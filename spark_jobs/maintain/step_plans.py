"""The steps of a query's small batch, planned once and run for each batch.

To analyze, optimize and compile them takes several times as long as to run them over a few rows.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from sqlglot import exp

from tailrace.sinks.spark.temp_views import temp_view
from tailrace.spark_jobs.maintain.difference import difference
from tailrace.spark_jobs.maintain.plan_source import PlanSource
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.rewrite import Step

IMAGES: Final = -1
"""The number of what all steps read: the rows of the changed keys."""

Relation = tuple[int, str]
"""The number of the step that reads a relation, and its name in the SQL. A later step may give it other rows."""

_SETTINGS: Final = {
    # what is broadcast is computed once for all runs of a plan
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}

_RUN_ONCE: Final = ("Exchange", "Subquery", "InMemoryTableScan")
"""Parts of a plan whose rows are computed in its first run only."""


class CannotRunAgain(Exception):
    """A second run of the plan would see rows of the first one."""


class StepPlans:
    """The plans of the steps for tables that change together.

    Memory: one plan for each step. On disk: a file for each relation (`plan_source`).
    """

    def __init__(
        self,
        session: SparkSession,
        steps: Sequence[Step],
        relations: Mapping[Relation, StructType],
        key: Sequence[str],
        sql: Callable[[str], DataFrame],
    ) -> None:
        """Plan the steps over `relations`, whose results but those of the last two are relations, too.

        The last two are compared by `key`. CannotRunAgain if that is impossible with these steps.
        """
        self.relations: Final = relations
        self._folder: Final = Path(tempfile.mkdtemp(dir=_folder()))
        self._sources: Final[dict[Relation, PlanSource]] = {}
        self._results: Final[dict[str, DataFrame]] = {}
        before = {name: session.conf.get(name, None) for name in _SETTINGS}
        try:
            for name, value in _SETTINGS.items():
                session.conf.set(name, value)
            self._changes: Final = self._planned(session, steps, key, sql)
        except BaseException:
            self.close()
            raise
        finally:
            for name, old in before.items():
                if old is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, old)

    def _planned(
        self, session: SparkSession, steps: Sequence[Step], key: Sequence[str], sql: Callable[[str], DataFrame]
    ) -> DataFrame:
        with ExitStack() as names:

            def name(number: int, relation: str, schema: StructType) -> None:
                path = self._folder / f"{len(self._sources)}.parquet"
                source = self._sources[number, relation] = PlanSource(session, path, schema)
                names.enter_context(temp_view(session, relation, source.frame))

            affected: list[DataFrame] = []
            for number, step in enumerate([None, *steps], start=IMAGES):
                for (reader, relation), schema in self.relations.items():
                    if reader == number:
                        name(number, relation, schema)
                if step is None:
                    continue
                frame = sql(_in_one_partition(step.query))
                if number >= len(steps) - 2:
                    affected.append(frame.coalesce(1))  # as in a union
                    continue
                self._results[step.name] = _checked(frame)
                if not step.sums:
                    name(number, step.name, frame.schema)
            before, after = affected
            return _checked(difference(before, after, key, counted=True))

    def fill(self, number: int, relation: str, rows: Any) -> None:
        """Give a relation of a step the rows of an Arrow table. `TooLarge` if they are too many."""
        self._sources[number, relation].fill(rows)

    def result(self, step: str) -> Any:
        """Run a step and return its rows, an Arrow table."""
        return self._results[step].toArrow()

    def changes(self) -> tuple[Any, StructType]:
        """Run the last steps; return the changes of the view, as `difference` has them, with their schema."""
        return self._changes.toArrow(), self._changes.schema

    def close(self) -> None:
        """Delete the files."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _in_one_partition(query: exp.Query) -> str:
    """Return the SQL of a step with a hint in each branch of a union.

    All of them have one partition, but a join says so in a way that a union of joins does not understand: its rows
    would go through an exchange.
    """
    found = query.copy()
    for union in list(found.find_all(exp.Union)):
        for branch in (union.this.unnest(), union.expression.unnest()):
            if isinstance(branch, exp.Select):
                one = exp.Anonymous(this="COALESCE", expressions=[exp.Literal.number(1)])
                branch.set("hint", exp.Hint(expressions=[one]))
    return found.sql(DIALECT, identify=True)


def _checked(frame: DataFrame) -> DataFrame:
    """Return a frame that can run again. The text of a plan has the name of each part."""
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    found = [part for part in _RUN_ONCE if part in plan]
    if found:
        raise CannotRunAgain(", ".join(found))
    return frame


@cache
def _folder() -> str:
    """Return the folder of all plans' files, which this process deletes when it ends."""
    folder = tempfile.mkdtemp(prefix="tailrace-plans-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
