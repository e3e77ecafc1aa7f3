"""The commit columns of captured tables in queries (`spark_jobs.query.catalog.COMMITS`).

A query has them if it names them: ``*`` means the columns of the table, in every query.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from tailrace.spark_jobs.query.catalog import COMMITS, Catalog, name_of
from tailrace.spark_jobs.query.text import QueryText, offset_of

Named = set[tuple[str, str]]
"""Columns, each as the alias of its source and its name."""


def names_commits(query: exp.Query) -> bool:
    """Whether a parsed query names a commit column, or another column of such a name."""
    return any(column.name in COMMITS for column in query.find_all(exp.Column))


def hide_commits(query: exp.Query, text: QueryText, catalog: Catalog) -> None:
    """Remove the hidden columns of tables from the expansion of ``*`` in a qualified query.

    A column as written has a place in the text, one of an expansion has none. ConfigError (TR-542) for ``*`` inside of
    a function, or over a subquery with both ``*`` and such a column; and for a hidden column of a subquery that does
    not select it by name.
    """
    if not any(info.hidden for info in catalog.values()):
        return
    for star in query.find_all(exp.Star):
        if not isinstance(star.parent, exp.Count):
            what = "* here would contain the commit columns that the query names"
            hint = "Name the columns, or select the commit columns of the subquery under other names with AS."
            raise text.error("TR-542", what, star.parent, hint=hint)
    removed: dict[int, set[str]] = {}
    # inner queries come first
    for part in reversed(list(query.find_all(exp.Query))):
        if isinstance(part, exp.SetOperation):
            removed[id(part)] = removed.get(id(part.left.unnest()), set())
        elif isinstance(part, exp.Select):
            removed[id(part)] = _shorten(part, text, catalog, removed)


def _shorten(select: exp.Select, text: QueryText, catalog: Catalog, removed: dict[int, set[str]]) -> set[str]:
    """Remove the hidden columns of a select; return the names that it has no more."""
    of_tables, of_queries = Named(), Named()
    for source in _sources(select):
        if isinstance(source, exp.Table):
            info = catalog.get(name_of(source))
            of_tables |= {(source.alias_or_name, name) for name in (info.hidden if info else ())}
        else:
            of_queries |= {(source.alias_or_name, name) for name in removed.get(id(source.unnest()), ())}
    hidden = [part for part in select.expressions if _is_of(part.unalias(), of_tables | of_queries) and _expanded(part)]
    if hidden:
        gone = {id(part) for part in hidden}
        select.set("expressions", [part for part in select.expressions if id(part) not in gone])
    for column in select.find_all(exp.Column):
        if _is_of(column, of_queries):
            what = f'column "{column.name}" does not exist: the subquery "{column.table}" does not select it by name'
            raise text.error("TR-542", what, column)
    return {part.alias_or_name for part in hidden} - set(select.named_selects)


def _sources(select: exp.Select) -> Iterator[exp.Expr]:
    if (from_ := select.args.get("from_")) is not None:
        yield from_.this
    for join in select.args.get("joins") or []:
        yield join.this


def _is_of(part: exp.Expr, columns: Named) -> bool:
    return isinstance(part, exp.Column) and (part.table, part.name) in columns


def _expanded(part: exp.Expr) -> bool:
    return offset_of(part) is None
