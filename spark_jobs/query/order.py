"""Check that results that depend on row order have a total order: ties would vary between runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from sqlglot import exp

from tailrace.spark_jobs.query.blocks import Block, Branches, Node, is_aggregate, key_of
from tailrace.spark_jobs.query.keys import Keys
from tailrace.spark_jobs.query.refusals import ANY_ROW
from tailrace.spark_jobs.query.text import QueryText

_BY_PEERS: Final = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
"""Ranking functions that return the same value for rows that are equal in the order."""


def check_order(node: Node, keys: Keys, text: QueryText) -> None:
    """Raise ConfigError for the first part whose result can vary over the same rows."""
    if isinstance(node, Branches):
        for block in node.blocks:
            check_order(block, keys, text)
        return
    for source in node.sources:
        if not isinstance(source.read, str):
            check_order(source.read, keys, text)
    for window in node.windows:
        _check_window(node, window, keys, text)
    for at, ordered in _by_order(node):
        _check_total(node, [*node.group, *ordered], keys.facts(node).combination_keys, keys, text, at)


def _check_window(block: Block, window: exp.Window, keys: Keys, text: QueryText) -> None:
    called = window.this
    while isinstance(called, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        called = called.this
    spec = window.args.get("spec")
    by_rows = spec is not None and str(spec.args.get("kind")).upper() == "ROWS" and not _everything(spec)
    if isinstance(called, _BY_PEERS):
        return
    if isinstance(called, exp.AggFunc) and not by_rows and not isinstance(called, _BY_PLACE):
        return
    order = window.args.get("order")
    parts = [*(window.args.get("partition_by") or []), *(one.this for one in (order.expressions if order else []))]
    if isinstance(called, exp.ArgMax | exp.ArgMin):
        parts.append(called.expression)
    facts = keys.facts(block)
    rows = [frozenset(map(key_of, block.group))] if block.group else facts.combination_keys
    _check_total(block, parts, rows, keys, text, window)


_BY_PLACE: Final = (*ANY_ROW, exp.ArgMax, exp.ArgMin, exp.NthValue, exp.Lag, exp.Lead, exp.Ntile)


def _everything(spec: exp.Expr) -> bool:
    sides = (spec.args.get("start"), spec.args.get("end"))
    return all(isinstance(side, str) and side.upper() == "UNBOUNDED" for side in sides)


def _by_order(block: Block) -> Iterator[tuple[exp.Expr, list[exp.Expr]]]:
    """Yield aggregates that return a value of the first or last row in an order, with that order."""
    for part in (*block.select.expressions, block.select.args.get("having"), block.select.args.get("qualify")):
        for node in part.walk(prune=lambda n: isinstance(n, exp.Query)) if part is not None else ():
            if isinstance(node, exp.ArgMax | exp.ArgMin) and is_aggregate(node):
                yield node, [node.expression]


def _check_total(
    block: Block,
    parts: Iterable[exp.Expr],
    unique: Iterable[frozenset[str]],
    keys: Keys,
    text: QueryText,
    at: exp.Expr,
) -> None:
    facts = keys.facts(block)
    known = facts.closure(map(key_of, parts))
    found = list(unique)
    if any(key <= known for key in found):
        return
    # Any candidate will do; its missing expressions make the order total.
    missing = ", ".join(sorted(facts.reduced(found[0]) - known)).replace("`", "") if found else ""
    raise text.error(
        "TR-546",
        "this order is not total: rows that are equal in it have no defined order",
        at,
        hint=f"Add to its ORDER BY: {missing}." if missing else "Order by columns that identify a row.",
    )
