"""Derive unique keys of a query's rows from the keys of its tables and the equalities of its joins.

All keys are expressions over a block's combinations, compared by their text (`key_of`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

from sqlglot import exp

from tailrace.spark_jobs.query.asof import key_at, moment_of
from tailrace.spark_jobs.query.blocks import FILTERING, Block, Branches, Node, Source, has_query, key_of
from tailrace.spark_jobs.query.catalog import Catalog

_EQUAL: Final = (exp.EQ, exp.NullSafeEQ)


class Keys:
    """Finds unique keys in the blocks of one query."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog: Final = catalog
        self._facts: dict[int, Facts] = {}

    def facts(self, block: Block) -> Facts:
        """Return the functional dependencies of a block."""
        if id(block) not in self._facts:
            seen = [source for source in block.sources if source.how not in FILTERING]
            self._facts[id(block)] = Facts(block, {source.alias: self._source(source) for source in seen})
        return self._facts[id(block)]

    def is_unique(self, node: Node, outputs: Iterable[str]) -> bool:
        """Whether no two rows of a query can have equal values (NULL counts as a value) in these outputs."""
        names = set(outputs)
        if isinstance(node, Branches):
            return all(self.is_unique(block, names) for block in node.blocks) and bool(names & _told_apart(node))
        facts = self.facts(node)
        known = facts.closure(key_of(node.outputs[name]) for name in names)
        return any(unique <= known for unique in facts.row_keys)

    def outputs(self, node: Node) -> list[frozenset[str]]:
        """Return sets of output names that are unique in a query."""
        if isinstance(node, Branches):
            apart = _told_apart(node)
            found = [names | {min(apart)} for names in self.outputs(node.blocks[0]) if apart]
            return [frozenset(names) for names in found if self.is_unique(node, names)]
        facts = self.facts(node)
        shown: dict[str, str] = {}
        for name, expression in node.outputs.items():
            for same in facts.equals(key_of(expression)):
                shown.setdefault(same, name)
        needed = [facts.reduced(unique) for unique in facts.row_keys]
        return [frozenset(shown[part] for part in parts) for parts in needed if parts <= shown.keys()]

    def _source(self, source: Source) -> tuple[list[frozenset[str]], list[str]]:
        """Return a source's unique keys and its columns, as named in the block around it."""
        at: exp.Expr | None = None
        if isinstance(source.read, str):
            info = self._catalog[source.read]
            names, unique = list(info.columns), [frozenset(info.key)]
            at = moment_of(source.alias, source.on, info)
        else:
            first = source.read.blocks[0] if isinstance(source.read, Branches) else source.read
            names, unique = list(first.outputs), self.outputs(source.read)

        def named(name: str) -> str:
            return key_of(exp.column(name, source.alias, quoted=True))

        found = [frozenset(map(named, key)) for key in unique]
        if at is not None:
            # At one moment, a key has at most one version.
            found.insert(0, frozenset((*map(named, key_at(info)), *map(key_of, at.find_all(exp.Column)))))
        return found, [named(name) for name in names]


