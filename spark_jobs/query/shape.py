"""Normalize a parsed query: no CTE, no RIGHT JOIN, no named window, UNION as DISTINCT."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from tailrace.spark_jobs.query.text import QueryText


def inline_ctes(query: exp.Query, text: QueryText, outer: Mapping[str, exp.CTE] | None = None) -> exp.Query:
    """Replace each reference to a common table expression by a subquery in FROM."""
    known = dict(outer or {})
    with_ = query.args.get("with_")
    if with_ is not None:
        if with_.args.get("recursive"):
            raise text.error("TR-543", "a recursive query cannot be maintained incrementally", with_)
        for cte in with_.expressions:
            cte.set("this", inline_ctes(cte.this, text, known))
            known[cte.alias] = cte
        query.set("with_", None)
    for inner in [found for found in query.find_all(exp.Query) if found is not query and found.args.get("with_")]:
        if inner.args.get("with_"):
            inner.replace(inline_ctes(inner.copy(), text, known))
    for table in list(query.find_all(exp.Table)):
        if table.db or table.name not in known:
            continue
        cte = known[table.name]
        alias = exp.TableAlias(this=exp.to_identifier(table.alias or table.name), columns=cte.args["alias"].columns)
        # Replace the table only: the join around it stays as it is.
        table.replace(exp.Subquery(this=cte.this.copy(), alias=alias))
    return query


def one_form(query: exp.Query, text: QueryText) -> None:
    """Rewrite RIGHT JOINs and named windows in place as equivalents that are easier to maintain."""
    for select in list(query.find_all(exp.Select)):
        _swap_right_join(select, text)
        _inline_windows(select)


def settle_unions(query: exp.Query) -> exp.Query:
    """Turn ``UNION`` into ``SELECT DISTINCT`` over ``UNION ALL``; name the outputs of all branches alike.

    The query must be qualified.
    """
    for number, union in enumerate(list(query.find_all(exp.Union))):
        _name_alike(union)
        if not union.args.get("distinct"):
            continue
        union.set("distinct", False)
        alias = f"tailrace_union_{number}"
        names = union.named_selects
        inner = exp.Subquery(this=union.copy(), alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        columns = [exp.alias_(exp.column(name, alias, quoted=True), name, quoted=True) for name in names]
        distinct = exp.Select(expressions=columns, from_=exp.From(this=inner), distinct=exp.Distinct())
        if union is query:
            query = distinct
        else:
            union.replace(distinct)
    return query


def _name_alike(union: exp.Union) -> None:
    """Rename the outputs of the right side, by position, to those of the left side."""
    names = union.named_selects
    for select in union.expression.find_all(exp.Select):
        if select.find_ancestor(exp.From, exp.Join, exp.Where, exp.In, exp.Exists) is not union.find_ancestor(
            exp.From, exp.Join, exp.Where, exp.In, exp.Exists
        ):
            continue
        for part, name in zip(list(select.expressions), names, strict=False):
            part.replace(exp.alias_(part.unalias().copy(), name, quoted=True))


def _swap_right_join(select: exp.Select, text: QueryText) -> None:
    """Turn ``a RIGHT JOIN b`` into ``b LEFT JOIN a``.

    ConfigError for one after another join, which would need parentheses.
    """
    joins = select.args.get("joins") or []
    for number, join in enumerate(joins):
        if join.side != "RIGHT":
            continue
        if number:
            what = "a RIGHT JOIN after another join cannot be maintained incrementally"
            raise text.error("TR-543", what, join, hint="Write it as LEFT JOIN.")
        first = select.args["from_"].this
        select.args["from_"].set("this", join.this)
        join.set("this", first)
        join.set("side", "LEFT")


def _inline_windows(select: exp.Select) -> None:
    named = {window.name: window for window in select.args.get("windows") or []}
    if not named:
        return
    select.set("windows", None)
    for window in select.find_all(exp.Window):
        base = named.get(window.alias)
        if base is None:
            continue
        window.set("alias", None)
        for part in ("partition_by", "order", "spec"):
            if not window.args.get(part) and base.args.get(part):
                value = base.args[part]
                window.set(part, [each.copy() for each in value] if isinstance(value, list) else value.copy())
