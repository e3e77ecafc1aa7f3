"""Groups that are brought forward by sums: what a batch adds to a group's counts and sums, and what it takes away.

Recomputing a group reads all of its rows. But the count of rows, the count of values that are not NULL, and the sum of
integers or decimals follow from their old value and from the combinations that appear and disappear. These are a sum
of one term for each changed source (`spark_jobs.query.rewrite`): the rows of its ``after``, less those of its
``before``, over the ``new`` state of the sources before it and the ``old`` state of those after it.

See "Maintaining Views Incrementally", Gupta, Mumick, Subrahmanian, SIGMOD 1993: the counting algorithm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from tailrace.spark_jobs.query.blocks import Block, Node, has_query, is_aggregate, key_of
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.joins import joined
from tailrace.spark_jobs.query.rewrite import State, Step, from_clause, image_of, states_of
from tailrace.spark_jobs.query.times import is_window

SIGN: Final = "sign"
"""In the rows of the first step: 1 of combinations that appear, -1 of those that disappear."""

ROWS: Final = "n"
"""The number of combinations in a group; a group without any is no row of the view."""

_CLAUSES: Final = {"expressions", "from_", "joins", "where", "group", "having"}


class _Recomputed(Exception):
    """The block has a part that does not follow from sums."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a block: its groups have the columns ``u0``, ``u1``, …, `ROWS`, and two for each argument.

    ``c0`` is the number of values of the first argument that are not NULL, ``s0`` their sum, if `summed` has 0.
    """

    block: Block
    arguments: tuple[exp.Expr, ...]
    summed: frozenset[int]
    outputs: tuple[exp.Expr, ...]
    """The block's outputs over these columns, each with its name."""
    having: exp.Expr | None

    @property
    def units(self) -> list[str]:
        """The columns that identify a group."""
        return [f"u{number}" for number in range(len(self.block.group))]

    def steps(self, changed: Collection[str]) -> list[Step]:
        """Return the steps for changes in some tables: what is added to which groups, and these groups' rows.

        The first has `SIGN` and the columns of `over`. The others read the changed groups' sums at both cuts, without
        those of empty groups.
        """
        sides: dict[str, State] = {"before": "old", "after": "new"}
        names = {image: f"{self.block.name}__sums__{image}" for image in sides}
        added = Step(
            f"{self.block.name}__added", self._added(changed), f"what is added to the sums of {self.block.name}"
        )
        rows = [
            Step(f"{self.block.name}__{image}", self._rows(names[image]), f"their rows at the {cut} cut")
            for image, cut in sides.items()
        ]
        return [Step(added.name, added.query, added.why, tuple(names.values())), *rows]

    def over(self, which: State) -> str:
        """Return the SQL of all groups' sums over the tables in one state."""
        query = self._summed(self._combinations(states_of(self.block.sources, which), {}), ())
        return query.sql(DIALECT, identify=True)

    def _added(self, changed: Collection[str]) -> exp.Query:
        terms: list[exp.Query] = []
        for number, source in enumerate(self.block.sources):
            if not source.tables & set(changed):
                continue
            states = states_of(self.block.sources[:number], "new") | states_of(self.block.sources[number:], "old")
            for image, sign in (("after", "1"), ("before", "-1")):
                term = self._combinations(states, {source.alias: image_of(source, image)})
                terms.append(term.select(exp.alias_(exp.maybe_parse(sign), SIGN, quoted=True), copy=False))
        found: exp.Query = terms[0]
        for other in terms[1:]:
            found = exp.union(found, other, distinct=False)
        return self._summed(found, (SIGN,))

    def _combinations(self, states: dict[str, State], images: dict[str, exp.Expr]) -> exp.Select:
        parts = {f"u{number}": part for number, part in enumerate(self.block.group)}
        parts |= {f"x{number}": part for number, part in enumerate(self.arguments)}
        columns = [exp.alias_(part.copy(), name, quoted=True) for name, part in parts.items()]
        plan = joined(self.block, {source.alias for source in self.block.sources})
        return from_clause(exp.Select(expressions=columns), plan, states, images)

    def _summed(self, combinations: exp.Query, more: Collection[str]) -> exp.Select:
        by = [_column(name) for name in (*self.units, *more)]
        columns: list[exp.Expr] = [*by, exp.alias_(exp.Count(this=exp.Star()), ROWS, quoted=True)]
        for number in range(len(self.arguments)):
            values = _column(f"x{number}")
            columns.append(exp.alias_(exp.Count(this=values), f"c{number}", quoted=True))
            if number in self.summed:
                columns.append(exp.alias_(exp.Sum(this=values.copy()), f"s{number}", quoted=True))
        inner = exp.Subquery(this=combinations, alias=exp.TableAlias(this=exp.to_identifier("t", quoted=True)))
        return exp.Select(expressions=columns, from_=exp.From(this=inner)).group_by(*(each.copy() for each in by))

    def _rows(self, sums: str) -> exp.Select:
        table = exp.Table(
            this=exp.to_identifier(sums, quoted=True), alias=exp.TableAlias(this=exp.to_identifier("t", quoted=True))
        )
        found = exp.Select(expressions=[part.copy() for part in self.outputs], from_=exp.From(this=table))
        return found.where(self.having.copy(), copy=False) if self.having is not None else found


