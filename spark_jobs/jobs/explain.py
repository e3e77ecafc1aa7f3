"""Show how changes in its tables reach a query view; reads the tables' columns from Kafka.

    python -m tailrace.spark_jobs.jobs.explain [--config tailrace.toml] [--json] [--check] VIEW

Spark is started only with --check, to analyze the query and its steps: only Spark knows its functions' arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import orjson

from tailrace.schemas.config.model import Config
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.shapes import SHAPES
from tailrace.sinks.control.positions import read_schemas
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.opensearch.stored_queries import StoredQueries
from tailrace.sinks.target.protocol import FROM_LSN, FROM_ORDINAL, VALIDITY
from tailrace.spark_jobs.jobs.command import parser, run
from tailrace.spark_jobs.log import result
from tailrace.spark_jobs.query.catalog import TableInfo, captured, table_of
from tailrace.spark_jobs.query.declared import DeclaredQuery, declare
from tailrace.spark_jobs.query.explain import explain
from tailrace.spark_jobs.views import Declared
from tailrace.spark_jobs.views import declare as declare_view

_LISTED: Final = 100
"""Maximum number of parked queries to show."""

_CHECKED: Final = "Spark has analyzed and accepted the query and all of these steps."
_UNCHECKED: Final = "Spark has not analyzed the query: --check starts Spark to do so."


def main(arguments: Sequence[str]) -> int:
    options = parser("Show how a view is maintained.")
    options.add_argument("--json", action="store_true", help="one JSON object")
    options.add_argument("--check", action="store_true", help="also let Spark analyze it")
    options.add_argument("view", metavar="VIEW")
    given = options.parse_args(arguments)

    def job(config: Config) -> None:
        view = declare_view(config, given.view)
        if view.shape == "percolate":
            result(explain_percolate(config, view, as_json=given.json))
            return
        if view.text is None:
            lines = [SHAPES[view.shape].maintained]
            query = None
        else:
            stored = read_schemas(config.kafka, Topics(config.kafka.prefix))
            query = declared_query(config, view, stored)
            if given.check:
                _check(config, view, query, stored)
            lines = [*explain(query), "", _CHECKED if given.check else _UNCHECKED]
        if given.json:
            result(orjson.dumps({**_as_json(given.view, query), "checked": given.check}).decode())
        else:
            result("\n".join(lines))

    return run(job, given.config)


def explain_percolate(config: Config, view: Declared, *, as_json: bool) -> str:
    """Describe the changes and queries that are matched, the topic of matches, and parked queries."""
    assert config.search is not None  # `declare` has checked it
    topic = Topics(config.kafka.prefix).matches(view.name)
    count, parked = StoredQueries(config.search, view.name, "").parked(_LISTED)
    queries = f'index "{view.queries}"'
    if len(view.topics) == 2:
        queries = f'"{view.queries}" of {view.topics[1]}, as it is at the cut of the batch'
    if as_json:
        listed = [{"query": each.query, "version": each.version, "error": each.error} for each in parked]
        return orjson.dumps({"view": view.name, "topic": topic, "parked": count, "first_parked": listed}).decode()
    lines = [
        f"Each insert and update in {view.topics[0]} is matched against {queries}.",
        f"Its matches are committed to the table with the cut, then forwarded to {topic}, each once.",
        *(f"TR-590 parked: query {each.query}, version {each.version}: {each.error}" for each in parked),
    ]
    return "\n".join([*lines, f"... and {count - len(parked)} more."] if count > len(parked) else lines)


def _check(config: Config, view: Declared, query: DeclaredQuery, stored: list[StoredSchema]) -> None:
    """Raise ConfigError (TR-550) if Spark refuses the query, or a step that maintains it."""
    from tailrace.spark_jobs.jobs.session import open_session
    from tailrace.spark_jobs.maintain.analysis import Analysis

    session = open_session(config)
    try:
        Analysis(session, config, stored).check(view, query, dict(queries_below(config, view, stored)))
    finally:
        session.stop()


def queries_below(config: Config, view: Declared, stored: list[StoredSchema]) -> Iterator[tuple[str, DeclaredQuery]]:
    """Yield the queries of all views below a view, by name."""
    for name in view.views:
        lower = declare_view(config, name)
        if lower.text is not None:
            yield name, declared_query(config, lower, stored)
            yield from queries_below(config, lower, stored)


def declared_query(config: Config, view: Declared, stored: list[StoredSchema]) -> DeclaredQuery:
    """Return a view's query, parsed with the present columns of its tables."""
    topics = Topics(config.kafka.prefix)
    found = {table: table_of(topics, table, stored) for table in view.tables}
    found |= {lower: _info(config, lower, stored) for lower in view.views}
    catalog: dict[str, TableInfo] = {
        name: info.with_commits() if view.commits and name in view.tables else info
        for name, info in found.items()
        if info is not None
    }
    assert view.text is not None
    known = captured(config.kafka.prefix, stored)
    return declare(view.text, view.key or (), catalog, view.refresh, known)


def _info(config: Config, name: str, stored: list[StoredSchema]) -> TableInfo | None:
    """Return the present columns and key of a view, by its table or query."""
    view = declare_view(config, name)
    if view.text is None:
        table = table_of(Topics(config.kafka.prefix), config.views[name].table or "", stored)
        if table is None or not SHAPES[view.shape].has_versions:
            return table
        return TableInfo((*table.columns, *VALIDITY), (*table.key, FROM_LSN, FROM_ORDINAL))
    query = declared_query(config, view, stored)
    return TableInfo(tuple(query.whole.named_selects), query.key)


def _as_json(name: str, query: DeclaredQuery | None) -> dict[str, object]:
    if query is None:
        return {"view": name, "changes": {}}
    return {
        "view": name,
        "key": query.key,
        "changes": {
            table: [{"name": step.name, "why": step.why, "sql": step.sql()} for step in query.steps([table])]
            for table in query.tables
        },
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
