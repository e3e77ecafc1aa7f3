"""Find the event-time columns of a query's windows: a late row is late by one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from tailrace.spark_jobs.query.catalog import COMMITS, Catalog
from tailrace.spark_jobs.query.text import QueryText
from tailrace.spark_jobs.query.times import is_window


@dataclass(frozen=True, slots=True)
class EventTime:
    """A column of a captured table, under the catalog's names."""

    table: str
    column: str


def event_times(whole: exp.Query, text: QueryText, tables: Catalog, by: Sequence[str] = ()) -> tuple[EventTime, ...]:
    """Return the event-time columns of a query in the form that `parse` returns.

    ConfigError (TR-569) if there is none, or one that is not a column of one of the captured `tables`, or if the table
    of one lacks a column of `by`.
    """
    found: dict[EventTime, None] = {}
    for call in whole.find_all(exp.Anonymous):
        if is_window(call):
            at = call.expressions[0]
            time = _traced(at)
            # late rows are looked for on the topic by columns that a record has
            if time is None or time.table not in tables or time.column in COMMITS:
                raise text.error("TR-569", "lateness needs a time column of a captured table", at)
            missing = next((name for name in by if name not in tables[time.table].columns or name in COMMITS), None)
            if missing is not None:
                raise text.error("TR-569", f'lateness_by: {time.table} has no column "{missing}"', at)
            found[time] = None
    if not found:
        raise text.error("TR-569", "lateness_s is set, but the query has no time window", 0)
    return tuple(found)


def _traced(part: exp.Expr | None) -> EventTime | None:
    """Trace a column through subqueries to its table; None for a computed value."""
    if not isinstance(part, exp.Column):
        return None
    select = part.parent_select
    sources = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or [])] if select else []
    source = next((each for each in sources if each.alias_or_name == part.table), None)
    if isinstance(source, exp.Table):
        return EventTime(f"{source.db}.{source.name}", part.name)
    inner = source.unnest() if isinstance(source, exp.Subquery) else None
    if not isinstance(inner, exp.Select):
        return None
    return _traced(next((each.unalias() for each in inner.selects if each.alias_or_name == part.name), None))
