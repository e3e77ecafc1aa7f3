"""Refuse constructs that cannot be maintained incrementally, with a pointer to each.

With ``refresh = "full"``, a query is not checked here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from sqlglot import exp

from tailrace.spark_jobs.query.blocks import is_aggregate
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.text import QueryText
from tailrace.spark_jobs.query.times import is_window

_VARYING: Final = (
    *(exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentUser),
    *(exp.CurrentTimezone, exp.Localtimestamp, exp.CurrentSchema, exp.CurrentCatalog, exp.CurrentDatabase),
)
_VARYING_NAMES: Final = frozenset(
    (
        *("now", "curdate", "random", "randstr", "uniform", "shuffle", "user", "session_user", "version"),
        *("monotonically_increasing_id", "spark_partition_id", "input_file_name", "input_file_block_start"),
        *("input_file_block_length", "reflect", "java_method", "try_reflect"),
    )
)
ANY_ROW: Final = (
    *(exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.AnyValue, exp.GroupConcat, exp.Mode),
    *(exp.ApproxQuantile, exp.ApproxTopK),
)
"""Aggregates whose result depends on the order in which they see the rows."""

_SKETCHES: Final = {
    **dict.fromkeys(
        ("kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float"), "percentile(value, 0.5)"
    ),
    "histogram_numeric": "GROUP BY floor(value / width)",
    "hll_sketch_agg": "approx_count_distinct(value), or theta_sketch_agg(value), which can be united as well",
}
"""Approximations that also depend on the order of the rows, or on chance, and what to use instead."""

_SEVERAL_ROWS: Final = frozenset(("inline_outer", "variant_explode", "variant_explode_outer"))
"""Spark's row-generating functions that sqlglot has no class for."""

_FULL_HINT: Final = 'refresh = "full"  # recomputes the whole query for each batch that changes its tables'


_PART: Final = "TR-543"
"""Error code for a construct through which changes cannot be tracked."""
_VARYING_RESULT: Final = "TR-554"
"""Error code for a function whose result the rows do not determine."""
_WINDOWS: Final = "TR-555"
"""Error code for windows on time that cannot be maintained."""

Finding = tuple[str, str, exp.Expr, str]
"""Error code, description of the construct, its node, and the hint ("": use a full refresh)."""


def refuse(query: exp.Query, text: QueryText) -> None:
    """Raise ConfigError for the first construct, in the query as written, that cannot track changes."""
    for code, message, node, hint in _findings(query):
        raise text.error(code, f"{message} cannot be maintained incrementally", node, hint=hint or _FULL_HINT)


def _findings(query: exp.Query) -> Iterator[Finding]:
    for node in query.walk():
        if isinstance(node, exp.Join):
            if node.side == "FULL":
                yield _PART, "a FULL JOIN", node, ""
            if node.args.get("method"):
                yield _PART, f"a {node.args['method']} JOIN", node, "Write the condition out with ON or USING."
            if node.side == "LEFT" and not (node.args.get("on") or node.args.get("using")):
                yield _PART, "a LEFT JOIN without ON", node, "Write the condition out with ON or USING."
        elif isinstance(node, exp.Select):
            yield from _clauses(node)
        elif isinstance(node, exp.SetOperation) and not isinstance(node, exp.Union):
            yield _PART, node.key.upper(), node, "Write it with EXISTS or NOT EXISTS, or: " + _FULL_HINT
        elif isinstance(node, exp.SetOperation) and (node.args.get("limit") or node.args.get("offset")):
            yield _PART, "LIMIT", node.args.get("limit") or node, ""
        elif isinstance(node, exp.Lateral | exp.Pivot | exp.TableSample | exp.Values):
            yield _PART, node.key.upper(), node, ""
        elif isinstance(node, exp.UDTF | exp.Stack | exp.Inline) or _is_called(node, _SEVERAL_ROWS):
            yield _PART, "a function that returns several rows", node, ""
        elif isinstance(node, _VARYING) or _is_called(node, _VARYING_NAMES) or _is_clock(node):
            what = f"{_name(node)}(), which returns a different value at each call,"
            yield _VARYING_RESULT, what, node, "Use a column of the row instead."
        elif isinstance(node, ANY_ROW) and is_aggregate(node):
            hint = "Use min_by(value, order), max_by(value, order) or array_join(sort_array(collect_list(...)), ',')."
            yield _VARYING_RESULT, f"{_name(node)}(), whose result depends on the order of rows,", node, hint
        elif _is_called(node, _SKETCHES):
            what = f"{_name(node)}(), whose result depends on the order of rows,"
            yield _VARYING_RESULT, what, node, f"Use {_SKETCHES[_name(node)]}."
        elif isinstance(node, exp.Any) and not isinstance(node.this, exp.Query):
            yield _PART, "any(...) as an aggregate", node, "Use bool_or(...), which is the same."
        elif isinstance(node, exp.ArrayAgg | exp.ArrayUniqueAgg) and not _is_sorted(node):
            yield _VARYING_RESULT, "an array without an order", node, f"Sort it: sort_array({_name(node)}(...))."


def _clauses(select: exp.Select) -> Iterator[Finding]:
    for clause, name in (("limit", "LIMIT"), ("offset", "OFFSET"), ("sort", "SORT BY"), ("laterals", "LATERAL VIEW")):
        found = select.args.get(clause)
        if found:
            yield _PART, name, found[0] if isinstance(found, list) else found, ""
    if select.args.get("order"):
        hint = "Remove it: a view has no order. Sort when you read the view."
        yield _PART, "ORDER BY", select.args["order"], hint
    distinct = select.args.get("distinct")
    if distinct is not None and distinct.args.get("on"):
        yield _PART, "DISTINCT ON", distinct, "Write it with row_number()."
    group = select.args.get("group")
    if group is not None:
        for part in ("rollup", "cube", "grouping_sets", "all", "totals"):
            if group.args.get(part):
                yield _PART, f"GROUP BY {part.upper().replace('_', ' ')}", group, "List the columns to group by."
        timed = [part for part in group.expressions if is_window(part)]
        if len(timed) > 1:
            yield _WINDOWS, "GROUP BY two windows on time", timed[1], ""


def _is_called(node: exp.Expr, names: Collection[str]) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).lower() in names


def _is_clock(node: exp.Expr) -> bool:
    return _is_called(node, ("unix_timestamp",)) and not node.expressions


def _is_sorted(node: exp.Expr) -> bool:
    parent = node.parent
    while isinstance(parent, exp.Filter | exp.Paren | exp.Distinct | exp.Transform):
        parent = parent.parent
    return isinstance(parent, exp.ArraySize | exp.ArraySort)


def _name(node: exp.Expr) -> str:
    name = node.this if isinstance(node, exp.Anonymous) else node.sql(DIALECT).partition("(")[0]
    return str(name).lower()
