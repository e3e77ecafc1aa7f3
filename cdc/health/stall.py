"""Stall detection: there is WAL, but the position does not move. Its duration and its cause."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from tailrace.cdc.health.health import Health
from tailrace.cdc.health.source_state import SourceState

_IDLE_WAITS: Final = ("walsenderwaitforwal", "walsendermain")
_SEND_WAIT: Final = "walsenderwritedata"
_LONG_CALL_S: Final = 5.0
_RECOVERY_S: Final = 30.0


class Standstill:
    """Measures how long a position has not moved although there is work."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._position: object = None
        self._moved_at: float | None = None

    def look(self, now: float, position: object, *, behind: bool) -> float | None:
        """Return the seconds without movement if at least the patience, else None; `now` is in seconds."""
        if self._moved_at is None or not behind or position != self._position:
            self._position, self._moved_at = position, now
        stood = now - self._moved_at
        return stood if stood >= self._patience_s else None


class Recovery:
    """Tells whether an outage has just ended: the position of a stream that resumes need not have moved yet."""

    def __init__(self) -> None:
        self._outage_at: float | None = None

    def look(self, now: float, health: Health, source: SourceState | None) -> bool:
        """Return whether there is no outage now, but was one less than 30 s ago; `now` is in seconds."""
        began = health.committing_since
        if (
            source is None
            or health.kafka_error is not None
            or health.state in ("starting", "retrying")
            or (began is not None and time.time() - began > _LONG_CALL_S)
        ):
            self._outage_at = now
            return False
        return self._outage_at is not None and now - self._outage_at < _RECOVERY_S


def cause_of(health: Health, source: SourceState | None, before: SourceState | None) -> str:
    """Return the cause of a stall as text, from the state of Kafka, of the walsender and of this process.

    The same cause always has the same text. `source` is the newest state of the source, `before` the one before; None
    if PostgreSQL did not answer.
    """
    if health.state in ("starting", "retrying"):
        fill = health.fill
        if fill is not None:
            return f'topic "{fill.topic}" is created again, and Kafka does not accept the records that fill it'
        if health.error is not None:
            return f"restarting after {health.error.code}: {health.error.message}"
        made = source is not None and source.slot is not None and source.slot.confirmed_flush_lsn > 0
        if source is not None and source.oldest is not None and not made:
            return f"starting; the slot cannot be created before the end of {source.oldest}"
        return "starting"
    if health.kafka_error is not None:
        return health.kafka_error
    began = health.committing_since
    if began is not None and time.time() - began > _LONG_CALL_S:
        return f"Kafka has not answered the commit begun at {datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M:%SZ}"
    if source is None:
        return health.source_error or "PostgreSQL has not been queried yet"
    if source.slot is None or source.slot.active_pid is None:
        return "no process reads the slot"
    if source.sent_lsn is not None and before is not None and source.sent_lsn != before.sent_lsn:
        return "reading: WAL arrives, but no new transaction has ended"
    wait = (source.wait_event or "").casefold()
    if wait == _SEND_WAIT:
        return "the walsender waits for this process to read"
    if wait in _IDLE_WAITS:
        return "all WAL has been sent to this process, which has committed nothing to Kafka since"
    return f"a large transaction is being decoded by the walsender (process {source.slot.active_pid})"
