"""Health of the running daemon: written by its threads, read by HTTP requests.

Every attribute has one writing thread and is replaced as a whole, so no lock is needed. Nothing is updated per change.
Memory is bounded by the number of topics and of error codes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from tailrace.cdc.health.lag import LagMeter
from tailrace.cdc.health.source_state import SourceState
from tailrace.cdc.postgres.membership import Missing
from tailrace.schemas.errors import SourceError, TailraceError
from tailrace.schemas.records.layout import Parked
from tailrace.schemas.records.position import PositionRecord
from tailrace.sinks.kafka.producer import KafkaSink
from tailrace.sinks.kafka.skip_offsets import Fill
from tailrace.snapshot.progress import ReadProgress

State = Literal["starting", "copying", "streaming", "standby", "retrying"]
STATES: Final[tuple[State, ...]] = get_args(State)

_TURN_S: Final = 120.0
"""Longest normal loop iteration: a commit may wait twice 30 s for Kafka before it fails."""

_PAST_ERRORS: Final = 20
"""Maximum number of remembered errors; equal ones in a row count as one."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The time (time.time()) since when the position has not moved, and the cause as text."""

    since: float
    cause: str


@dataclass(frozen=True, slots=True)
class PastError:
    """An error that ended a session: the first and the last of `times` in a row, in seconds since 1970."""

    first_at: float
    last_at: float
    code: str
    message: str
    hint: str
    times: int = 1


class Health:
    """Health of a daemon. Its main thread writes the first attribute group, the slot monitor the second.

    `address` is that of the HTTP server, if there is one. `record` is the newest position record in Kafka,
    `committed_at` (time.time()) when this process last wrote one, `committed_once` is set by the first. `parked` are
    the tables that `record` names as parked. `fill` is set while a start fills a topic. `changed_at` has the time of
    each topic's newest records. `delivery_s` is the time from the source's commit to Kafka's, of the newest
    transaction. `past_errors` are the newest errors, oldest first. `lag` is written by both threads. `full_at` is when
    the slot reaches its limit at the recent rate. `missing` are tables that match `source.tables` and are in no
    publication. `lost_topics` have lost records.
    """

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.address: str | None = None
        self.state: State = "starting"
        self.turned_at = time.monotonic()
        self.committing_since: float | None = None
        self.sink: KafkaSink | None = None
        self.record: PositionRecord | None = None
        self.parked: Mapping[str, Parked] = {}
        self.fill: Fill | None = None
        self.committed_at: float | None = None
        self.committed_once = threading.Event()
        self.kafka_transactions = 0
        self.records: Counter[str] = Counter()
        self.sessions = 0
        self.error: TailraceError | None = None
        self.errors: Counter[str] = Counter()
        self.past_errors: deque[PastError] = deque(maxlen=_PAST_ERRORS)
        self.changed_at: dict[str, float] = {}
        self.delivery_s: float | None = None
        self.reads = ReadProgress()
        self.lag = LagMeter()

        self.source: SourceState | None = None
        self.source_error: str | None = None
        self.kafka_error: str | None = None
        self.full_at: float | None = None
        self.heartbeats = 0
        self.missing: Sequence[Missing] = ()
        self.lost_topics: Sequence[str] = ()
        self.stall: Stall | None = None

    def begin(self, sink: KafkaSink, stored: PositionRecord, wal_lsn: int) -> None:
        """Record a session that owns the slot and resumes from `stored`; the server's WAL ends at `wal_lsn`."""
        self.lag.resume(stored.here.flushed_lsn, wal_lsn)
        self.sink, self.record, self.state = sink, stored, "starting"
        self.sessions += 1

    def fills(self, fill: Fill | None) -> None:
        """Record how far a start has filled a topic, or None at the end. It is no retry any more."""
        if fill is not None:
            self.state = "starting"
        self.fill = fill

    @property
    def moved(self) -> object:
        """A value that changes whenever the position or a start advances."""
        record = self.record
        return (record and (record.here.position, record.here.flushed_lsn), self.fill)

    def streaming(self) -> None:
        """Record that the loop begins, and clear the earlier error."""
        self.turned_at = time.monotonic()
        self.state, self.error = "streaming", None

    def committed(self, record: PositionRecord) -> None:
        """Record a position record that Kafka has committed."""
        now, before = time.time(), self.record
        if record.here.commit_ts_us and (before is None or record.here.commit_ts_us > before.here.commit_ts_us):
            self.delivery_s = max(0.0, now - record.here.commit_ts_us / 1e6)
        self.record, self.committed_at = record, now
        self.changed_at.update(dict.fromkeys(record.counts, now))
        self.kafka_transactions += 1
        self.committed_once.set()
        self.records.update(record.counts)

    def failed(self, error: TailraceError) -> None:
        """Record the error that ended a session."""
        self.error, self.state = error, "retrying"
        self.errors[error.code] += 1
        now = time.time()
        newest = self.past_errors[-1] if self.past_errors else None
        if newest is not None and (newest.code, newest.message) == (error.code, error.message):
            self.past_errors[-1] = replace(newest, last_at=now, times=newest.times + 1)
        else:
            self.past_errors.append(PastError(now, now, error.code, error.message, error.hint))

    def end(self) -> None:
        """Record that the session has released its producer."""
        self.sink = self.committing_since = None

    def lag_seconds(self) -> float | None:
        """Return the lag of the topics as `schemas.lag` defines it; None while unknown or in standby.

        While the source does not answer or refuses us, nobody sees its commits, so that 0 would be a guess.
        """
        lag_s = self.lag.seconds(time.time())
        refused = self.state == "retrying" and isinstance(self.error, SourceError)
        unseen = self.source_error is not None or refused
        return None if self.state == "standby" or (lag_s == 0 and unseen) else lag_s

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the loop runs (if not, a restart helps), and the response body; outages do not count."""
        turned_s = time.monotonic() - self.turned_at
        live = self.state != "streaming" or turned_s < _TURN_S
        return live, {"live": live, "state": self.state, "loop_turned_s_ago": round(turned_s, 3)}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return whether changes flow or this is a standby, and the response body with the reason if not.

        Parked tables are in the body and do not matter otherwise, because the other tables flow.
        """
        reason = self._not_ready()
        body: dict[str, Any] = {"ready": reason is None, "state": self.state, "slot": self.slot}
        lag_s = self.lag_seconds()
        if lag_s is not None:
            body["lag_seconds"] = lag_s
        if reason is not None:
            body["reason"] = reason
        if self.stall is not None:
            body["stalled_since"] = _utc(self.stall.since)
        if self.error is not None:
            body["error"] = {"code": self.error.code, "message": self.error.message, "hint": self.error.hint}
        parked = [
            {"table": table, "code": each.code, "since": _utc(each.since_ms / 1000)}
            for table, each in sorted(self.parked.items())
            if not each.left_out
        ]
        if parked and self.state != "standby":
            body["parked_tables"] = parked
        return reason is None, body

    def _not_ready(self) -> str | None:
        if self.state == "standby":
            return None
        if self.stall is not None:
            return self.stall.cause
        fill = self.fill
        if fill is not None:
            return f'topic "{fill.topic}" is created again: {fill.done} of {fill.total} offsets are filled'
        if self.state in ("copying", "streaming"):
            lost = f"topics have lost records: {', '.join(self.lost_topics)} (TR-424)" if self.lost_topics else None
            return self.kafka_error or lost
        return self.error.message if self.error is not None else "the slot is not acquired yet"


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
