"""Read a warehouse view as of an LSN without Spark, as a pyiceberg scan (for DuckDB, Polars, Arrow).

A view of shape `history`, `log` or `percolate` covers every LSN since its begin. Any other view has only the states at
its cuts: the result is the newest of them at or before the LSN, and gives its LSN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.shapes import SHAPES
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.iceberg.reader import StoredView, stored_view
from tailrace.sinks.read.targets import TARGETS
from tailrace.sinks.target.protocol import FROM_LSN, TO_LSN, VALIDITY

if TYPE_CHECKING:
    from pyiceberg.table import DataScan

_COMMIT_LSN: Final = "commit_lsn"
"""Column of views of shape `log` and `percolate`: the commit LSN of the row's change."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The view as of `lsn`: with everything that was committed before it, and nothing else."""

    lsn: int
    generation: int
    scan: DataScan


def table_at(config: Config, name: str, lsn: int | None = None, *, versions: bool = False) -> TableState:
    """Return a view as of `lsn`, by default its present state; `versions`: all versions of a history.

    ConfigError if it is no view in the warehouse (TR-517), or for the versions of another shape (TR-567). StateError
    for an LSN before the oldest available state of the live generation (TR-561), or after the applied one (TR-562).
    """
    view = config.views.get(name)
    if view is None or not TARGETS[view.target].keeps_states or config.warehouse is None:
        raise ConfigError(
            "TR-517",
            f'there is no view "{name}" in the warehouse',
            hint="tailrace views list",
        )
    if versions and not SHAPES[view.shape].has_versions:
        raise ConfigError(
            "TR-567",
            f'view "{name}" is not of shape "history", so it has no versions',
            detail=f'It is of shape "{view.shape}".',
            hint=f'[views.{name}] table = "schema.table", shape = "history"',
        )
    stored = stored_view(config.warehouse, name, read_views(config.kafka, Topics(config.kafka.prefix)).get(name))
    there = stored.cut.flushed_lsn
    at = there if lsn is None else lsn
    if at > there:
        raise StateError(
            "TR-562",
            f'view "{name}" has not come to {format_lsn(at)} yet',
            detail=f"It stands at {format_lsn(there)}.",
            hint=f"tailrace wait --lsn {format_lsn(at)} --view {name}",
        )
    if stored.history_from is not None:
        if at < stored.history_from.lsn:
            raise _too_early(name, at)
        return TableState(at, stored.generation, _kept(stored, at, versions=versions))
    found = _state(stored, at)
    if found is None:
        raise _too_early(name, at)
    return TableState(found[0], stored.generation, stored.table.scan(snapshot_id=found[1]))


def _kept(stored: StoredView, at: int, *, versions: bool) -> DataScan:
    """Return the scan as of the LSN `at` of a view that keeps the past: `history`, `log` or `percolate`."""
    names = [field.name for field in stored.table.schema().fields]
    if FROM_LSN not in names:
        # of shape log or percolate: a row is a change, or a match of one
        where = f"{_COMMIT_LSN} < {at}"
    elif versions:
        where = f"{FROM_LSN} < {at}"
    else:
        where = f"{FROM_LSN} < {at} AND ({TO_LSN} IS NULL OR {TO_LSN} >= {at})"
        names = [name for name in names if name not in VALIDITY]
    found: DataScan = stored.table.scan(row_filter=where, selected_fields=tuple(names), snapshot_id=stored.snapshot_id)
    return found


def _state(stored: StoredView, at: int) -> tuple[int, int] | None:
    """Return the live generation's newest LSN at or before `at` with a snapshot of that state, else None."""
    # A rewrite has no cut of its own: its rows are those of the previous cut.
    snapshot, data, newest = stored.table.snapshot_by_id(stored.snapshot_id), None, True
    while snapshot is not None:
        data = data or snapshot.snapshot_id
        summary = snapshot.summary or {}
        text = summary.get("tailrace.cut")
        if text is not None:
            if int(summary.get("tailrace.generation") or 0) != stored.generation:
                return None
            lsn = Cut.from_json(text).flushed_lsn
            if lsn <= at:
                # Nothing has changed since the newest cut, so it is the state at every LSN up to the applied one.
                return (at if newest else lsn), data
            data, newest = None, False
        parent = snapshot.parent_snapshot_id
        snapshot = stored.table.snapshot_by_id(parent) if parent is not None else None
    return None


def _too_early(name: str, at: int) -> StateError:
    return StateError(
        "TR-561",
        f'view "{name}" does not go back to {format_lsn(at)}',
        detail="Of a view there are the states since its last rebuild that have not expired.",
        hint='Ask for a later one; shape = "history" keeps them all.',
    )
