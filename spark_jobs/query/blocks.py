"""A query as blocks: each SELECT with the sources of its FROM, join conditions and subqueries.

A block's *combinations* are the rows that its joins and WHERE yield, before grouping and windows. Changes are defined
in terms of combinations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sqlglot import exp

from tailrace.spark_jobs.query.catalog import name_of
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.text import QueryText

How = Literal["inner", "left", "semi", "anti", "subquery"]
"""Type of join with the sources before it. The first one is "inner"; "subquery": it is part of an expression."""

FILTERING: Final = ("semi", "anti", "subquery")
"""Join types of sources whose columns are visible only in their own condition."""

_AGGREGATES: Final = frozenset(
    (
        *("every", "some", "std", "mean", "try_sum", "try_avg", "histogram_numeric", "count_min_sketch"),
        *("hll_sketch_agg", "hll_union_agg", "bitmap_construct_agg", "theta_sketch_agg", "theta_union_agg"),
        *("theta_intersection_agg", "kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float"),
    )
)
"""Spark's aggregates that sqlglot has no class for."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A table, a view or a nested query under an alias; `on` are the conditions that join it."""

    alias: str
    read: str | Node
    how: How
    on: tuple[exp.Expr, ...]

    @property
    def tables(self) -> frozenset[str]:
        """All tables and views in it."""
        return frozenset((self.read,)) if isinstance(self.read, str) else self.read.tables


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One SELECT; the names of its intermediate results begin with `name`."""

    name: str
    select: exp.Select
    sources: tuple[Source, ...]

    @property
    def tables(self) -> frozenset[str]:
        return frozenset().union(*(source.tables for source in self.sources))

    @property
    def outputs(self) -> dict[str, exp.Expr]:
        """Map each output name to its expression."""
        return {part.alias_or_name: part.unalias() for part in self.select.expressions}

    @property
    def where(self) -> tuple[exp.Expr, ...]:
        where = self.select.args.get("where")
        return tuple(conjuncts(where.this)) if where else ()

    @property
    def group(self) -> tuple[exp.Expr, ...]:
        """The GROUP BY expressions; without GROUP BY, an aggregate is over all rows."""
        group = self.select.args.get("group")
        return tuple(group.expressions) if group else ()

    @property
    def aggregates(self) -> bool:
        """Whether several combinations become one row by GROUP BY or an aggregate."""
        return bool(self.group) or any(
            is_aggregate(node) for part in self._after() for node in part.walk(prune=lambda n: isinstance(n, exp.Query))
        )

    @property
    def windows(self) -> tuple[exp.Window, ...]:
        return tuple(
            node
            for part in self._after()
            for node in part.walk(prune=lambda n: isinstance(n, exp.Query))
            if isinstance(node, exp.Window)
        )

    @property
    def distinct(self) -> bool:
        return bool(self.select.args.get("distinct"))

    def _after(self) -> Iterator[exp.Expr]:
        yield from self.select.expressions
        for clause in ("having", "qualify"):
            if found := self.select.args.get(clause):
                yield found


@dataclass(frozen=True, slots=True, eq=False)
class Branches:
    """``UNION ALL``; each branch is maintained separately."""

    name: str
    blocks: tuple[Block, ...]

    @property
    def tables(self) -> frozenset[str]:
        return frozenset().union(*(block.tables for block in self.blocks))


Node = Block | Branches


def conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the conjuncts of a condition: the parts that must all hold."""
    return map(_bare, _parts(condition, exp.And))


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node aggregates the rows of a group into one value; a window function does not."""
    called = isinstance(node, exp.Anonymous) and str(node.this).lower() in _AGGREGATES
    if not called and not isinstance(node, exp.AggFunc):
        return False
    above = node.parent
    while isinstance(above, exp.IgnoreNulls | exp.RespectNulls | exp.WithinGroup | exp.Filter):
        above = above.parent
    return not isinstance(above, exp.Window)


def aliases(node: exp.Expr) -> frozenset[str]:
    """Return the sources whose columns an expression uses, without those that its subqueries define."""
    return frozenset(column.table for column in node.find_all(exp.Column)) - _defined(node)


def has_query(node: exp.Expr) -> bool:
    return node.find(exp.Query) is not None


def key_of(node: exp.Expr) -> str:
    """Return the canonical text of an expression, which is the same for equal expressions."""
    return _bare(node).sql(DIALECT, identify=True)


def read(query: exp.Query, text: QueryText) -> Node:
    """Return the blocks of a query in the form that `parse` returns."""
    return BlockReader(text).node(query, "rows")


def _named_sources(query: exp.Query) -> Iterator[exp.Expr]:
    if isinstance(query, exp.Select) and query.args.get("from_"):
        yield query.args["from_"].this
        yield from (join.this for join in query.args.get("joins") or [])


class BlockReader:
    """Reads a parsed query into blocks, from the outermost SELECT inwards."""

    def __init__(self, text: QueryText) -> None:
        self._text = text
        self._names: dict[str, int] = {}

    def node(self, query: exp.Expr, name: str) -> Node:
        query = query.unnest()
        if isinstance(query, exp.Union):
            own = self._name(name)
            return Branches(own, tuple(self._branch(branch.unnest(), name) for branch in _parts(query, exp.Union)))
        return self._branch(query, name)

    def _branch(self, query: exp.Expr, name: str) -> Block:
        if isinstance(query, exp.Select):
            return self._block(query, name)
        raise self._text.error("TR-543", f"{query.key.upper()} cannot be maintained incrementally", query)

    def _name(self, name: str) -> str:
        """Return a unique block name: further blocks of the same name are numbered."""
        # No "__", which is part of the names of tables' states.
        plain = "_".join(re.findall(r"[A-Za-z0-9]+", name)) or "nested"
        self._names[plain] = count = self._names.get(plain, 0) + 1
        return plain if count == 1 else f"{plain}_{count}"

    def _block(self, select: exp.Select, name: str) -> Block:
        name = self._name(name)
        if not select.args.get("from_"):
            return Block(name, select, ())
        sources = [self._source(select.args["from_"].this, "inner", ())]
        for join in select.args.get("joins") or []:
            on = tuple(conjuncts(join.args["on"])) if join.args.get("on") else ()
            sources.append(self._source(join.this, self._how(join), on))
        sources += self._subqueries(select)
        return Block(name, select, tuple(sources))

    def _how(self, join: exp.Join) -> How:
        if join.kind in ("SEMI", "ANTI"):
            return "semi" if join.kind == "SEMI" else "anti"
        return "left" if join.side == "LEFT" else "inner"

    def _source(self, source: exp.Expr, how: How, on: tuple[exp.Expr, ...]) -> Source:
        for condition in on:
            if has_query(condition):
                raise self._text.error("TR-552", "a subquery in ON cannot be maintained incrementally", condition)
        if isinstance(source, exp.Table):
            return Source(source.alias, name_of(source), how, on)
        return Source(source.alias, self.node(source, source.alias), how, on)

    def _subqueries(self, select: exp.Select) -> Iterator[Source]:
        """Yield the subqueries in a SELECT's expressions as sources, with the conditions that join them."""
        for part in (*select.expressions, *(select.args.get(c) for c in ("where", "group", "having", "qualify"))):
            if part is None:
                continue
            for node in part.walk(prune=lambda n: isinstance(n, exp.Query)):
                if not isinstance(node, exp.Query):
                    continue
                if isinstance(part, exp.Qualify):
                    raise self._text.error("TR-552", "a subquery in QUALIFY cannot be maintained incrementally", node)
                yield self.subquery(node)

    def subquery(self, found: exp.Query) -> Source:
        """Return a subquery of an expression as a source that its block joins."""
        parent = found.parent
        query = found.unnest()
        assert isinstance(query, exp.Query)
        name = self._name("tailrace_subquery")
        if isinstance(parent, exp.All | exp.Any):
            raise self._text.error(
                "TR-552", "a comparison with ALL or ANY of a subquery cannot be maintained incrementally", found
            )
        outer = [column for column in query.find_all(exp.Column) if _is_outer(column, query)]
        again = [column for column in outer if column.table in _defined(query)]
        if again:
            what = f'alias "{again[0].table}" of two sources, one of them in a subquery,'
            raise self._text.error("TR-553", f"{what} cannot be maintained incrementally", again[0], hint="Rename one.")
        if outer:
            return self._correlated(query, parent, outer, name)
        node = self.node(query, name)
        if not isinstance(parent, exp.In):
            return Source(name, node, "subquery", ())
        output = exp.column(query.selects[0].alias_or_name, name, quoted=True)
        equal = exp.EQ(this=parent.this.copy(), expression=output)
        if isinstance(parent.parent, exp.Where | exp.And):
            return Source(name, node, "subquery", (equal,))
        # NOT IN depends both on comparisons that are true and on those that are unknown (NULL).
        nulls = (exp.Is(this=side.copy(), expression=exp.Null()) for side in (parent.this, output))
        return Source(name, node, "subquery", (exp.or_(equal, *nulls),))

    def _correlated(self, query: exp.Expr, parent: exp.Expr | None, outer: Sequence[exp.Column], name: str) -> Source:
        """Turn the conditions on the outer query into join conditions of the remaining subquery."""
        if isinstance(parent, exp.In):
            raise self._text.error(
                "TR-552",
                "IN with a correlated subquery cannot be maintained incrementally",
                outer[0],
                hint="Write it as EXISTS.",
            )
        where = query.args.get("where") if isinstance(query, exp.Select) else None
        refused = ("group", "having", "qualify", "limit", "distinct", "order", "windows")
        plain = where is not None and query.args.get("from_") and not any(query.args.get(part) for part in refused)
        if not isinstance(query, exp.Select) or where is None or not plain:
            raise self._text.error(
                "TR-552", "a correlated subquery of this form cannot be maintained incrementally", outer[0]
            )
        defined = _defined(query)
        tied = [part for part in conjuncts(where.this) if aliases(part) - defined]
        counted = sum(1 for part in tied for column in part.find_all(exp.Column) if column.table not in defined)
        if counted != len(outer) or any(has_query(part) for part in tied):
            raise self._text.error(
                "TR-552",
                "a correlated subquery may refer to the outer query only in its WHERE",
                outer[0],
                hint="Write it as a join.",
            )
        nested = [found for part in query.expressions for found in part.find_all(exp.Query)]
        if nested:
            raise self._text.error(
                "TR-552",
                "a subquery in the SELECT of a correlated subquery cannot be maintained incrementally",
                nested[0],
                hint="Write it as a join.",
            )
        inner = exp.Select(from_=query.args["from_"].copy(), joins=[j.copy() for j in query.args.get("joins") or []])
        free = [part.copy() for part in conjuncts(where.this) if not aliases(part) - defined]
        if free:
            inner = inner.where(*free, copy=False)
        shown: dict[str, exp.Expr] = {}

        def as_output(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column) or node.table not in defined:
                return node
            if key_of(node) not in shown:
                shown[key_of(node)] = exp.alias_(node.copy(), f"c{len(shown)}", quoted=True)
            return exp.column(shown[key_of(node)].alias, name, quoted=True)

        on = tuple(part.copy().transform(as_output) for part in tied)
        inner = inner.select(*(shown.values() or (exp.alias_(exp.Literal.number(1), "c0"),)), copy=False)
        return Source(name, self._block(inner, name), "subquery", on)


def _parts(node: exp.Expr, kind: type[exp.Expr]) -> Iterator[exp.Expr]:
    """Yield the operands of a tree of nodes of one kind, such as AND."""
    inside = node.unnest()
    if isinstance(inside, kind):
        yield from _parts(inside.this, kind)
        yield from _parts(inside.expression, kind)
    else:
        yield node


def _bare(node: exp.Expr) -> exp.Expr:
    """Remove parentheses, except those of a subquery."""
    return node if isinstance(node, exp.Subquery) else node.unnest()


def _defined(query: exp.Expr) -> set[str]:
    """Return the aliases that a query and its nested queries define."""
    return {source.alias_or_name for inner in query.find_all(exp.Query) for source in _named_sources(inner)}


def _is_outer(column: exp.Column, query: exp.Expr) -> bool:
    """Whether a column in a query is of a source outside of it; the innermost source of its alias counts."""
    inside = {id(select) for select in query.find_all(exp.Select)}
    select = column.parent_select
    while select is not None and id(select) in inside:
        if any(source.alias_or_name == column.table for source in _named_sources(select)):
            return False
        select = select.parent_select
    return True
