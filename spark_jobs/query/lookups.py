"""Find out how a step reaches the rows that it needs, so that they can be looked up instead of read with the table.

A step has small relations: the changed rows of tables (``before`` and ``after``) and results of earlier steps. From
these, equalities in WHERE and ON lead to the other sources: of a source that such a condition joins, only the rows with
one of the known values can be part of a row of the result. The same SQL over these rows, or over any more of the table,
has the same result:

* A condition in WHERE, or in ON of an inner or semi join, removes all other rows of any inner-joined source.
* A condition in ON of a LEFT, SEMI or ANTI JOIN removes matches with other rows of its right side, and of no other.
  A LEFT JOIN whose rows without a match are removed by an equality in WHERE is an inner join.
* A condition in WHERE of a nested query removes its other rows, also if it compares them with the outer query's.
* An output of a nested query can be restricted if it is a plain column; with GROUP BY, one of its expressions; with
  window functions, one that all of them partition by.

A query without such a path to each of its tables is `Unreachable`: then the tables are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from tailrace.spark_jobs.query.blocks import conjuncts, has_query, is_aggregate, key_of
from tailrace.spark_jobs.query.rewrite import State, state


class Unreachable(Exception):
    """A source cannot be reached by equality; the text names it."""


@dataclass(frozen=True, slots=True)
class Values:
    """Where the values of a lookup come from: columns of a relation, or of an earlier lookup's rows (its `name`)."""

    relation: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lookup:
    """The rows of a table in one state whose columns `by` equal one of the tuples of values.

    `nulls` says for each column whether NULL equals NULL. Later lookups refer to its rows by `name`.
    """

    name: str
    table: str
    which: State
    by: tuple[str, ...]
    nulls: tuple[bool, ...]
    values: tuple[Values, ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column whose values are known: a column in each of some relations."""

    places: tuple[tuple[str, str], ...]
    """Relation and column."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A source whose rows are known: those of `relations`, or a nested query's with the `columns` that can be known."""

    relations: tuple[str, ...] = ()
    columns: Mapping[str, _Column] = field(default_factory=dict)
    outer: bool = False
    """The right side of a LEFT JOIN: its columns may also be NULL."""

    def column(self, name: str) -> _Column | None:
        if self.relations:
            return _Column(tuple((relation, name) for relation in self.relations))
        return self.columns.get(name)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A column of a source, or an output of a query, that equals a known column of the source `of`."""

    name: str
    of: str
    column: _Column
    nulls: bool


def lookups(query: exp.Query, tables: Sequence[str]) -> tuple[Lookup, ...]:
    """Return the lookups, in order, for all states of `tables` that a step reads as a whole.

    All other tables in the query are small relations. `Unreachable` if there is no way to one of the states.
    """
    wholes: dict[str, tuple[str, State]] = {}
    for table in tables:
        wholes[state(table, "old")] = (table, "old")
        wholes[state(table, "new")] = (table, "new")
    plan = _Plan(wholes)
    plan.query(query, {}, ())
    if len(plan.lookups) != sum(table.name in wholes for table in query.find_all(exp.Table)):
        raise Unreachable("a source in a place that is not known")
    return tuple(plan.lookups)


class _Plan:
    def __init__(self, wholes: Mapping[str, tuple[str, State]]) -> None:
        self._wholes = wholes
        self.lookups: list[Lookup] = []

    def query(self, query: exp.Expr, outer: Mapping[str, _Known], given: Sequence[_Bound]) -> _Known:
        """Reach all tables of a query; `outer` are the sources around it, `given` restricts its outputs."""
        query = query.unnest()
        if isinstance(query, exp.SetOperation):
            return self._branches(query, outer, given)
        if not isinstance(query, exp.Select) or query.args.get("limit"):
            raise Unreachable(f"a nested {query.key.upper()}")
        return _Select(self, query, outer).reach(given)

    def _branches(self, query: exp.SetOperation, outer: Mapping[str, _Known], given: Sequence[_Bound]) -> _Known:
        if not isinstance(query, exp.Union):
            raise Unreachable(f"a nested {query.key.upper()}")
        branches = [query.this.unnest(), query.expression.unnest()]
        names = [each.named_selects for each in branches]
        found: list[_Known] = []
        for branch, own in zip(branches, names, strict=True):
            bound = [_Bound(own[names[0].index(b.name)], b.of, b.column, b.nulls) for b in given if b.name in names[0]]
            found.append(self.query(branch, outer, bound))
        if all(each.relations for each in found):
            return _Known(tuple(relation for each in found for relation in each.relations))
        columns: dict[str, _Column] = {}
        for place, name in enumerate(names[0]):
            parts = [each.column(own[place]) for each, own in zip(found, names, strict=True)]
            if all(part is not None for part in parts):
                columns[name] = _Column(tuple(place for part in parts if part is not None for place in part.places))
        return _Known(columns=columns)

    def whole(self, name: str) -> tuple[str, State] | None:
        """Return table and state of a name that stands for a whole table."""
        return self._wholes.get(name)

    def look_up(self, table: str, which: State, bounds: Sequence[_Bound]) -> _Known | None:
        """Add the lookup for a table by as many as possible of the bounds; None if they are none."""
        best: tuple[list[_Bound], list[Values]] = ([], [])
        for source in dict.fromkeys(bound.of for bound in bounds):
            own = {bound.name: bound for bound in bounds if bound.of == source}
            kept, values = _together(list(own.values()))
            if len(kept) > len(best[0]):
                best = kept, values
        kept, values = best
        if not kept:
            return None
        name = f"#{len(self.lookups)}"
        by, nulls = tuple(bound.name for bound in kept), tuple(bound.nulls for bound in kept)
        self.lookups.append(Lookup(name, table, which, by, nulls, tuple(values)))
        return _Known((name,))


def _together(bounds: list[_Bound]) -> tuple[list[_Bound], list[Values]]:
    """Return the largest group of columns with values in the same rows of the same relations, and these."""
    groups: dict[tuple[str, ...], list[_Bound]] = {}
    for bound in bounds:
        groups.setdefault(tuple(relation for relation, _ in bound.column.places), []).append(bound)
    relations, kept = max(groups.items(), key=lambda group: len(group[1]))
    kept = sorted(kept, key=lambda bound: bound.name)
    values = [
        Values(relation, tuple(bound.column.places[number][1] for bound in kept))
        for number, relation in enumerate(relations)
    ]
    return kept, values


class _Select:
    """Reaches the sources of one SELECT."""

    def __init__(self, plan: _Plan, select: exp.Select, outer: Mapping[str, _Known]) -> None:
        self._plan = plan
        self._select = select
        self._known = dict(outer)
        self._sources: dict[str, exp.Expr] = {}
        self._inner: set[str] = set()
        self._left: set[str] = set()
        self._filters: list[exp.Expr] = []
        """Conditions that each row of the result fulfils."""
        self._on: dict[str, list[exp.Expr]] = {}
        """Further conditions for the right side of a join."""
        self._nested: list[exp.Expr] = []
        self._read()

    def _read(self) -> None:
        found = self._select.args.get("from_")
        if found is not None:
            self._add(found.this, "inner", [])
        for join in self._select.args.get("joins") or []:
            if join.side in ("RIGHT", "FULL") or join.args.get("using"):
                raise Unreachable(f"a {join.side} JOIN")
            on = list(conjuncts(join.args["on"])) if join.args.get("on") else []
            how = join.kind.lower() if join.kind in ("SEMI", "ANTI") else "left" if join.side == "LEFT" else "inner"
            self._add(join.this, how, on)
        where = self._select.args.get("where")
        for part in conjuncts(where.this) if where else ():
            if not self._is_small_exists(part):
                self._filters.append(part)
        self._tighten()

    def _tighten(self) -> None:
        """Treat LEFT JOINs as inner ones if a condition removes the rows without a match, as an equality does."""
        left = {alias for alias in self._left if self._removes_null(alias)}
        while left:
            self._left -= left
            self._inner |= left
            self._filters += [part for alias in left for part in self._on[alias]]
            left = {alias for alias in self._left if self._removes_null(alias)}

    def _removes_null(self, alias: str) -> bool:
        return any(
            isinstance(part.unnest(), exp.EQ) and mine.table == alias
            for part in self._filters
            for mine, _ in _equal_columns(part)
        )

    def _add(self, source: exp.Expr, how: str, on: list[exp.Expr]) -> None:
        alias = source.alias_or_name
        if not isinstance(source, exp.Table | exp.Subquery):
            if any(True for _ in source.find_all(exp.Table)):
                raise Unreachable(f'"{alias}"')
            return
        self._sources[alias] = source
        # an alias of its own hides that of a query around it
        self._known.pop(alias, None)
        if how == "inner":
            self._inner.add(alias)
        if how == "left":
            self._left.add(alias)
        if how in ("inner", "semi"):
            self._filters += on
        self._on[alias] = on

    def _is_small_exists(self, part: exp.Expr) -> bool:
        """Take EXISTS over small relations as one more source, whose conditions restrict the others."""
        if not isinstance(part, exp.Exists) or not isinstance(part.this, exp.Select):
            return False
        inner = part.this
        where, source = inner.args.get("where"), inner.args["from_"].this if inner.args.get("from_") else None
        if source is None or inner.args.get("joins") or inner.args.get("group") or source.alias_or_name in self._known:
            return False
        if any(self._plan.whole(table.name) for table in inner.find_all(exp.Table)):
            return False
        if source.alias_or_name in self._sources:
            return False
        self._known[source.alias_or_name] = (
            self._plan.query(source, {}, ()) if isinstance(source, exp.Subquery) else _Known((source.name,))
        )
        self._filters += list(conjuncts(where.this)) if where else []
        return True

    def reach(self, given: Sequence[_Bound]) -> _Known:
        """Reach all sources and nested queries; return what is known of the outputs."""
        bounds = self._pushed(given)
        waiting = dict(self._sources)
        while waiting:
            alias = next((each for each, source in waiting.items() if self._reach(each, source, bounds)), None)
            if alias is None:
                raise Unreachable(", ".join(f'"{each}"' for each in waiting))
            del waiting[alias]
        self._reach_nested()
        return self._outputs()

    def _reach(self, alias: str, source: exp.Expr, bounds: Mapping[str, list[_Bound]]) -> bool:
        found: _Known | None
        if isinstance(source, exp.Table):
            whole = self._plan.whole(source.name)
            if whole is None:
                found = _Known((source.name,))
            else:
                found = self._plan.look_up(*whole, [*self._bounds(alias), *bounds.get(alias, ())])
        else:
            # first without a restriction: it may be small
            mine = [*self._bounds(alias), *bounds.get(alias, ())]
            made = len(self._plan.lookups)
            try:
                found = self._plan.query(source.this, self._visible(), mine)
            except Unreachable:
                del self._plan.lookups[made:]
                return False
        if found is None:
            return False
        if alias not in self._inner:
            found = _Known(found.relations, found.columns, outer=True)
        self._known[alias] = found
        return True

    def _visible(self) -> dict[str, _Known]:
        """Return the sources around this query: those of its own FROM are not visible to a subquery in it."""
        return {alias: known for alias, known in self._known.items() if alias not in self._sources}

    def _bounds(self, alias: str) -> Iterator[_Bound]:
        """Yield the columns of a source that equal a known one in each row that counts."""
        conditions = self._filters if alias in self._inner else self._on[alias]
        for part in conditions:
            for mine, other in _equal_columns(part):
                if mine.table != alias or other.table == alias:
                    continue
                known = self._known.get(other.table)
                column = known.column(other.name) if known is not None else None
                nulls = isinstance(part.unnest(), exp.NullSafeEQ)
                if column is not None and known is not None and not (nulls and known.outer):
                    yield _Bound(mine.name, other.table, column, nulls)

    def _pushed(self, given: Sequence[_Bound]) -> dict[str, list[_Bound]]:
        """Turn restrictions of outputs into restrictions of sources, as far as that changes no other output."""
        outputs = {part.alias_or_name: part.unalias() for part in self._select.expressions}
        group = self._select.args.get("group")
        grouped = set(map(key_of, group.expressions)) if group else set()
        after = [*self._select.expressions]
        after += [part for clause in ("having", "qualify") if (part := self._select.args.get(clause))]
        nodes = [node for part in after for node in part.walk(prune=lambda n: isinstance(n, exp.Query))]
        windows = [node for node in nodes if isinstance(node, exp.Window)]
        aggregates = bool(group) or any(map(is_aggregate, nodes))
        found: dict[str, list[_Bound]] = {}
        for bound in given:
            output = outputs.get(bound.name)
            if not isinstance(output, exp.Column) or output.table not in self._inner:
                continue
            same = key_of(output)
            if aggregates and same not in grouped:
                continue
            if any(same not in map(key_of, each.args.get("partition_by") or []) for each in windows):
                continue
            # a name of its own for the other side: here, its alias may be that of another source
            found.setdefault(output.table, []).append(_Bound(output.name, f" {bound.of}", bound.column, bound.nulls))
        return found

    def _reach_nested(self) -> None:
        """Reach the queries in expressions: what they compare with this query's sources restricts them."""
        parts = [*self._select.expressions, *self._filters, *(part for on in self._on.values() for part in on)]
        parts += [found for clause in ("group", "having", "qualify") if (found := self._select.args.get(clause))]
        seen: set[int] = set()
        for part in parts:
            positive = part.unnest() if any(part is each for each in self._filters) else None
            for node in part.walk(prune=lambda n: isinstance(n, exp.Query)):
                if not isinstance(node, exp.Query) or id(node) in seen:
                    continue
                seen.add(id(node))
                self._plan.query(node, self._known, list(self._in(positive, node)))

    def _in(self, positive: exp.Expr | None, query: exp.Query) -> Iterator[_Bound]:
        """Yield the restriction of the query in ``column IN (query)``, if rows without a match are left out."""
        if isinstance(positive, exp.In) and isinstance(positive.this, exp.Column):
            inside = positive.args.get("query")
            known = self._known.get(positive.this.table)
            column = known.column(positive.this.name) if known is not None else None
            if inside is not None and inside.unnest() is query.unnest() and column is not None:
                yield _Bound(query.named_selects[0], positive.this.table, column, nulls=False)

    def _outputs(self) -> _Known:
        names = self._select.expressions
        if len(names) == 1 and isinstance(names[0], exp.Star) and len(self._sources) == 1:
            return self._known[next(iter(self._sources))]
        columns: dict[str, _Column] = {}
        for part in names:
            inner = part.unalias()
            known = self._known.get(inner.table) if isinstance(inner, exp.Column) else None
            column = known.column(inner.name) if known is not None and not known.outer else None
            if column is not None:
                columns[part.alias_or_name] = column
        return _Known(columns=columns)


def _equal_columns(part: exp.Expr) -> Iterator[tuple[exp.Column, exp.Column]]:
    """Yield both orders of the two columns of an equality."""
    part = part.unnest()
    if not isinstance(part, exp.EQ | exp.NullSafeEQ) or has_query(part):
        return
    left, right = part.this.unnest(), part.expression.unnest()
    if isinstance(left, exp.Column) and isinstance(right, exp.Column):
        yield left, right
        yield right, left
