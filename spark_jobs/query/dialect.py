"""Spark's SQL as queries are read and written: sqlglot's, without its rewritings that change a result."""

from __future__ import annotations

from typing import ClassVar, Final

from sqlglot import exp, transforms
from sqlglot.dialects.dialect import NormalizationStrategy, groupconcat_sql
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, UnsupportedError
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser

_HOLDS: Final = "tailrace_qualify"


def _qualify_as_where(select: exp.Expr) -> exp.Expr:
    """Turn QUALIFY, which Spark lacks, into WHERE around a subquery that has the condition as one more column.

    sqlglot's own rewriting replaces each column in QUALIFY by the output of the same name, of whichever table.
    """
    qualify = select.args.get("qualify") if isinstance(select, exp.Select) else None
    if qualify is None or not isinstance(select, exp.Select):
        return select
    outer = exp.Select(expressions=[exp.column(name, _HOLDS, quoted=True) for name in select.named_selects])
    select.set("qualify", None)
    # these come after QUALIFY
    for clause in ("distinct", "limit", "offset"):
        outer.set(clause, select.args.get(clause))
        select.set(clause, None)
    if order := select.args.get("order"):
        select.set("order", None)
        for number, part in enumerate(order.expressions):
            if isinstance(part.this, exp.Column) and not part.this.table:
                continue  # an output
            name = f"{_HOLDS}_{number}"
            select.select(exp.alias_(part.this.copy(), name, quoted=True), copy=False)
            part.set("this", exp.column(name, _HOLDS, quoted=True))
        outer.set("order", order)
    select.select(exp.alias_(qualify.this, _HOLDS, quoted=True), copy=False)
    inner = select.subquery(exp.to_identifier(_HOLDS, quoted=True), copy=False)
    return outer.from_(inner, copy=False).where(exp.column(_HOLDS, _HOLDS, quoted=True), copy=False)


_AS_WRITTEN: Final = frozenset(
    (
        *("DATE_FORMAT", "FROM_UNIXTIME", "TO_CHAR", "TO_DATE", "TO_TIMESTAMP", "TO_UNIX_TIMESTAMP", "UNIX_TIMESTAMP"),
        *("LEVENSHTEIN", "PARSE_JSON", "UNIX_DATE"),
    )
)
"""Functions that sqlglot would write in another form, with fewer arguments, another format or another type."""


class _Parser(SparkParser):
    FUNCTIONS: ClassVar = {name: read for name, read in SparkParser.FUNCTIONS.items() if name not in _AS_WRITTEN}


class _Generator(SparkGenerator):
    TRANSFORMS: ClassVar = {
        **{
            node: write
            for node, write in SparkGenerator.TRANSFORMS.items()
            # would make an approximation of percentile_cont() and percentile_disc()
            if node is not exp.WithinGroup
        },
        # without a separator, Spark has none
        exp.GroupConcat: lambda self, node: groupconcat_sql(self, node, sep=None),
        exp.Select: transforms.preprocess(
            [
                _qualify_as_where,
                transforms.eliminate_distinct_on,
                transforms.unnest_to_explode,
                transforms.any_to_exists,
            ]
        ),
    }


class TailraceSpark(Spark):
    """Spark's dialect; names are compared as written."""

    NORMALIZATION_STRATEGY = NormalizationStrategy.CASE_SENSITIVE
    Parser = _Parser
    Generator = _Generator


DIALECT: Final = "tailracespark"
"""The name under which sqlglot knows `TailraceSpark`."""


def unwritable(query: exp.Query) -> str:
    """Return the first part of a query that its text for Spark would not have, in sqlglot's words; "" if it has all."""
    try:
        query.sql(DIALECT, unsupported_level=ErrorLevel.RAISE, max_unsupported=1)
    except UnsupportedError as error:
        return str(error).rstrip(".")
    return ""
