"""Ask PostgreSQL and Kafka for what `cdc.ops.status` shows; whoever does not answer is said to be down."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from confluent_kafka import Message

from cdc import publication, slot
from cdc.capture_set import CaptureSet
from cdc.connect import connect
from cdc.membership import Missing, missing_tables, statements
from cdc.ops.status import SourceStatus, Status, assemble
from cdc.stored_reads import stored_reads
from schemas.config import Config
from schemas.errors import ConfigError, TailraceError
from schemas.lsn import parse_lsn
from schemas.progress import PositionRecord, position_key
from schemas.topics import Topics
from sinks.progress import Reader
from sinks.views_topic import ViewRecord, read_views

KAFKA_TIMEOUT_S: Final = 5.0
_STEP: Final = 64
T = TypeVar("T")


def read_status(config: Config) -> Status:
    """Ask everybody, once."""
    topics = Topics(config.kafka.prefix)
    source, source_error = _attempt(lambda: _read_source(config))
    stored, kafka_error = _attempt(lambda: read_stored(config))
    # A broker that is down has cost one timeout already.
    records, views_error = ({}, None) if kafka_error else _attempt(lambda: _read_views(config, topics))
    record, stored_ms = stored or (None, 0)
    shares, _ = _attempt(lambda: read_shares(config, record))
    return assemble(
        config,
        source or SourceStatus(error=source_error),
        (record, stored_ms),
        kafka_error,
        records or {},
        kafka_error or views_error,
        time.time(),
        shares,
    )


def _attempt(read: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return read(), None
    except ConfigError:
        raise  # no server is down: it could not even be asked
    except TailraceError as error:
        return None, f"{error.message}: {error.detail}" if error.detail else error.message


def wal_lsn(connection: psycopg.Connection) -> int:
    """Return the end of the source's WAL; on a standby, of what it has replayed."""
    row = connection.execute(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text"
    ).fetchone()
    assert row is not None
    return parse_lsn(row[0])


def _read_source(config: Config) -> SourceStatus:
    with connect(config.source.dsn.get_secret_value(), application_name="tailrace status") as connection:
        # The slot first: what it holds is then never ahead of the WAL's end.
        found = slot.inspect(connection, config.source.slot)
        end = wal_lsn(connection)
        row = connection.execute(
            "SELECT (wal_bytes / nullif(extract(epoch FROM now() - stats_reset), 0))::float8 FROM pg_stat_wal"
        ).fetchone()
        publications = publication.find(connection, config.source.publication)
        missing: tuple[Missing, ...] = ()
        if publications is not None:
            missing = missing_tables(connection, publications, CaptureSet(config.source.tables))
        return SourceStatus(
            wal_lsn=end,
            slot=found,
            wal_bytes_per_s=row[0] if row else None,
            missing_tables=tuple(each.name for each in missing),
            missing_statements=tuple(statements(missing, publications.names)) if publications else (),
        )


def read_stored(config: Config, timeout: float = KAFKA_TIMEOUT_S) -> tuple[PositionRecord | None, int]:
    """Return the newest position record and when Kafka took it (ms); None and 0 if there is none yet."""
    key = position_key(config.source.slot)
    with Reader(config.kafka, Topics(config.kafka.prefix).progress, timeout, once=True) as reader:
        low, high = reader.bounds() or (0, 0)
        step = _STEP
        while low < high:
            start = max(low, high - step)
            newest: Message | None = None
            for message in reader.span(start, high):
                if message.key() == key and message.value() is not None:
                    newest = message
            if newest is not None:
                return PositionRecord.from_json(newest.value() or b""), newest.timestamp()[1]
            if start == low:
                break
            step *= _STEP
    return None, 0


def read_shares(config: Config, record: PositionRecord | None) -> dict[str, float]:
    """Return how much of each incomplete table has been read, by bytes of the table, once its read is planned."""
    if record is None or not record.incomplete_tables:
        return {}
    reads = stored_reads(config)
    found = reads.progress()
    return {
        name: found[name].size_done / found[name].size
        for name in record.incomplete_tables
        if name in found and name in reads.states and found[name].run == reads.states[name].run and found[name].size
    }


def _read_views(config: Config, topics: Topics) -> dict[str, ViewRecord]:
    return read_views(config.kafka, topics, KAFKA_TIMEOUT_S) if config.views else {}
