"""Query PostgreSQL and Kafka for `cdc.operations.status`; report servers that do not answer as down."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import psycopg

from tailrace.cdc.operations.read_lag import WaitingChanges, ask_daemon, lag_behind_walsender, walsender
from tailrace.cdc.operations.status import SourceStatus, Status, assemble, daemon_status
from tailrace.cdc.operations.table_waits import TableWait, incomplete_tables
from tailrace.cdc.postgres import publication, slot
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.membership import Missing, captures_any, missing_tables, statements
from tailrace.cdc.tables.stored_reads import StoredReads, stored_reads
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, TailraceError
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.position import PositionRecord, position_key
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import Reader
from tailrace.sinks.control.views_topic import ViewRecord, read_views
from tailrace.sinks.target.follower import follower
from tailrace.snapshot.progress import ReadProgress

KAFKA_TIMEOUT_S: Final = 5.0
_STEP: Final = 64
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FromInside:
    """What a daemon knows when it reads its own status: its `/status` answer and the progress of its reads."""

    answer: Mapping[str, Any]
    counted: ReadProgress


def read_status(config: Config, waiting: WaitingChanges | None = None) -> Status:
    """Query all servers once. A caller that polls passes `waiting`, which caches the first waiting change."""
    return read_pipeline(config, waiting)[0]


def read_pipeline(
    config: Config,
    waiting: WaitingChanges | None = None,
    inside: FromInside | None = None,
    timeout: float = KAFKA_TIMEOUT_S,
) -> tuple[Status, StoredReads | None]:
    """Query all servers once; return also the tables' states, None if Kafka does not answer within `timeout`."""
    topics = Topics(config.kafka.prefix)
    with ExitStack() as opened:
        dsn = config.source.dsn.get_secret_value()
        connection, source_error = _attempt(
            lambda: opened.enter_context(connect(dsn, application_name="tailrace status"))
        )
        source: SourceStatus | None = None
        if connection is not None:
            source, source_error = _attempt(partial(_read_source, config, connection))
        stored, kafka_error = _attempt(lambda: read_positions(config, timeout))
        # A broker that is down has already cost one timeout.
        records, views_error = ({}, None) if kafka_error else _attempt(lambda: _read_views(config, topics, timeout))
        counted = inside.counted if inside is not None else None
        reads, _ = (None, None) if kafka_error else _attempt(lambda: stored_reads(config, timeout, counted))
        positions = stored or []
        record = positions[-1][0] if positions else None
        answer = inside.answer if inside is not None else ask_daemon(reads.daemon if reads else None, config)
        lag_s: float | None = None
        if answer is not None:
            lag_s = answer.get("lag_seconds")
        elif connection is not None and source is not None:
            ask = partial(_lag, connection, source, positions, waiting or WaitingChanges())
            lag_s, _ = _attempt(ask)
        status = assemble(
            config,
            source or SourceStatus(error=source_error),
            positions,
            kafka_error,
            records or {},
            kafka_error or views_error,
            time.time(),
            shares_of(reads, record) if reads else {},
            lag_s=lag_s,
            daemon=daemon_status(source, reads.daemon if reads else None, answer),
            remedies=reads.remedies() if reads else {},
            followers={name: found for name in config.views if (found := follower(config, name)) is not None},
        )
        return status, reads