def sums_of(root: Node | None) -> Sums | None:
    """Return the sums of a query; None if its groups have to be recomputed.

    Sums of inexact numbers cannot be told from others here, where types are not known: their caller has to.
    """
    if not isinstance(root, Block) or not root.group or root.windows or root.distinct:
        return None
    select = root.select
    if any(value for clause, value in select.args.items() if clause not in _CLAUSES):
        return None
    if any(value for clause, value in select.args["group"].args.items() if clause != "expressions"):
        return None
    if any(source.how != "inner" or not isinstance(source.read, str) for source in root.sources):
        return None
    if any(isinstance(part, exp.Literal) or any(map(is_window, part.walk())) for part in root.group):
        return None
    if any(has_query(part) for part in (*select.expressions, *root.group, *root.where)):
        return None
    reader = _Reader(root)
    having = select.args.get("having")
    try:
        outputs = tuple(
            exp.alias_(reader.over_sums(part.unalias()), part.alias_or_name, quoted=True) for part in select.expressions
        )
        condition = reader.over_sums(having.this) if having is not None else None
    except _Recomputed:
        return None
    return Sums(root, tuple(reader.arguments.values()), frozenset(reader.summed), outputs, condition)


class _Reader:
    """Rewrites what a block computes for its groups as expressions over their sums."""

    def __init__(self, block: Block) -> None:
        self._units = {key_of(part): f"u{number}" for number, part in enumerate(block.group)}
        self.arguments: dict[str, exp.Expr] = {}
        """By their text, in order."""
        self.summed: set[int] = set()

    def over_sums(self, part: exp.Expr) -> exp.Expr:
        """Return an expression over the columns of sums. `_Recomputed` if that is impossible."""

        def rewritten(node: exp.Expr) -> exp.Expr:
            if (unit := self._units.get(key_of(node))) is not None:
                return _column(unit)
            if isinstance(node, exp.Filter):
                return self._aggregate(node.this, node.expression.this)
            if is_aggregate(node):
                return self._aggregate(node, None)
            if isinstance(node, exp.Column | exp.Query):
                raise _Recomputed
            return node

        found: exp.Expr = part.copy().transform(rewritten)
        return found

    def _aggregate(self, node: exp.Expr, condition: exp.Expr | None) -> exp.Expr:
        argument = node.this
        if isinstance(node, exp.CountIf):
            condition = argument if condition is None else exp.and_(condition.copy(), argument.copy())
            argument = exp.Star()
        elif not isinstance(node, exp.Count | exp.Sum) or node.args.get("expressions"):
            raise _Recomputed
        if isinstance(argument, exp.Distinct) or argument is None:
            raise _Recomputed
        if isinstance(argument, exp.Star):
            if condition is None:
                return _column(ROWS)
            argument = exp.Literal.number(1)
        if condition is not None:
            argument = exp.Case().when(condition.copy(), argument.copy())
        text = key_of(argument)
        self.arguments.setdefault(text, argument.copy())
        number = list(self.arguments).index(text)
        if isinstance(node, exp.Sum):
            self.summed.add(number)
            return _column(f"s{number}")
        return _column(f"c{number}")


def _column(name: str) -> exp.Column:
    return exp.column(name, quoted=True)
