"""The unit of a block: the part that is recomputed as a whole when one of its combinations changes.

A unit is given by expressions over combinations, such that every row of the block derives from combinations of one
unit. So the rows of a unit are the block over that unit's combinations, and no other rows can have changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tailrace.spark_jobs.query.blocks import Block, has_query, is_aggregate, key_of
from tailrace.spark_jobs.query.dialect import DIALECT
from tailrace.spark_jobs.query.keys import Keys
from tailrace.spark_jobs.query.times import is_window


def unit(block: Block, keys: Keys) -> tuple[exp.Expr, ...]:
    """Return the unit's expressions; none if every change requires recomputing the whole block."""
    if block.windows:
        found = _common([window.args.get("partition_by") or [] for window in block.windows])
    elif block.aggregates:
        found = list(block.group)
    elif block.distinct:
        found = list(block.outputs.values())
    else:
        found = rows_of(block, keys)
    if block.distinct:
        shown = set(map(key_of, block.outputs.values()))
        found = [part for part in found if key_of(part) in shown]
    if block.aggregates:
        grouped = set(map(key_of, block.group))
        found = [part for part in found if _over_groups(part, grouped)]
    plain = {key_of(part): part for part in found if not isinstance(part, exp.Literal) and not has_query(part)}
    return tuple(part for part in plain.values() if not any(is_window(node) for node in part.walk()))


def _common(groups: Sequence[Sequence[exp.Expr]]) -> list[exp.Expr]:
    shared = set.intersection(*({key_of(part) for part in parts} for parts in groups))
    return [part for part in groups[0] if key_of(part) in shared]


def _over_groups(part: exp.Expr, grouped: set[str]) -> bool:
    """Whether an expression has one value in each group and can be computed before grouping."""
    if key_of(part) in grouped:
        return True
    if isinstance(part, exp.Column) or is_aggregate(part):
        return False
    return all(_over_groups(child, grouped) for child in part.iter_expressions())


def rows_of(block: Block, keys: Keys) -> list[exp.Expr]:
    """Return the keys of the inner-joined sources, without the expressions that the others determine.

    If a row of another source appears or disappears, the rows with and without it are in the same unit.
    """
    facts = keys.facts(block)
    always = [source.alias for source in block.sources if source.how == "inner"]
    parts = [part for alias in always for part in facts.identity(alias)]
    return [exp.maybe_parse(part, dialect=DIALECT) for part in sorted(facts.reduced(parts), key=parts.index)]
