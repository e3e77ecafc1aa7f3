"""DuckDB over the tables of `tests.support.shop_model`: an engine independent of our code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import duckdb
import sqlglot
from sqlglot import exp

from tailrace.spark_jobs.query.declared import DeclaredQuery, declare
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.lookups import Lookup, Unreachable, lookups
from tailrace.spark_jobs.query.rewrite import Step, state
from tailrace.spark_jobs.query.sums import Sums
from tailrace.spark_jobs.query.text import QueryText
from tests.support.shop_model import CATALOG, COLUMNS, EXAMPLES, Key, Row

Rows = dict[tuple[Any, ...], tuple[Any, ...]]
REACHED = "__reached"

_TYPES = {"int4": "INTEGER", "text": "VARCHAR", "timestamp": "TIMESTAMP"}


class Engine:
    """DuckDB with the states of the tables around one batch."""

    def __init__(self) -> None:
        self._duckdb = duckdb.connect(config={"threads": 1})
        for table, columns in COLUMNS.items():
            typed = ", ".join(f'"{name}" {_TYPES[kind]}' for name, kind in columns.items())
            for which in ("old", "new", "before", "after"):
                self._duckdb.execute(f'CREATE TABLE "{state(f"public.{table}", which)}" ({typed})')

    def load(self, old: Mapping[str, dict[Key, Row]], new: Mapping[str, dict[Key, Row]]) -> set[str]:
        """Fill the states; return the tables that have changed."""
        changed = set()
        for table in COLUMNS:
            keys = {k for k in old[table].keys() | new[table].keys() if old[table].get(k) != new[table].get(k)}
            images = [{k: rows[table][k] for k in keys if k in rows[table]} for rows in (old, new)]
            for which, rows in zip(("old", "new", "before", "after"), (old[table], new[table], *images), strict=True):
                self._fill(table, which, rows)
            if keys:
                changed.add(f"public.{table}")
        return changed

    def _fill(self, table: str, which: str, rows: Mapping[Key, Row]) -> None:
        name = state(f"public.{table}", which)
        self._duckdb.execute(f'DELETE FROM "{name}"')
        if rows:
            listed = (", ".join(_literal(column, row[column]) for column in COLUMNS[table]) for row in rows.values())
            self._duckdb.execute(f'INSERT INTO "{name}" VALUES {", ".join(f"({row})" for row in listed)}')

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return self._duckdb.execute(sql).fetchall()

    def step(self, name: str, sql: str) -> None:
        self._duckdb.execute(f'CREATE OR REPLACE TEMP TABLE "{name}" AS {sql}')

    def look_up(self, found: Sequence[Lookup]) -> None:
        """Put the rows of the lookups of a step in tables that are named as their states, with `REACHED` behind it."""
        states: dict[str, list[str]] = {}
        for lookup in found:
            whole = state(lookup.table, lookup.which)
            named = ", ".join(f"v{number}" for number in range(len(lookup.by)))
            values = " UNION ALL ".join(
                'SELECT "{}" FROM "{}"'.format('", "'.join(each.columns), each.relation) for each in lookup.values
            )
            equal = {True: "IS NOT DISTINCT FROM", False: "="}
            pairs = zip(lookup.by, lookup.nulls, strict=True)
            same = " AND ".join(f't."{name}" {equal[null]} v{number}' for number, (name, null) in enumerate(pairs))
            self.step(
                lookup.name,
                f'SELECT * FROM "{whole}" t WHERE EXISTS (SELECT 1 FROM ({values}) v({named}) WHERE {same})',
            )
            states.setdefault(whole, []).append(lookup.name)
        for whole, names in states.items():
            self.step(f"{whole}{REACHED}", " UNION ".join(f'SELECT * FROM "{name}"' for name in names))

    def add(self, sums: Sums, stored: str, step: Step) -> None:
        """Add the result of the first step to `stored` sums; name those of its groups as later steps do."""
        units = ", ".join(sums.units)
        summed = [f"s{number}" for number in sorted(sums.summed)]
        counts = ["n", *(f"c{number}" for number in range(len(sums.arguments)))]
        both = ", ".join((*counts, *summed))
        signed = ", ".join(f"sign * {name} AS {name}" for name in (*counts, *summed))
        added = ", ".join(f"sum({name}) AS {name}" for name in counts)
        added += "".join(f", CASE WHEN sum(c{name[1:]}) > 0 THEN sum({name}) END AS {name}" for name in summed)
        self.step(
            f"{stored}__next",
            f'SELECT {units}, {added} FROM (SELECT {units}, {both} FROM "{stored}" UNION ALL'
            f' SELECT {units}, {signed} FROM "{step.name}") GROUP BY {units} HAVING sum(n) <> 0',
        )
        same = " AND ".join(f"s.{unit} IS NOT DISTINCT FROM a.{unit}" for unit in sums.units)
        for name, table in zip(step.sums, (stored, f"{stored}__next"), strict=True):
            self.step(name, f'SELECT * FROM "{table}" s WHERE EXISTS (SELECT 1 FROM "{step.name}" a WHERE {same})')
        self.step(stored, f'SELECT * FROM "{stored}__next"')


def _literal(column: str, value: Any) -> str:
    if value is None or (isinstance(value, int) and column != "at"):
        return "NULL" if value is None else str(value)
    return f"make_timestamp({value})" if column == "at" else f"'{value}'"


def over_new(sql: str) -> str:
    """Return a query, as it was written, over the new states of its tables."""
    tree = sqlglot.parse_one(sql, dialect=DIALECT)
    for table in list(tree.find_all(exp.Table)):
        if table.db:
            name = exp.to_table(state(f"public.{table.name}", "new"))
            table.replace(name.as_(table.alias or table.name, copy=False))
    return tree.sql("duckdb")


def declared(name: str) -> DeclaredQuery:
    example = EXAMPLES[name]
    return declare(QueryText(name, example.sql), example.key, CATALOG)


def by_key(view: DeclaredQuery, rows: list[tuple[Any, ...]]) -> Rows:
    places = [view.whole.named_selects.index(name) for name in view.key]
    found = {tuple(row[place] for place in places): row for row in rows}
    assert len(found) == len(rows), "a key stands twice"
    return found


class Kept:
    """A view of one example, maintained from batch to batch.

    If `by_lookup`, from looked up rows where possible; if `by_sums`, by the sums of its groups.
    """

    def __init__(self, name: str, *, by_lookup: bool = False, by_sums: bool = False) -> None:
        self._name = name
        self._by_lookup = by_lookup
        self._by_sums = by_sums
        self._stored: str | None = None
        self.looked_up = 0
        self.view = declared(name)
        self.shown: Rows = {}
        self.batches = 0
        self._steps: dict[frozenset[str], list[tuple[Step, str, Sequence[Lookup]]]] = {}
        self._whole = over_new(EXAMPLES[name].sql)

    def apply(self, engine: Engine, changed: set[str]) -> None:
        """Update the view to the new state, as a batch does."""
        mine = frozenset(changed & set(self.view.tables))
        if not mine:
            return
        if mine not in self._steps:
            self._steps[mine] = self._planned(mine)
        if self._by_sums and self._stored is None:
            self._stored = f"{self._name}__stored"
            engine.step(self._stored, self._sums.over("old").replace("`", '"'))
        for step, sql, found in self._steps[mine]:
            engine.look_up(found)
            self.looked_up += len(found)
            engine.step(step.name, sql)
            if step.sums:
                assert self._stored is not None
                engine.add(self._sums, self._stored, step)
        before, after = (
            by_key(self.view, engine.query(f'SELECT * FROM "{step.name}"')) for step, _, _ in self._steps[mine][-2:]
        )
        self.batches += before != after
        for key, row in before.items():
            assert self.shown[key] == row, "what is said to have been there was not"
            if key not in after:
                del self.shown[key]
        self.shown.update(after)

    @property
    def _sums(self) -> Sums:
        assert self.view.sums is not None
        return self.view.sums

    def _planned(self, changed: frozenset[str]) -> list[tuple[Step, str, Sequence[Lookup]]]:
        steps = self.view.steps(changed, by_sums=self._by_sums)
        if self._by_lookup:
            with suppress(Unreachable):
                return [self._restricted(step) for step in steps]
        return [(step, step.sql("duckdb"), ()) for step in steps]

    def _restricted(self, step: Step) -> tuple[Step, str, Sequence[Lookup]]:
        found = lookups(step.query, self.view.tables)
        names = {state(each.table, each.which) for each in found}
        query = step.query.copy()
        for table in query.find_all(exp.Table):
            if table.name in names:
                table.set("this", exp.to_identifier(f"{table.name}{REACHED}", quoted=True))
        return step, query.sql("duckdb", identify=True), found

    def check(self, engine: Engine) -> None:
        assert self.shown == by_key(self.view, engine.query(self._whole))
