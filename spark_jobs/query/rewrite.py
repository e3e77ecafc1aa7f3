"""Rewrite a query, for the tables that have changed, into SQL that finds its changed rows.

Each table has four states: ``old`` and ``new`` are the whole table at the two cuts; ``before`` and ``after`` are the
rows of the changed keys in each. A nested query has ``before`` and ``after``, too: its rows in its affected units.

A unit is affected if one of its combinations appears or disappears. Then a changed row is in that combination:

* If its source is inner-joined: evaluate the block over the source's ``before`` and ``after``, the ``new`` state of the
  sources before it, and the ``old`` state of those after it. The number of times that a combination occurs is a product
  with one factor for each source, and the difference of two such products is the sum of exactly these terms.
* If other sources are only matched with its source (LEFT, SEMI and ANTI JOIN, a subquery): evaluate the other sources
  that its condition and the unit need, in both states, where they match any row of its ``before`` and ``after``. There,
  a match can appear or disappear.

The parts that these queries omit (grouping, HAVING, subqueries, sources and conditions that the unit does not need)
can only add affected units, never remove one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from sqlglot import exp

from tailrace.spark_jobs.query.blocks import Block, Branches, Node, Source, aliases, is_aggregate
from tailrace.spark_jobs.query.catalog import name_of, slug
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.joins import Joined, joined
from tailrace.spark_jobs.query.keys import Keys
from tailrace.spark_jobs.query.units import unit

State = Literal["old", "new"]
_IMAGE: Final[dict[State, str]] = {"old": "before", "new": "after"}
E = TypeVar("E", bound=exp.Expr)
_UNITS: Final = "tailrace_units"
_OF_UNITS: Final = "__units"


@dataclass(frozen=True, slots=True)
class Step:
    """A query whose result later steps read as `name`; `why` describes the result."""

    name: str
    query: exp.Query
    why: str
    sums: tuple[str, ...] = ()
    """Instead, later steps read the sums of the result's groups, without and with what it adds, by these names."""

    @property
    def is_units(self) -> bool:
        """Whether the result is units, not rows."""
        return self.name.endswith(_OF_UNITS)

    def sql(self, dialect: str = DIALECT, *, pretty: bool = False) -> str:
        return self.query.sql(dialect, identify=True, pretty=pretty)


def state(table: str, which: str) -> str:
    """Return the name of a table's state in the rewritten SQL."""
    return f"{slug(table)}__{which}"


def rewrite(root: Node, keys: Keys, changed: Collection[str]) -> list[Step]:
    """Return the steps for changes in at least one table of the query.

    The last two are ``rows__before`` and ``rows__after``: all affected rows of the view.
    """
    return list(Rewriter(keys, frozenset(changed)).images(root))


