"""Find a view's generations without Spark: a command with nothing to do can say so within a second.

The generations may change before the command begins, so it checks again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.schemas.config.model import Config, Warehouse
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.catalog import opened
from tailrace.sinks.opensearch.target import OpenSearchTarget
from tailrace.sinks.target.protocol import Applied

if TYPE_CHECKING:
    from pyiceberg.table import Table

_NUMBERED: Final = re.compile(r"g(\d+)")


@dataclass(frozen=True, slots=True)
class There:
    """Every generation that has a cut, by number, and the live one; `live` is None if there is none."""

    generations: dict[int, Applied]
    live: Applied | None


def generations_there(config: Config, name: str) -> There | None:
    """Return the generations of a declared view; None if only Spark can find them, or on an error."""
    try:
        if config.views[name].target == "search":
            if config.search is None:
                return None
            target = OpenSearchTarget(config.search, name)
            return There(target.generations(), target.live())
        return None if config.warehouse is None else _in_warehouse(config.warehouse, name)
    except TailraceError:
        return None


def _in_warehouse(warehouse: Warehouse, name: str) -> There:
    from pyiceberg.exceptions import NoSuchTableError

    file = warehouse.sqlite_file
    if file is not None and not Path(file).exists():
        return There({}, None)
    with opened(warehouse) as catalog:
        try:
            table = catalog.load_table((warehouse.namespace, name))
        except NoSuchTableError:
            return There({}, None)
        live = _applied(table, "main")
        if live is None:
            return There({}, None)
        found = {live.generation: live}
        beside = [(ref, table, ref) for ref in table.metadata.refs]
        for *_, other in catalog.list_tables(warehouse.namespace):
            if other.startswith(f"{name}__g"):
                own = catalog.load_table((warehouse.namespace, other))
                beside.append((other.removeprefix(f"{name}__"), own, "main"))
        for numbered, of, ref in beside:
            match, applied = _NUMBERED.fullmatch(numbered), _applied(of, ref)
            if match and applied is not None and applied.generation == int(match[1]):
                found.setdefault(applied.generation, applied)
        return There(found, live)


def _applied(table: Table, ref: str) -> Applied | None:
    """Return the state recorded by the newest ancestor with a cut; None if there is none."""
    snapshot = table.snapshot_by_name(ref)
    while snapshot is not None:
        summary = snapshot.summary
        if summary is not None and (cut := summary.get("tailrace.cut")) is not None:
            number = int(summary.get("tailrace.generation") or 0)
            return Applied(number, Cut.from_json(cut), snapshot.snapshot_id)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return None