def _attempt(read: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return read(), None
    except ConfigError:
        raise  # not an outage: the server could not be queried at all
    except TailraceError as error:
        return None, f"{error.message}: {error.detail}" if error.detail else error.message
    except psycopg.Error as error:
        return None, f"PostgreSQL does not answer: {' '.join(str(error).split())}"


def _lag(
    connection: psycopg.Connection,
    source: SourceStatus,
    positions: Sequence[tuple[PositionRecord, int]],
    waiting: WaitingChanges,
) -> float | None:
    slot, end = source.slot, source.wal_lsn
    if slot is None or end is None or slot.is_lost or not positions:
        return None
    record, stored_ms = positions[-1]
    if record.here.flushed_lsn >= end:
        return 0.0
    if slot.active_pid is not None:
        return lag_behind_walsender(connection, slot, end, stored_ms / 1000)
    return waiting.lag(connection, slot, record, end)


def wal_lsn(connection: psycopg.Connection) -> int:
    """Return the end of the source's WAL; on a standby, of the replayed WAL."""
    row = connection.execute(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text"
    ).fetchone()
    assert row is not None
    return parse_lsn(row[0])


def _read_source(config: Config, connection: psycopg.Connection) -> SourceStatus:
    # The slot first, so that its LSNs are never past the end of the WAL.
    found = slot.inspect(connection, config.source.slot)
    end = wal_lsn(connection)
    row = connection.execute(
        "SELECT (wal_bytes / nullif(extract(epoch FROM now() - stats_reset), 0))::float8 FROM pg_stat_wal"
    ).fetchone()
    reader = walsender(connection, found)
    publications = publication.find(connection, config.source.publication)
    missing: tuple[Missing, ...] = ()
    matches = True  # before the first start there is no publication
    if publications is not None:
        capture_set = CaptureSet(config.source.tables)
        missing = missing_tables(connection, publications, capture_set)
        matches = captures_any(connection, publications, capture_set)
    return SourceStatus(
        wal_lsn=end,
        slot=found,
        wal_bytes_per_s=row[0] if row else None,
        reader=reader.client if reader else None,
        captures_any=matches,
        missing_tables=tuple(each.name for each in missing),
        missing_statements=tuple(statements(missing, publications.names)) if publications else (),
    )


def read_stored(config: Config, timeout: float = KAFKA_TIMEOUT_S) -> tuple[PositionRecord | None, int]:
    """Return the newest position record and its Kafka timestamp (ms); None and 0 if there is none yet."""
    found = read_positions(config, timeout)
    return found[-1] if found else (None, 0)


def read_positions(config: Config, timeout: float = KAFKA_TIMEOUT_S) -> list[tuple[PositionRecord, int]]:
    """Return the last position records, in order, with their Kafka timestamps (ms); empty without any.

    They are from the last 64 records of their topic; if these have none, from increasingly longer spans.
    """
    key = position_key(config.source.slot)
    with Reader(config.kafka, Topics(config.kafka.prefix).progress, timeout, once=True) as reader:
        low, high = reader.bounds() or (0, 0)
        step = _STEP
        while low < high:
            start = max(low, high - step)
            found: deque[tuple[bytes, int]] = deque(maxlen=_STEP)
            for message in reader.span(start, high):
                raw = message.value()
                if message.key() == key and raw is not None:
                    found.append((raw, message.timestamp()[1]))
            if found:
                return [(PositionRecord.from_json(raw), taken_ms) for raw, taken_ms in found]
            if start == low:
                break
            step *= _STEP
    return []


def read_waits(config: Config, record: PositionRecord | None) -> tuple[TableWait, ...]:
    """Return the incomplete tables of a position record, with the reason of each from the tables topic."""
    if record is None or not record.incomplete_tables:
        return ()
    reads = stored_reads(config)
    return incomplete_tables(record, shares_of(reads, record), reads.remedies())


def read_shares(config: Config, record: PositionRecord | None) -> dict[str, float]:
    """Return the fraction read of each incomplete table, by bytes of the table, once its read is planned."""
    if record is None or not record.incomplete_tables:
        return {}
    return shares_of(stored_reads(config), record)


def shares_of(reads: StoredReads, record: PositionRecord | None) -> dict[str, float]:
    """Return the same as `read_shares`, from reads that are already loaded from the tables topic."""
    if record is None:
        return {}
    found = reads.progress()
    return {
        name: found[name].size_done / found[name].size
        for name in record.incomplete_tables
        if name in found and name in reads.states and found[name].run == reads.states[name].run and found[name].size
    }


def _read_views(config: Config, topics: Topics, timeout: float) -> dict[str, ViewRecord]:
    return read_views(config.kafka, topics, timeout) if config.views else {}