class Rewriter:
    """Builds the queries that find the affected units of a query's blocks, and their rows."""

    def __init__(self, keys: Keys, changed: frozenset[str]) -> None:
        self._keys = keys
        self._changed = changed

    def images(self, node: Node) -> Iterator[Step]:
        """Yield the steps up to a node's ``before`` and ``after``."""
        blocks = [block for block in _blocks(node) if block.tables & self._changed]
        for block in blocks:
            for source in block.sources:
                if not isinstance(source.read, str) and source.tables & self._changed:
                    yield from self.images(source.read)
            yield Step(f"{block.name}{_OF_UNITS}", self._units(block), f"units of {block.name} that may have changed")
        for which in _IMAGE:
            parts = [self.restricted(block, which) for block in blocks]
            rows: exp.Query = parts[0]
            for part in parts[1:]:
                rows = exp.union(rows, part, distinct=False)
            yield Step(f"{node.name}__{_IMAGE[which]}", rows, f"their rows at the {which} cut")

    def _units(self, block: Block) -> exp.Query:
        parts = [
            query
            for source in block.sources
            if source.tables & self._changed
            for query in self._affected(block, source)
        ]
        found: exp.Query = parts[0]
        for part in parts[1:]:
            found = exp.union(found, part, distinct=True)
        return found

    def _affected(self, block: Block, source: Source) -> Iterator[exp.Select]:
        """Yield queries for the units whose combinations contain, or match, a changed row of one source."""
        needed = set().union(*(aliases(part) for part in unit(block, self._keys)))
        if source.how != "inner":
            yield from (self._beside(block, source, needed, which) for which in _IMAGE)
            return
        plan = joined(block, needed | {source.alias})
        if all(each.how == "inner" for _, each, _ in plan):
            number = block.sources.index(source)
            states = states_of(block.sources[:number], "new") | states_of(block.sources[number:], "old")
            yield from_clause(self._projected(block), plan, states, {source.alias: _either(source)})
            return
        # The rows that a LEFT JOIN adds to a combination must be of the same state.
        for which in _IMAGE:
            images = {source.alias: image_of(source, _IMAGE[which])}
            yield from_clause(self._projected(block), plan, states_of(block.sources, which), images)

    def _beside(self, block: Block, source: Source, needed: Collection[str], which: State) -> exp.Select:
        """Return a query for the units, in one state, that match a changed row of a source."""
        beside = set().union(*(aliases(part) for part in source.on)) - {source.alias}
        states = states_of(block.sources, which)
        query = from_clause(self._projected(block), joined(block, {*needed, *beside}), states, {})
        met = exp.select("1").from_(_either(source))
        # Conditions on aggregates or windows cannot be evaluated for combinations.
        on = [part.copy() for part in source.on if not any(map(_over_rows, part.walk()))]
        return query.where(exp.Exists(this=met.where(*on)), copy=False)

    def _unit(self, block: Block) -> tuple[exp.Expr, ...]:
        """Return the unit's expressions; if the unit is the whole block, a constant."""
        return unit(block, self._keys) or (exp.Literal.number(1),)

    def _projected(self, block: Block) -> exp.Select:
        named = [exp.alias_(part.copy(), f"u{number}", quoted=True) for number, part in enumerate(self._unit(block))]
        return exp.Select(expressions=named, distinct=exp.Distinct())

    def restricted(self, block: Block, which: State) -> exp.Select:
        """Return the block, in one state, over the combinations of its affected units."""
        same = [
            # NULL is a unit like any other.
            exp.NullSafeEQ(this=exp.column(f"u{number}", _UNITS, quoted=True), expression=part.copy())
            for number, part in enumerate(self._unit(block))
        ]
        units = exp.to_table(f"{block.name}{_OF_UNITS}").as_(_UNITS)
        chosen = exp.Exists(this=exp.select("1").from_(units).where(*same))
        found = at(block.select, which)
        return found.where(chosen, copy=False)


def _over_rows(node: exp.Expr) -> bool:
    return is_aggregate(node) or isinstance(node, exp.Window)


def _blocks(node: Node) -> tuple[Block, ...]:
    return node.blocks if isinstance(node, Branches) else (node,)


def at(query: E, which: State) -> E:
    """Return a query over the tables in one state."""

    def stated(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Table):
            return node
        return _table(name_of(node), which, node.alias)

    found: E = query.copy().transform(stated)  # type: ignore[assignment]
    return found


def _table(table: str, which: str, alias: str) -> exp.Expr:
    name = exp.to_identifier(state(table, which), quoted=True)
    return exp.Table(this=name, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def image_of(source: Source, image: str) -> exp.Expr:
    """Return the table of a source's changed rows, as they were `before` or `after` the batch."""
    if isinstance(source.read, str):
        return _table(source.read, image, source.alias)
    name = exp.to_identifier(f"{source.read.name}__{image}", quoted=True)
    return exp.Table(this=name, alias=exp.TableAlias(this=exp.to_identifier(source.alias, quoted=True)))


def _all(table: exp.Expr) -> exp.Select:
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=table))


def _either(source: Source) -> exp.Expr:
    both = exp.union(_all(image_of(source, "before")), _all(image_of(source, "after")), distinct=False)
    return both.subquery(exp.to_identifier(source.alias, quoted=True))


def states_of(sources: Sequence[Source], which: State) -> dict[str, State]:
    """Map the aliases of all sources to one state."""
    return dict.fromkeys((source.alias for source in sources), which)


def from_clause(
    query: exp.Select, plan: Joined, states: Mapping[str, State], images: Mapping[str, exp.Expr]
) -> exp.Select:
    """Add a plan to `query`: a FROM with its sources as states or images, and its conditions."""
    for number, (read, source, on) in enumerate(plan):
        this = images.get(source.alias) or at(read, states[source.alias])
        conditions = [part.copy() for part in on]
        if number == 0:
            query.set("from_", exp.From(this=this))
        elif source.how == "left":
            query.append("joins", exp.Join(this=this, side="LEFT", on=exp.and_(*conditions)))
            continue
        else:
            query.append("joins", exp.Join(this=this, kind="CROSS"))
        if conditions:
            query = query.where(*conditions, copy=False)
    return query
