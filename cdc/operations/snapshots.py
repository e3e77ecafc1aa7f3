"""Status of table snapshots, read from Kafka: available on every host, even without a running daemon."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from tailrace.cdc.operations.read_status import read_stored
from tailrace.cdc.startup.recovery import copy_anew
from tailrace.cdc.tables.stored_reads import stored_reads
from tailrace.schemas.config.model import Config
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.layout import Asked, TableState, TableStatus
from tailrace.schemas.records.position import RECORDS_LOST
from tailrace.schemas.records.requests import Request
from tailrace.sinks.control.requests import RequestTail
from tailrace.snapshot.progress import TableProgress, seconds_left


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table's newest run. `incomplete`: no cut is a state of the table before the run ends.

    `chunks` is None before the run is planned. `state` is waiting, reading, paused, "deleting what is gone", done,
    cancelled or failed (its condition cannot be evaluated). `lsn`: the run reads everything committed before it.
    `rows`, `rows_per_s` and `copied_bytes` (of COPY's text) count complete chunks. `seconds_left` is None before the
    first chunk is read and while nothing is being read.
    """

    table: str
    run: int
    state: str
    incomplete: bool
    chunks: int | None = None
    chunks_done: int | None = None
    lsn: str | None = None
    rows: int | None = None
    rows_per_s: int | None = None
    copied_bytes: int | None = None
    seconds_left: int | None = None
    where: str | None = None
    rate: int | None = None
    reconcile: bool = False


@dataclass(frozen=True, slots=True)
class Snapshots:
    """The snapshots of all tables, and the requests that no daemon has accepted yet."""

    tables: tuple[TableSnapshot, ...]
    waiting: tuple[Request, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_snapshots(config: Config) -> Snapshots:
    """Read the snapshots and waiting requests from Kafka. Raises SinkError if it does not answer."""
    reads = stored_reads(config)
    stored, _ = read_stored(config)
    incomplete = set(stored.incomplete_tables) - stored.reread.keys() if stored else set()
    progress = reads.progress()
    found = [
        _snapshot(name, state, progress.get(name), incomplete=name in incomplete)
        for name, state in sorted(reads.states.items())
        if state.oid != 0 or name in incomplete  # the others have been renamed
    ]
    with RequestTail(config.kafka, config.source.slot) as tail:
        return Snapshots(tuple(found), tail.waiting)


def refuse_recovery(config: Config) -> None:
    """Raise ConfigError (TR-130) if the daemon has ended with an error that reading all tables does not repair."""
    daemon = stored_reads(config).daemon
    entry = CODES.get(daemon.code or "") if daemon is not None and daemon.state == "failed" else None
    if daemon is not None and entry is not None and entry.error is StateError and not entry.refill:
        raise ConfigError(
            "TR-130",
            f'request "start" refused: reading all tables again does not repair {daemon.code}',
            detail=f"The daemon has ended with {daemon.code}: {daemon.message}. Once that is repaired, `tailrace run`"
            " accepts the request.",
            hint=copy_anew(config.kafka.prefix, config.source.slot) if daemon.code == RECORDS_LOST else "tailrace run",
        )


def _snapshot(name: str, state: TableState, read: TableProgress | None, *, incomplete: bool) -> TableSnapshot:
    reading = incomplete or state.asked is not None
    ended = None if reading else state.ended
    asked = state.asked or Asked()
    if ended is not None:
        asked = Asked(where=ended.where, rate=ended.rate, since=() if ended.reconcile else None)
    run = state.run if ended is None else ended.run
    planned = read if read is not None and read.run == run else None
    lsn = 0 if state.status is TableStatus.WANTED else asked.lsn or state.lsn
    found = TableSnapshot(
        name,
        run,
        _state(state, asked, planned) if reading else ended.how if ended is not None else "done",
        incomplete,
        lsn=format_lsn(lsn) if lsn else None,
        where=asked.where,
        rate=asked.rate,
        reconcile=asked.since is not None,
    )
    if planned is None:
        return found
    now_ms = time.time_ns() // 1_000_000 if reading and not asked.paused and not planned.done else 0
    left = seconds_left([planned], now_ms) if now_ms else 0.0 if reading and not asked.paused else None
    if left and asked.rate and planned.size_done:
        left = max(left, planned.rows * (planned.size / planned.size_done - 1) / asked.rate)
    return replace(
        found,
        chunks=planned.chunks,
        chunks_done=planned.chunks_done,
        rows=planned.rows,
        rows_per_s=round(planned.rows_per_s(now_ms, asked.rate)),
        copied_bytes=planned.copied,
        seconds_left=None if left is None else round(left),
    )


def _state(state: TableState, asked: Asked, read: TableProgress | None) -> str:
    if state.status is TableStatus.UNPUBLISHED:
        return "unpublished"
    if asked.paused:
        return "paused"
    if read is None:
        return "waiting"
    return "deleting what is gone" if read.done and asked.since is not None else "reading"
