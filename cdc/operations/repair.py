"""What `tailrace verify --repair` does about the differences of a comparison: a plan, and the reads of tables in it.

Rows of a topic that differ from the source are read again by the daemon, in windows beside the stream. Rows of a view
that differ from its topics are computed and written by a Spark job (`spark_jobs/jobs/repair.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from tailrace.cdc.operations.progress import OnProgress
from tailrace.cdc.operations.snapshots import read_snapshots
from tailrace.cdc.operations.verify_result import Result
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.schemas.records.requests import Request
from tailrace.schemas.relation import quoted
from tailrace.sinks.control.requests import Ask
from tailrace.snapshot.verify.comparison import Outcome

MOST_KEYS: Final = 500
"""Up to this many rows of a table are read by their keys; more differing keys have the whole table read."""

_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class TableRead:
    """A read of the rows of a topic that differ; `where` None: of the whole table, and keys it lacks are deleted."""

    table: str
    keys: int
    where: str | None

    def words(self) -> str:
        """Return the step as a sentence."""
        how = (
            "the whole table is read again, and keys that it lacks are deleted from the topic"
            if self.where is None
            else "these rows are read again"
        )
        return f"{self.table}: {self.keys} keys of the topic differ from the source; {how}, while streaming"


@dataclass(frozen=True, slots=True)
class Plan:
    """The differing keys of each view, of the base tables below each query, and the reads of tables."""

    tables: tuple[TableRead, ...]
    views: Mapping[str, int]
    bases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The views to repair: their rows or those of their base tables differ."""
        return list(dict.fromkeys((*self.views, *self.bases)))

    def words(self) -> list[str]:
        """Return the steps as sentences."""
        found = [read.words() for read in self.tables]
        for name in self.names:
            counts = [f"{self.views[name]} keys of the view"] if name in self.views else []
            counts += [f"{keys} keys of the base table of {table}" for table, keys in self.bases.get(name, {}).items()]
            found.append(f"{name}: {', '.join(counts)}; these rows are computed from the topics and written again")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; it has no values of keys."""
        tables = [{**asdict(read), "where": read.where is not None} for read in self.tables]
        return {"tables": tables, "views": dict(self.views), "bases": {k: dict(v) for k, v in self.bases.items()}}


def plan_of(results: Sequence[Result]) -> Plan | None:
    """Return what repairs the differences of `results`; None if there are none."""
    tables: dict[str, TableRead] = {}
    views: dict[str, int] = {}
    bases: dict[str, dict[str, int]] = {}
    for result in results:
        *of_topic, of_view = result.outcomes
        if of_view.differing and result.x is None and result.table:
            bases.setdefault(result.view, {})[result.table] = of_view.differing
        elif of_view.differing:
            views[result.view] = of_view.differing
        for outcome in of_topic:
            if outcome.differing and result.table:
                tables[result.table] = TableRead(result.table, outcome.differing, _condition(result, outcome))
    return Plan(tuple(tables.values()), views, bases) if tables or views or bases else None


def read_again(config: Config, read: TableRead, timeout_s: float, on_progress: OnProgress) -> None:
    """Have the daemon read the rows of a table again, and wait until it has.

    `timeout_s` limits the wait for the daemon's answer. ConfigError (TR-130) if it refuses; SinkError (TR-706) if no
    daemon answers, or if the read does not end as done.
    """
    on_progress(f"{read.table}: waiting for the daemon's answer", 0, None)
    request = Request("start", (read.table,), read.where, None, reconcile=read.where is None)
    with Ask(config.kafka, config.source.slot) as asked:
        asked.send(request)
        answer = asked.wait(timeout_s)
    if not answer:
        raise _not_read(read, "No daemon has accepted the request yet; it stays on Kafka.", "tailrace run")
    (outcome,) = answer
    if outcome.refused:
        raise ConfigError(
            "TR-130",
            f'request "start" refused for {read.table}',
            detail=f"{outcome.outcome}.",
            hint=outcome.hint or "tailrace snapshot status",
        )
    while True:
        found = next((each for each in read_snapshots(config).tables if each.table == read.table), None)
        if found is None or (outcome.run is not None and found.run > outcome.run):
            raise _not_read(read, "The daemon has begun another read of it.", "tailrace snapshot status")
        if found.state == "done" and not found.incomplete:
            return
        if found.state in ("cancelled", "failed", "unpublished"):
            raise _not_read(read, f"The read is {found.state}.", "tailrace snapshot status")
        on_progress(f"reading {read.table} again", found.rows or 0, None)
        time.sleep(_POLL_S)


def _not_read(read: TableRead, detail: str, hint: str) -> SinkError:
    return SinkError("TR-706", f'table "{read.table}" was not read again', detail=detail, hint=hint)


def _condition(result: Result, outcome: Outcome) -> str | None:
    """Return the condition for the rows of the differing keys; None if the whole table has to be read.

    A key that only the topic has can be deleted only by a read of the whole table.
    """
    names = [result.columns[index] for index in result.key]
    if len(outcome.differences) < outcome.differing or len(outcome.differences) > MOST_KEYS:
        return None
    if any(each.left is None for each in outcome.differences):
        return None
    rows = [orjson.loads(each.key) for each in outcome.differences]
    if not all(isinstance(value, str) for row in rows for value in row):
        return None
    pairs = (zip(names, row, strict=True) for row in rows)
    return " OR ".join(f"({' AND '.join(f'{quoted(name)} = {_literal(v)}' for name, v in each)})" for each in pairs)


def _literal(value: str) -> str:
    """Return a string literal that means the same with and without standard_conforming_strings."""
    escaped = value.replace("'", "''")
    return "E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in value else f"'{escaped}'"
