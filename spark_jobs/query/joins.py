"""Find the sources of a block that a projection to its unit needs, and the conditions that join them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlglot import exp

from tailrace.spark_jobs.query.blocks import FILTERING, Block, Source, aliases, has_query

Joined = list[tuple[exp.Expr, Source, list[exp.Expr]]]
"""FROM items with their source and conditions; except for a LEFT JOIN, conditions may be in WHERE as well."""


def joined(block: Block, needed: Collection[str]) -> Joined:
    """Return the sources that connect the needed ones, in the block's order.

    The conditions of an omitted source are omitted as well, so there may be more combinations than the block has, but
    never fewer.
    """
    sources = [source for source in block.sources if source.how not in FILTERING]
    kept = _connected(sources, block.where, needed)
    froms = [block.select.args["from_"].this, *(join.this for join in block.select.args.get("joins") or [])]
    read = {part.alias_or_name: part for part in froms}
    plan: Joined = []
    for source in sources:
        if source.alias in kept:
            plan.append((read[source.alias], source, [part for part in source.on if aliases(part) <= kept]))
    where = [part for part in block.where if not has_query(part) and aliases(part) <= kept]
    if plan:
        plan[0][2].extend(where)
    return plan


def _connected(sources: list[Source], where: Iterable[exp.Expr], needed: Collection[str]) -> set[str]:
    names = {source.alias for source in sources}
    conditions = [*(part for source in sources for part in source.on), *where]
    groups = [aliases(part) & names for part in conditions]
    kept: set[str] = set()
    for name in sorted(names.intersection(needed)):
        kept |= {name} if not kept else _path(kept, name, groups)
    # A LEFT JOIN needs a left side, and all sources that its condition names.
    for source in reversed(sources):
        if source.alias in kept and source.how == "left":
            kept |= frozenset((sources[0].alias,)).union(*(aliases(part) for part in source.on)) & names
    return kept


def _path(start: set[str], end: str, groups: list[frozenset[str]]) -> set[str]:
    """Return the sources that conditions connect from `start` to `end`, both ends included.

    Without such a path, only `end` is returned, which is cross-joined.
    """
    before: dict[str, str | None] = dict.fromkeys(start)
    wave = sorted(start)
    while wave and end not in before:
        found: list[str] = []
        for name in wave:
            for other in sorted(frozenset().union(*(group for group in groups if name in group))):
                if other not in before:
                    before[other] = name
                    found.append(other)
        wave = found
    path = {end}
    step = before.get(end)
    while step is not None:
        path.add(step)
        step = before[step]
    return path
