"""Replication slot: inspect it, state what a drop loses, and drop it after confirmation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tailrace.cdc.operations.read_lag import walsender
from tailrace.cdc.operations.read_status import read_stored, wal_lsn
from tailrace.cdc.postgres import slot
from tailrace.cdc.postgres.connect import SLOT_IN_USE, connect
from tailrace.cdc.postgres.slot import Slot
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, SinkError, SourceError
from tailrace.schemas.lsn import format_lsn

_MIB: Final = 1_048_576
_NAME: Final = "tailrace slot"


@dataclass(frozen=True, slots=True)
class SlotReport:
    """A slot, the WAL that it retains, and the end of the topics.

    `limit_bytes` is ``max_slot_wal_keep_size``, None without a limit. `reader` is the host of the process that reads
    the slot, if over TCP. Kafka holds all changes committed before `flushed_lsn`; None if no position is recorded, or
    if Kafka did not answer: then `topics_error` says why.
    """

    slot: Slot
    database: str
    wal_lsn: int
    limit_bytes: int | None
    reader: str | None
    flushed_lsn: int | None
    topics_error: str | None

    @property
    def retained_bytes(self) -> int | None:
        """Bytes of WAL that the server retains for the slot; None if the slot retains none, such as a lost one."""
        return self.wal_lsn - self.slot.restart_lsn if self.slot.restart_lsn else None

    @property
    def unread_from(self) -> int | None:
        """LSN from which changes are not known to be on the topics; None if no position is known at all."""
        if self.flushed_lsn is not None:
            return self.flushed_lsn
        # the slot is confirmed only after Kafka has the changes
        return self.slot.confirmed_flush_lsn or None if self.topics_error else None

    @property
    def unread_bytes(self) -> int | None:
        """Bytes of WAL past `unread_from`, an upper bound: most of it may contain no captured change."""
        return None if self.unread_from is None else max(self.wal_lsn - self.unread_from, 0)

    @property
    def loss(self) -> str:
        """Sentences that say what a drop of the slot loses."""
        end = format_lsn(self.wal_lsn)
        doubt = f" Kafka does not answer ({self.topics_error})." if self.topics_error else ""
        if self.unread_from is None:
            return f"The topics have no position of this slot.{doubt} Its WAL ends at {end}."
        start = "The slot is confirmed up to" if self.topics_error else "Topics end at"
        lost = (
            f"{start} {format_lsn(self.unread_from)}, the server's WAL at {end}: no slot will"
            f" send the changes committed in these {self.unread_bytes} bytes of WAL, nor those committed until a new"
            " slot exists."
        )
        return f"{lost}{doubt}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON, with LSNs as PostgreSQL prints them."""
        each = self.slot
        return {
            "name": each.name,
            "plugin": each.plugin,
            "type": each.slot_type,
            "database": each.database,
            "active_pid": each.active_pid,
            "reader": self.reader,
            "wal_status": each.wal_status,
            "is_lost": each.is_lost,
            "invalidation_reason": each.invalidation_reason,
            "failover": each.failover,
            "synced": each.synced,
            "restart_lsn": _lsn(each.restart_lsn),
            "confirmed_flush_lsn": _lsn(each.confirmed_flush_lsn),
            "wal_lsn": _lsn(self.wal_lsn),
            "retained_bytes": self.retained_bytes,
            "limit_bytes": self.limit_bytes,
            "safe_wal_bytes": each.safe_wal_size,
            "topics_lsn": _lsn(self.flushed_lsn),
            "topics_error": self.topics_error,
            "unread_from_lsn": _lsn(self.unread_from),
            "unread_bytes": self.unread_bytes,
        }


def read_slot(config: Config) -> SlotReport:
    """Return the report of the configured slot; Kafka may be down.

    Raises SourceError: TR-201 and others if PostgreSQL cannot be reached, TR-236 if there is no such slot.
    """
    with connect(config.source.dsn.get_secret_value(), application_name=_NAME) as connection:
        return _report(config, connection)


def refuse_drop(report: SlotReport) -> None:
    """Raise SourceError for a slot that `drop_slot` does not drop: TR-206 if active, TR-208 if not Tailrace's."""
    found = report.slot
    if found.active_pid is not None:
        reader = f" on {report.reader}" if report.reader else ""
        raise SourceError(
            SLOT_IN_USE,
            f'slot "{found.name}" is not dropped: process {found.active_pid} of the server reads it',
            detail=f"Its client{reader} is probably `tailrace run`. Nothing was changed.",
            hint="Stop the daemon with SIGTERM, then repeat: tailrace slot drop",
        )
    if not found.is_half_synced:  # a standby's promotion leaves such a slot behind: unusable, and ours to drop
        found.check(report.database)


def drop_slot(config: Config, confirmed: str | None) -> SlotReport:
    """Drop the configured slot and return its last report.

    `confirmed` is the name that the user has typed. Nothing is dropped if it is not that of the slot (ConfigError
    TR-140), if the slot is in use, also by a daemon that is starting (SourceError TR-206), is not Tailrace's (TR-208),
    or does not exist (TR-236). TR-209: PostgreSQL refuses.
    """
    name = config.source.slot
    with connect(config.source.dsn.get_secret_value(), application_name=_NAME) as connection:
        refuse_drop(_report(config, connection))
        # a daemon that starts holds this lock until it reads the slot; ours ends with the connection
        slot.begin_start(connection, name)
        report = _report(config, connection)
        refuse_drop(report)
        if confirmed != name:
            raise ConfigError(
                "TR-140",
                f'dropping slot "{name}" requires its name',
                detail=f"{report.loss} Nothing was changed.",
                hint=f"tailrace slot drop --confirm {name}",
            )
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except psycopg.errors.UndefinedObject:
            raise _missing(name) from None
        except psycopg.Error as error:
            in_use = isinstance(error, psycopg.errors.ObjectInUse)
            raise SourceError(
                SLOT_IN_USE if in_use else "TR-209",
                f'PostgreSQL did not drop slot "{name}": {error.diag.message_primary or "the connection was lost"}',
                detail=error.diag.message_detail or "",
                hint=error.diag.message_hint or "tailrace slot show",
            ) from None
        return report


def _report(config: Config, connection: psycopg.Connection) -> SlotReport:
    # Kafka and the slot first, so that their LSNs are never past the end of the WAL.
    flushed: int | None = None
    topics_error: str | None = None
    try:
        record, _ = read_stored(config)
        flushed = record.here.flushed_lsn if record else None
    except SinkError as error:
        topics_error = error.message
    found = slot.inspect(connection, config.source.slot)
    if found is None:
        raise _missing(config.source.slot)
    row = connection.execute(
        "SELECT current_database(), (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size')"
    ).fetchone()
    assert row is not None
    database, limit_mib = row
    reader = walsender(connection, found)
    return SlotReport(
        slot=found,
        database=database,
        wal_lsn=wal_lsn(connection),
        limit_bytes=None if limit_mib < 0 else limit_mib * _MIB,
        reader=reader.client if reader else None,
        flushed_lsn=flushed,
        topics_error=topics_error,
    )


def _missing(name: str) -> SourceError:
    return SourceError(
        "TR-236",
        f'slot "{name}" does not exist on this server',
        detail="It is created on the first run of the daemon, or was dropped since.",
        hint="tailrace status  # whether the topics have a position of it",
    )


def _lsn(lsn: int | None) -> str | None:
    return format_lsn(lsn) if lsn else None