class Facts:
    """Equalities and keys in one block; `sources` maps an alias to (unique keys, columns)."""

    def __init__(self, block: Block, sources: dict[str, tuple[list[frozenset[str]], list[str]]]) -> None:
        self._block = block
        self._sources = sources

    @cached_property
    def row_keys(self) -> list[frozenset[str]]:
        """Sets of expressions that are unique in the block's rows."""
        block = self._block
        if block.group:
            found = [frozenset(map(key_of, block.group))]
        elif block.aggregates:
            found = [frozenset()]
        else:
            found = [frozenset(parts) for parts in self._combination_keys(list(self._sources))]
        # Each row number occurs once in a partition.
        found += [
            frozenset({key_of(window), *map(key_of, window.args.get("partition_by") or [])})
            for window in block.windows
            if isinstance(window.this, exp.RowNumber)
        ]
        if block.distinct:
            found.append(frozenset(key_of(part) for part in block.outputs.values()))
        return found

    @cached_property
    def combination_keys(self) -> list[frozenset[str]]:
        """Sets of expressions that are unique in the block's combinations, before grouping."""
        return [frozenset(parts) for parts in self._combination_keys(list(self._sources))]

    def _combination_keys(self, aliases_: list[str]) -> Iterator[set[str]]:
        if not aliases_:
            yield set()
            return
        for rest in self._combination_keys(aliases_[1:]):
            for unique in self._sources[aliases_[0]][0]:
                yield rest | unique

    def identity(self, alias: str) -> list[str]:
        """Return columns that identify a source's rows; all columns, if no key of it is known."""
        unique, columns = self._sources[alias]
        return [name for name in columns if not unique or name in unique[0]]

    def reduced(self, parts: Iterable[str]) -> frozenset[str]:
        """Remove the expressions that the others determine, beginning with the last."""
        kept = sorted(parts, key=self._order)
        for part in reversed(list(kept)):
            if part in self.closure(other for other in kept if other != part):
                kept.remove(part)
        return frozenset(kept)

    def closure(self, parts: Iterable[str]) -> set[str]:
        """Return all expressions whose value is the same in all rows that agree in `parts`."""
        known = {same for part in (*parts, *self._constants) for same in self.equals(part)}
        size = -1
        while size != len(known):
            size = len(known)
            for text, columns in self._computed.items():
                if columns <= known:
                    known |= self.equals(text)
            # The start of a time window identifies it among the windows that are grouped by.
            known |= {text for text in map(key_of, self._block.group) if f"{text}.`start`" in known}
            for source in self._block.sources:
                if source.alias in self._sources and self._is_known(source, known):
                    known |= {same for name in self._sources[source.alias][1] for same in self.equals(name)}
        return known

    def _is_known(self, source: Source, known: set[str]) -> bool:
        unique, _ = self._sources[source.alias]
        if any(key <= known for key in unique):
            return True
        if source.how != "left":
            return False
        # At most one row is joined, and known values alone decide whether it is.
        others = [column for part in source.on for column in part.find_all(exp.Column) if column.table != source.alias]
        if not all(key_of(column) in known for column in others):
            return False
        given = {mine for part in source.on for mine, other in _equality(part) if other is None or other in known}
        return any(key <= known | given for key in unique)

    def equals(self, part: str) -> set[str]:
        """Return the expressions that equal `part` in every combination, itself included."""
        return self._classes.get(part, {part})

    @cached_property
    def _classes(self) -> dict[str, set[str]]:
        classes: dict[str, set[str]] = {}
        for condition in self._holding:
            for left, right in _equality(condition):
                if right is not None:
                    both = classes.get(left, {left}) | classes.get(right, {right})
                    classes.update(dict.fromkeys(both, both))
        return classes

    @cached_property
    def _computed(self) -> dict[str, set[str]]:
        """Map each computed expression that is compared or grouped by, as text, to its columns."""
        sides = [side for part in self._holding if isinstance(part, _EQUAL) for side in (part.this, part.expression)]
        found = [part for part in (*sides, *self._block.group) if not isinstance(part, exp.Column)]
        return {
            key_of(part): {key_of(column) for column in part.find_all(exp.Column)}
            for part in found
            if not has_query(part) and not part.find(exp.AggFunc, exp.Window)
        }

    @cached_property
    def _constants(self) -> set[str]:
        found = {left for condition in self._holding for left, right in _equality(condition) if right is None}
        found |= {key_of(part) for part in self._block.outputs.values() if isinstance(part, exp.Literal)}
        return found

    @cached_property
    def _holding(self) -> list[exp.Expr]:
        """Conditions that are true in every combination; those of QUALIFY, in every row."""
        inner = [part for source in self._block.sources if source.how == "inner" for part in source.on]
        qualify = self._block.select.args.get("qualify")
        return [*inner, *self._block.where, *([qualify.this] if qualify else [])]

    def _order(self, part: str) -> int:
        return next((i for i, (_, names) in enumerate(self._sources.values()) if part in names), len(self._sources))


def _equality(condition: exp.Expr) -> Iterator[tuple[str, str | None]]:
    """Yield an equality in both directions; the right side is None if it is a literal or NULL."""
    if isinstance(condition, exp.Is) and isinstance(condition.expression, exp.Null):
        yield key_of(condition.this), None
        return
    if not isinstance(condition, _EQUAL) or has_query(condition):
        return
    sides = (condition.this, condition.expression)
    for left, right in (sides, sides[::-1]):
        if isinstance(right, exp.Literal):
            yield key_of(left), None
        elif not isinstance(left, exp.Literal):
            yield key_of(left), key_of(right)


def _told_apart(node: Branches) -> set[str]:
    """Return the outputs that are a different literal in each branch."""
    found = set()
    for name in node.blocks[0].outputs:
        parts = [block.outputs[name] for block in node.blocks]
        if all(isinstance(part, exp.Literal) for part in parts) and len(set(map(key_of, parts))) == len(parts):
            found.add(name)
    return found
