"""A view's query as declared: parsed, checked, and ready to be rewritten for the tables that change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlglot import exp

from tailrace.spark_jobs.query.asof import check_written, is_history
from tailrace.spark_jobs.query.blocks import Block, Branches, Node, read
from tailrace.spark_jobs.query.catalog import Catalog, name_of
from tailrace.spark_jobs.query.dialect import DIALECT, unwritable
from tailrace.spark_jobs.query.keys import Keys
from tailrace.spark_jobs.query.order import check_order
from tailrace.spark_jobs.query.parse import parse, tree
from tailrace.spark_jobs.query.refusals import refuse
from tailrace.spark_jobs.query.rewrite import State, Step, at, rewrite
from tailrace.spark_jobs.query.sums import Sums, sums_of
from tailrace.spark_jobs.query.text import QueryText
from tailrace.spark_jobs.query.times import check_windows
from tailrace.spark_jobs.query.units import unit

Refresh = Literal["incremental", "full"]


@dataclass(frozen=True, slots=True)
class DeclaredQuery:
    """A query that can be maintained; `root` is None if it is recomputed completely each time."""

    text: QueryText
    key: tuple[str, ...]
    tables: tuple[str, ...]
    whole: exp.Query
    root: Node | None
    keys: Keys
    histories: tuple[str, ...] = ()
    """Those of `tables` in which the first version of each key is marked (`sinks.target.protocol.FIRST`)."""
    sums: Sums | None = None
    """Sums by which small batches bring its groups forward; None: groups are recomputed."""

    def over(self, which: State) -> str:
        """Return the SQL of the whole query over the tables in one state."""
        return at(self.whole, which).sql(DIALECT, identify=True)

    def steps(self, changed: Collection[str], *, by_sums: bool = False) -> list[Step]:
        """Return the steps that compute the view's affected rows; the last two give them before and after.

        If `by_sums`, they bring `sums` forward instead of recomputing groups. There are no steps if the query is
        recomputed completely.
        """
        if by_sums:
            assert self.sums is not None
            return self.sums.steps(changed)
        return rewrite(self.root, self.keys, changed) if self.root is not None else []


def declare(
    text: QueryText,
    key: Sequence[str],
    catalog: Catalog,
    refresh: Refresh = "incremental",
    known: Mapping[str, bool] | None = None,
) -> DeclaredQuery:
    """Parse and check a query. ConfigError points at the part that cannot be maintained.

    `known` are all captured tables and whether they have a key, for a hint.
    """
    raw = tree(text)
    check_written(raw, text)
    if refresh == "incremental":
        refuse(raw, text)
    whole = parse(raw, text, catalog, known)
    if lost := unwritable(whole):
        raise text.error("TR-540", f"the query cannot be passed on to Spark unchanged: {lost}", 0)
    tables = tuple(dict.fromkeys(map(name_of, whole.find_all(exp.Table))))
    _check_outputs(whole, key, text)
    keys = Keys(catalog)
    histories = tuple(table for table in tables if text.asof_first and is_history(catalog[table]))
    if refresh == "full":
        return DeclaredQuery(text, tuple(key), tables, whole, None, keys, histories)
    check_windows(whole, text)
    root = read(whole, text)
    _check_read(root, tables, text)
    check_order(root, keys, text)
    _check_key(root, key, keys, text)
    _check_units(root, keys, text)
    sums = sums_of(root) if not histories else None
    return DeclaredQuery(text, tuple(key), tables, whole, root, keys, histories, sums)


def _check_outputs(query: exp.Query, key: Sequence[str], text: QueryText) -> None:
    seen: set[str] = set()
    for part in query.selects:
        name = part.alias_or_name
        if name in seen:
            raise text.error("TR-547", f'two columns have the name "{name}"', part, hint="Rename one with AS.")
        if not name or name.startswith("_col_"):
            raise text.error("TR-547", "a column has no name", part, hint="Name it with AS.")
        seen.add(name)
    if not key:
        raise text.error("TR-544", "no key is set for the query", hint=f'[views.{text.view}] key = ["{min(seen)}"]')
    for name in key:
        if name not in seen:
            raise text.error("TR-544", f'key column "{name}" is not a column of the query', 0)


def _check_read(root: Node, tables: Sequence[str], text: QueryText) -> None:
    """Raise ConfigError for a table that no block reads: its changes would silently make the view wrong."""
    if lost := sorted(set(tables) - root.tables):
        raise text.error("TR-552", f"a subquery over {', '.join(lost)} here cannot be maintained incrementally", 0)


def _check_key(root: Node, key: Sequence[str], keys: Keys, text: QueryText) -> None:
    if keys.is_unique(root, key):
        return
    known = sorted(keys.outputs(root), key=lambda names: (len(names), sorted(names)))
    listed = ", ".join(f'"{name}"' for name in sorted(known[0])) if known else ""
    missing = "Select the columns that identify a row, and name them in `key`."
    if isinstance(root, Branches):
        missing = "The branches of UNION ALL need a key column with a different literal in each."
    raise text.error(
        "TR-544",
        f"the key ({', '.join(key)}) is not known to be unique",
        _key_column(root, key),
        hint=f"key = [{listed}]  # is unique" if known else missing,
    )


def _key_column(root: Node, key: Sequence[str]) -> exp.Expr | None:
    block = root.blocks[0] if isinstance(root, Branches) else root
    return block.outputs.get(key[0])


def _check_units(root: Node, keys: Keys, text: QueryText) -> None:
    for block in root.blocks if isinstance(root, Branches) else (root,):
        if block.sources and not unit(block, keys):
            raise text.error(
                "TR-545",
                "each change would recompute the whole query",
                _widest(block),
                hint=f'[views.{text.view}] refresh = "full"  # if this is intended',
            )


def _widest(block: Block) -> exp.Expr:
    """Return the cause of a unit that is the whole block: a window over everything, else the first output.

    Without a window function, the cause is an aggregate without GROUP BY.
    """
    return block.windows[0] if block.windows else block.select.selects[0]
