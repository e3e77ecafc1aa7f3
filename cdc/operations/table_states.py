"""State of each captured table, read from Kafka: available on every host, even without a daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tailrace.cdc.tables.stored_reads import stored_reads
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.layout import TableState, TableStatus


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table and its status; if parked, also the error, hint, time (UTC) and LSN of the failed commit.

    The hint of an unpublished table are the statements that publish all its changes.
    """

    table: str
    status: str
    run: int
    code: str | None = None
    error: str | None = None
    hint: str | None = None
    since: str | None = None
    lsn: str | None = None
    left_out: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_tables(config: Config) -> list[TableInfo]:
    """Read the state of all tables from Kafka. Raises SinkError if it does not answer."""
    return table_infos(stored_reads(config).states)


def table_infos(states: Mapping[str, TableState]) -> list[TableInfo]:
    """Return the tables of these states, without deleted ones, by name."""
    return [_info(name, state) for name, state in sorted(states.items()) if state.status is not TableStatus.GONE]


def _info(name: str, state: TableState) -> TableInfo:
    status = state.status or TableStatus.STREAMING
    parked = state.parked
    if parked is None:
        return TableInfo(name, status.value, state.run, hint=state.remedy or None)
    since = datetime.fromtimestamp(parked.since_ms / 1000, UTC).isoformat(timespec="seconds")
    shown = "left out" if parked.left_out else status.value
    lsn = format_lsn(parked.lsn) if parked.lsn else None
    return TableInfo(
        name, shown, state.run, parked.code, parked.message, parked.hint, since, lsn, left_out=parked.left_out
    )
