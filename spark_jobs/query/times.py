"""Windows on event time: ``window()`` becomes a column of a subquery and can be a key like any other.

``session_window()`` stays in place: the end of a session depends on its neighbors, so it cannot be part of a unit.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.text import QueryText

_FUNCTIONS: Final = ("window", "session_window")
_COLUMN: Final = "tailrace_window"


def is_window(node: exp.Expr, *names: str) -> bool:
    """Whether a node calls one of Spark's functions for windows on time: `names`, or any of them."""
    return isinstance(node, exp.Anonymous) and str(node.this).lower() in (names or _FUNCTIONS)


def name_windows(query: exp.Query) -> None:
    """Replace column references to the window that a SELECT groups by (``window.start``) by its call."""
    for select in query.find_all(exp.Select):
        group = select.args.get("group")
        calls = {call.this.lower(): call for call in (group.expressions if group else []) if is_window(call)}
        if not calls:
            continue
        for column in list(select.find_all(exp.Column)):
            if column.parent_select is not select:
                continue
            if column.table in calls:  # window.start
                field = exp.Dot(this=calls[column.table].copy(), expression=column.this.copy())
                named = isinstance(column.parent, exp.Select)
                column.replace(exp.alias_(field, column.name) if named else field)
            elif not column.table and column.name in calls:
                named = isinstance(column.parent, exp.Select)
                call = calls[column.name].copy()
                column.replace(exp.alias_(call, column.name) if named else call)


def split_windows(query: exp.Query) -> exp.Query:
    """Move each ``window()`` that is grouped by into a subquery, with the columns that the SELECT uses."""
    for select in list(query.find_all(exp.Select)):
        group = select.args.get("group")
        calls = [part for part in (group.expressions if group else []) if is_window(part, "window")]
        if calls:
            _split(select, calls[0])
    return query


def check_windows(query: exp.Query, text: QueryText) -> None:
    """Raise ConfigError for windows that may overlap and are not in a subquery of their own.

    They turn one row into several rows without a key.
    """
    for call in query.find_all(exp.Anonymous):
        split = isinstance(call.parent, exp.Alias) and call.parent.alias == _COLUMN
        if is_window(call, "window") and len(call.expressions) > 2 and not split:
            what = "a sliding window() that is not in GROUP BY cannot be maintained incrementally"
            raise text.error("TR-555", what, call, hint="Group by the window.")


def _split(select: exp.Select, call: exp.Expr) -> None:
    alias, column = "tailrace_timed", _COLUMN
    inner = exp.Select(from_=select.args["from_"], joins=select.args.get("joins"), where=select.args.get("where"))
    for moved in ("from_", "joins", "where"):
        select.set(moved, None)
    text = call.sql(DIALECT)
    for part in [found for found in select.find_all(exp.Anonymous) if found.sql(DIALECT) == text]:
        part.replace(exp.column(column, alias, quoted=True))
    names: dict[str, str] = {}
    for used in list(select.find_all(exp.Column)):
        if used.table == alias:
            continue
        name = names.setdefault(used.sql(DIALECT), f"c{len(names)}")
        if name not in inner.named_selects:
            inner = inner.select(exp.alias_(used.copy(), name, quoted=True), copy=False)
        used.replace(exp.column(name, alias, quoted=True))
    inner = inner.select(exp.alias_(call.copy(), column, quoted=True), copy=False)
    select.set("from_", exp.From(this=inner.subquery(exp.to_identifier(alias, quoted=True), copy=False)))
