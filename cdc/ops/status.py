"""Where everything stands: the source's WAL, the slot, what Kafka holds, what each view has applied.

A server that is down is a line of the answer, not an error: that is when people ask. Lag in seconds is taken
from clocks at the time of asking, so it grows while something is stuck.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cdc.ops.forecast import seconds_to_full
from cdc.ops.table_waits import TableWait, incomplete_tables, waited_for
from cdc.slot import Slot
from schemas.config import Config
from schemas.lsn import format_lsn
from schemas.progress import PositionRecord
from sinks.views_topic import WAITS_FOR_TABLE, ViewRecord

_PRESENT_S = 60.0


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """PostgreSQL and our slot in it; `slot` is None before the first start of the daemon.

    `wal_bytes_per_s` is the mean since the server's statistics were reset. `missing_tables` match ``source.tables`` and
    are in no publication; `missing_statements` publish them.
    """

    error: str | None = None
    wal_lsn: int | None = None
    slot: Slot | None = None
    wal_bytes_per_s: float | None = None
    missing_tables: tuple[str, ...] = ()
    missing_statements: tuple[str, ...] = ()

    @property
    def retained_bytes(self) -> int | None:
        """WAL that the server keeps for the slot."""
        return None if self.wal_lsn is None or self.slot is None else self.wal_lsn - self.slot.restart_lsn


@dataclass(frozen=True, slots=True)
class TopicsStatus:
    """What Kafka holds: all that was committed before `flushed_lsn`; `diverted` of it are dead letters.

    `reads` says of each of the `incomplete_tables` how far it is. `parked_tables` has the code of the error of each
    parked table, empty for one that is left out.
    """

    error: str | None = None
    position: str | None = None
    flushed_lsn: int | None = None
    incomplete_tables: tuple[str, ...] = ()
    open_transaction: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    diverted: int = 0
    parked_tables: dict[str, str] = field(default_factory=dict)
    reads: tuple[TableWait, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """A view is the database as of `flushed_lsn`; None before its first batch.

    A history or a log begins at `history_from_lsn`. With tables in `waits_for` it stands still until they are complete.
    """

    name: str
    target: str
    error: str | None = None
    generation: int | None = None
    flushed_lsn: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    history_from_lsn: int | None = None
    waits_for: tuple[TableWait, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """The whole pipeline at one moment."""

    slot_name: str
    source: SourceStatus
    topics: TopicsStatus
    views: tuple[ViewStatus, ...]

    @property
    def seconds_to_full(self) -> float | None:
        """How long the slot would last if nothing moved it; None without a limit.

        By the WAL since the topics' end if that is a while ago, so that it is the present rate while the daemon is
        down; else by the mean.
        """
        rate, topics, found = self.source.wal_bytes_per_s, self.topics, self.source.slot
        if topics.lag_bytes is not None and topics.lag_seconds is not None and topics.lag_seconds >= _PRESENT_S:
            rate = topics.lag_bytes / topics.lag_seconds
        return None if found is None else seconds_to_full(found.safe_wal_size, rate)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: LSNs as PostgreSQL prints them, sizes in bytes, times in seconds."""
        value = asdict(self)
        value["source"]["retained_bytes"] = self.source.retained_bytes
        value["source"]["seconds_to_full"] = self.seconds_to_full
        _print_lsns(value)
        return value


def _print_lsns(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if key.endswith("_lsn") and isinstance(item, int):
                value[key] = format_lsn(item)
            _print_lsns(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _print_lsns(item)


def assemble(
    config: Config,
    source: SourceStatus,
    stored: tuple[PositionRecord | None, int],
    kafka_error: str | None,
    records: dict[str, ViewRecord],
    views_error: str | None,
    now: float,
    shares: Mapping[str, float] | None = None,
) -> Status:
    """Put together what was read; `stored` is the newest position record and when Kafka took it (ms).

    `shares` says how much of each table that is being read has been read.
    """
    record, stored_ms = stored
    flushed = record.here.flushed_lsn if record else None
    behind = _behind(source.wal_lsn, flushed)
    topics = TopicsStatus(
        error=kafka_error,
        position=str(record.here.position) if record else None,
        flushed_lsn=flushed,
        incomplete_tables=record.incomplete_tables if record else (),
        parked_tables=record.parked if record else {},
        open_transaction=record.open if record else None,
        lag_bytes=behind,
        # Everything up to flushed_lsn was there at that time; what came since cannot be older.
        lag_seconds=_seconds(behind, now, stored_ms),
        diverted=record.diverted if record else 0,
        reads=incomplete_tables(record, shares or {}),
    )
    waits = {name: waited_for(config, name, records.get(name), topics.reads) for name in config.views}
    views = tuple(
        _view(name, view.target, records.get(name), views_error, source.wal_lsn, topics, now, waits[name])
        for name, view in config.views.items()
    )
    return Status(config.source.slot, source, topics, views)


def _view(
    name: str,
    target: str,
    record: ViewRecord | None,
    error: str | None,
    wal_lsn: int | None,
    topics: TopicsStatus,
    now: float,
    waits: tuple[TableWait, ...],
) -> ViewStatus:
    if record is None:
        return ViewStatus(name, target, error, waits_for=waits)
    flushed = record.cut.flushed_lsn if record.cut else None
    behind = _behind(wal_lsn, flushed)
    level = flushed is not None and flushed == topics.flushed_lsn
    return ViewStatus(
        name,
        target,
        error or _stopped_by(record, waits),
        record.generation,
        flushed,
        behind,
        topics.lag_seconds if level else _seconds(behind, now, record.current_ms),
        record.history_from.lsn if record.history_from else None,
        waits,
    )


def _stopped_by(record: ViewRecord, waits: tuple[TableWait, ...]) -> str | None:
    """Return the record's error, unless it is that the view waits for tables, and these are known."""
    return None if waits and WAITS_FOR_TABLE in (record.error or "").partition("\n")[0] else record.error


def _behind(wal_lsn: int | None, flushed_lsn: int | None) -> int | None:
    return None if wal_lsn is None or flushed_lsn is None else max(0, wal_lsn - flushed_lsn)


def _seconds(behind: int | None, now: float, since_ms: int) -> float | None:
    if behind is None or since_ms <= 0:
        return None
    return round(max(0.0, now - since_ms / 1000), 3) if behind else 0.0
