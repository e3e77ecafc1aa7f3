"""Explain in words and SQL how a query view is maintained."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from tailrace.sinks.target.protocol import FIRST
from tailrace.spark_jobs.query.catalog import is_view
from tailrace.spark_jobs.query.declared import DeclaredQuery
from tailrace.spark_jobs.query.lookups import Unreachable, lookups
from tailrace.spark_jobs.query.rewrite import Step, state


def explain(query: DeclaredQuery) -> Iterator[str]:
    """Yield lines that explain, for each table, how a change in it leads to the parts to recompute."""
    yield f'view "{query.text.view}", key ({", ".join(query.key)})'
    if query.root is None:
        yield 'refresh = "full": each batch with a change in one of its tables recomputes the query and replaces'
        yield "all rows of the view."
        yield f"scans {', '.join(query.tables)}"
        return
    for history in query.histories:
        yield f"{FIRST} marks the first version of each key of {history}: each batch that reads it determines them"
    if query.sums is not None:
        yield "Small batches add to counts and sums of its groups (integers, decimals)."
        yield "These are computed in the second small batch in a row; until then:"
    for table in query.tables:
        yield ""
        if is_view(table):
            yield f"A change in view {table}, after this view has reached the same cut"
            yield "  changed rows: all its rows at the old cut, compared with all at the new cut"
        else:
            yield f"A change in {table}"
        steps = query.steps([table])
        for step in steps:
            yield f"  {step.name}: {step.why}"
            yield from (f"    {line}" for line in step.sql(pretty=True).split("\n"))
        scans = _scans(query, steps)
        reached = _reached(query, steps)
        if query.sums is not None:
            added = _reached(query, query.steps([table], by_sums=True))
            if not isinstance(added, str):
                yield "  a small batch that adds to sums looks up"
                yield from (f"    {line}" for line in added or ["nothing"])
        if isinstance(reached, str):
            yield f"  scans {scans}"
            if not is_view(table):
                yield f"  no lookups: {reached} cannot be reached by equality from {table}"
            continue
        yield "  a small batch looks up"
        yield from (f"    {line}" for line in reached or ["nothing"])
        yield f"  a large one scans {scans}"


def _reached(query: DeclaredQuery, steps: list[Step]) -> list[str] | str:
    """Return how the rows that a batch needs are looked up, a line for each table and column; or what prevents it."""
    if any(map(is_view, query.tables)):
        return "a view"
    found: dict[str, None] = {}
    try:
        for step in steps:
            for lookup in lookups(step.query, query.tables):
                found[f"{lookup.table} by {', '.join(lookup.by)}"] = None
    except Unreachable as error:
        return str(error)
    return list(found)


def _scans(query: DeclaredQuery, steps: list[Step]) -> str:
    """Return the tables that a batch reads completely; images have only the changed keys."""
    names = {state(table, which): f"{table} ({which})" for table in query.tables for which in ("old", "new")}
    counts: dict[str, int] = {}
    for step in steps:
        for table in step.query.find_all(exp.Table):
            if table.name in names:
                counts[names[table.name]] = counts.get(names[table.name], 0) + 1
    return ", ".join(f"{name} {count}×" if count > 1 else name for name, count in counts.items()) or "no table"
