"""Status of the pipeline: daemon, source WAL, slot, topics, and the applied state of each view.

A server that is down is reported in the status, not raised as an error. `schemas.lag` defines lag.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from tailrace.cdc.health.forecast import seconds_to_full
from tailrace.cdc.operations.table_waits import TableWait, incomplete_tables, waited_for
from tailrace.cdc.postgres.slot import Slot
from tailrace.schemas.config.model import Config, View
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.error_codes.entry import Retry
from tailrace.schemas.errors import FoundError, SinkError, SourceError
from tailrace.schemas.lag import age, lacking, missing_since
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.daemon import DaemonRecord
from tailrace.schemas.records.position import Cut, PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import split_name
from tailrace.sinks.control.views_topic import WAITS_FOR_TABLE, ViewRecord
from tailrace.sinks.target.follower import Follower

_PRESENT_S: Final = 60.0
_PASSING: Final = frozenset(code for code, entry in CODES.items() if entry.retry is Retry.ROUND)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """State of PostgreSQL and of our slot; `slot` is None before the first start of the daemon.

    `wal_bytes_per_s` is the mean since the server's statistics were reset. `reader` is the host that reads the slot, if
    over TCP. `missing_tables` match ``source.tables`` and are in no publication; `missing_statements` publish them.
    `captures_any` is false if no published table matches, for example after ALTER SCHEMA RENAME.
    """

    error: str | None = None
    wal_lsn: int | None = None
    slot: Slot | None = None
    wal_bytes_per_s: float | None = None
    reader: str | None = None
    captures_any: bool = True
    missing_tables: tuple[str, ...] = ()
    missing_statements: tuple[str, ...] = ()

    @property
    def retained_bytes(self) -> int | None:
        """Bytes of WAL that the server retains for the slot."""
        return None if self.wal_lsn is None or self.slot is None else self.wal_lsn - self.slot.restart_lsn


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """Whether a daemon runs (None if PostgreSQL does not answer), and its recorded state, if any.

    `state` is running, retrying, stopped, failed or killed (no end recorded). `since` is when it entered that state, in
    UTC; for a killed one, when it entered the last state that it recorded.
    """

    running: bool | None = None
    state: str | None = None
    since: str | None = None
    host: str | None = None
    pid: int | None = None
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class DivertedStatus:
    """Number of a table's dead letters, and the time of the newest one, in UTC."""

    changes: int
    last_at: str


@dataclass(frozen=True, slots=True)
class TopicsStatus:
    """State of the topics: Kafka holds all changes committed before `flushed_lsn`.

    `is_begun`: changes have been read from the slot; before that, the position is only that of the first start.
    `diverted` of them are dead letters; `diverted_tables` has those of each table, newest first, and
    `diverted_uncounted` is the number of those that are not counted by table. `lag_bytes` is 0 when no change is
    missing. `unread_bytes` is all WAL past `flushed_lsn`, most of which may contain no captured change.
    `stored_seconds` is the age of the newest position in Kafka. `reads` has the progress of each of the
    `incomplete_tables`. `parked_tables` has the error code of each parked table, empty for one that is left out.
    `unpublished_tables` has, for each incomplete table of which changes are not published, the statements that publish
    them.
    """

    error: str | None = None
    position: str | None = None
    flushed_lsn: int | None = None
    is_begun: bool = False
    incomplete_tables: tuple[str, ...] = ()
    open_transaction: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    unread_bytes: int | None = None
    stored_seconds: float | None = None
    diverted: int = 0
    diverted_tables: dict[str, DivertedStatus] = field(default_factory=dict)
    diverted_uncounted: int = 0
    parked_tables: dict[str, str] = field(default_factory=dict)
    reads: tuple[TableWait, ...] = ()
    unpublished_tables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifiedStatus:
    """Result of the newest comparison of a view with the topics by `[verify]`: keys that differed `seconds` ago."""

    at: str
    seconds: float
    verified_lsn: int
    keys: int


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """State of a view. It equals the database as of `flushed_lsn`, which is None before the first batch.

    A history or a log begins at `history_from_lsn`. The view does not advance until the tables in `waits_for` are
    complete. `follower` is the process that follows it, or did, as far as this host knows.
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
    follower: Follower | None = None
    verified: VerifiedStatus | None = None

    @property
    def only_waits(self) -> bool:
        """Whether the error says that the view waits for what comes by itself, such as tables that are being read."""
        code = re.match(r"ERROR\s+(TR-\d{3})", self.error or "")
        return code is not None and code[1] in _PASSING

    @property
    def needs_a_person(self) -> bool:
        """Whether the view is parked or abandoned, or has rows that differ from the topics."""
        return self.is_parked or self.is_abandoned or self.differs

    @property
    def differs(self) -> bool:
        """Whether the newest comparison with the topics has found rows that differ."""
        return self.verified is not None and self.verified.keys > 0

    @property
    def is_parked(self) -> bool:
        """Whether it does not advance, for another reason than waiting."""
        return bool(self.error) and not self.only_waits

    @property
    def is_abandoned(self) -> bool:
        """Whether the process that followed it has ended, and nobody has stopped it."""
        return self.follower is not None and self.follower.needs_a_person


def not_followed(views: Sequence[ViewStatus]) -> dict[str, list[str]]:
    """Return the views that nobody follows, as far as this host knows, by what has become of their process."""
    found: dict[str, list[str]] = {}
    for view in views:
        if view.follower is not None and (why := view.follower.not_followed) is not None:
            found.setdefault(why, []).append(view.name)
    return found


@dataclass(frozen=True, slots=True)
class Status:
    """The whole pipeline at one moment."""

    slot_name: str
    source: SourceStatus
    topics: TopicsStatus
    views: tuple[ViewStatus, ...]
    daemon: DaemonStatus = DaemonStatus()

    @property
    def seconds_to_full(self) -> float | None:
        """Seconds until the slot reaches its limit if it does not move; None without a limit.

        If the newest position is a minute old or more, the rate is that of the WAL since then: the present rate while
        the daemon is down. Otherwise it is the mean rate.
        """
        rate, topics, found = self.source.wal_bytes_per_s, self.topics, self.source.slot
        if topics.unread_bytes is not None and (topics.stored_seconds or 0.0) >= _PRESENT_S:
            rate = topics.unread_bytes / (topics.stored_seconds or _PRESENT_S)
        return None if found is None else seconds_to_full(found.safe_wal_size, rate)

    @property
    def lacks_slot(self) -> bool:
        """Whether the slot is missing although changes have been read from it: those since then may be lost."""
        return self.source.error is None and self.source.slot is None and self.topics.is_begun

    @property
    def exit_code(self) -> int:
        """0 if all is well, 4 if PostgreSQL cannot be reached, 5 if Kafka cannot, 7 if a person is needed.

        A server that is down comes first: it may be the cause of the rest, or hide it.
        """
        return self._outage or (FoundError.exit_code if self._needs_a_person else 0)

    def views_exit_code(self, names: Collection[str]) -> int:
        """Return the exit code for the status of these views only: 0, 4, 5 or 7 as above."""
        wrong = any(view.needs_a_person for view in self.views if view.name in names)
        return self._outage or (FoundError.exit_code if wrong else 0)

    @property
    def _outage(self) -> int:
        if self.source.error is not None:
            return SourceError.exit_code
        return 0 if self.topics.error is None else SinkError.exit_code

    @property
    def _needs_a_person(self) -> bool:
        """Whether something will not pass by itself. A daemon that a person has stopped is no such thing."""
        slot = self.source.slot
        return (
            (self.daemon.running is False and self.daemon.state in ("failed", "killed"))
            or (slot is not None and slot.is_lost)
            or self.lacks_slot
            or not self.source.captures_any
            or any(self.topics.parked_tables.values())
            or any(view.needs_a_person for view in self.views)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: LSNs in PostgreSQL's notation, sizes in bytes, times in seconds."""
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
    positions: Sequence[tuple[PositionRecord, int]],
    kafka_error: str | None,
    records: dict[str, ViewRecord],
    views_error: str | None,
    now: float,
    shares: Mapping[str, float] | None = None,
    *,
    lag_s: float | None = None,
    daemon: DaemonStatus = DaemonStatus(),
    remedies: Mapping[str, str] = MappingProxyType({}),
    followers: Mapping[str, Follower] = MappingProxyType({}),
) -> Status:
    """Assemble the status from the data that was read.

    `positions` are the last position records, in order, with their Kafka timestamps (ms). `lag_s` is the lag of the
    topics, None if unknown. `shares` is the fraction of each table, of those being read, that has been read.
    `remedies` has the statements that publish the changes of each unpublished table. `followers` has the process of
    each view that this host knows.
    """
    record, stored_ms = positions[-1] if positions else (None, 0)
    flushed = record.here.flushed_lsn if record else None
    behind = _behind(source.wal_lsn, flushed)
    incomplete = record.incomplete_tables if record else ()
    topics = TopicsStatus(
        error=kafka_error,
        position=str(record.here.position) if record else None,
        flushed_lsn=flushed,
        is_begun=record is not None and record.is_begun,
        incomplete_tables=incomplete,
        parked_tables=record.parked if record else {},
        open_transaction=record.open if record else None,
        lag_bytes=_lag_bytes(behind, lag_s),
        lag_seconds=lag_s,
        unread_bytes=behind,
        stored_seconds=age(stored_ms / 1000, now) if record else None,
        **_diverted(record),
        reads=incomplete_tables(record, shares or {}, remedies),
        unpublished_tables={name: remedy for name, remedy in remedies.items() if name in incomplete},
    )
    waits = {name: waited_for(config, name, records.get(name), topics.reads) for name in config.views}
    views = tuple(
        _view(config, name, records.get(name), views_error, source.wal_lsn, topics, positions, now, waits[name])
        for name in config.views
    )
    views = tuple(replace(view, follower=followers.get(view.name)) for view in views)
    return Status(config.source.slot, source, topics, views, daemon)


def _diverted(record: PositionRecord | None) -> dict[str, Any]:
    """Return the part of the topics' status that is about dead letters."""
    if record is None:
        return {}
    tables = {table: DivertedStatus(each.changes, _utc(each.last_ms)) for table, each in record.diverted_newest_first}
    return {
        "diverted": record.diverted,
        "diverted_tables": tables,
        "diverted_uncounted": record.diverted_uncounted,
    }


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def daemon_status(
    source: SourceStatus | None, record: DaemonRecord | None, answer: Mapping[str, Any] | None
) -> DaemonStatus:
    """Return the daemon's status from the slot, its record and, if it runs on this host, its HTTP answer."""
    running = None if source is None else source.slot is not None and source.slot.active_pid is not None
    running = running or (True if answer is not None else running)
    if record is None:
        near = socket.gethostname() if answer is not None else None
        pid = answer["pid"] if answer is not None else None
        return DaemonStatus(running, host=near or (source.reader if source else None), pid=pid)
    state: str = record.state
    if running is False and state in ("running", "retrying") and answer is None:
        state = "killed"
    elif running and state in ("stopped", "failed"):
        # another daemon has started since and has not written its record yet
        return DaemonStatus(running, "running", host=source.reader if source else None)
    return DaemonStatus(
        running,
        state,
        _utc(record.since_ms),
        record.host,
        record.pid,
        record.code,
        record.message,
    )


def _view(
    config: Config,
    name: str,
    record: ViewRecord | None,
    error: str | None,
    wal_lsn: int | None,
    topics: TopicsStatus,
    positions: Sequence[tuple[PositionRecord, int]],
    now: float,
    waits: tuple[TableWait, ...],
) -> ViewStatus:
    view = config.views[name]
    if record is None:
        return ViewStatus(name, view.target, error, waits_for=waits)
    lag_s: float | None = None
    if record.cut is not None and positions:
        read = {*record.cut.offsets, *_topic_of(config, view)}
        lag_s = _view_lag(record.cut, read, positions, topics.lag_seconds, record.current_ms, now)
    flushed = record.cut.flushed_lsn if record.cut else None
    return ViewStatus(
        name,
        view.target,
        error or _stopped_by(record, waits),
        record.generation,
        flushed,
        _lag_bytes(_behind(wal_lsn, flushed), lag_s),
        lag_s,
        record.history_from.lsn if record.history_from else None,
        waits,
        verified=_verified(record, now),
    )


def _verified(record: ViewRecord, now: float) -> VerifiedStatus | None:
    """Return the result of the newest comparison, if it is of the live generation."""
    found = record.verified
    if found is None or found.generation != record.generation:
        return None
    at = _utc(found.at_ms)
    return VerifiedStatus(at, round(max(0.0, now - found.at_ms / 1000), 1), found.lsn, found.keys)


def _topic_of(config: Config, view: View) -> tuple[str, ...]:
    """Return the topic of a single-table view; the topics of a query view are in its cut."""
    if view.table is None:
        return ()
    return (Topics(config.kafka.prefix).table(*split_name(view.table)),)


def _view_lag(
    cut: Cut,
    topics: Collection[str],
    positions: Sequence[tuple[PositionRecord, int]],
    topics_lag_s: float | None,
    current_ms: int,
    now: float,
) -> float | None:
    """Return the lag of a view at `cut`: that of the topics if the view has all of their records.

    Otherwise it counts from the first position record whose cut has a missing record. If that is not among `positions`,
    it counts from the time at which the view was last up to date (`current_ms`), which is slightly earlier.
    """
    if not lacking(cut, positions[-1][0].here, topics):
        return topics_lag_s
    n = next((n for n, (each, _) in enumerate(positions) if lacking(cut, each.here, topics)), 0)
    first, taken_ms = positions[n]
    if n == 0:
        return age((min(current_ms, taken_ms) or taken_ms) / 1000, now)
    return age(missing_since(cut, first.here, taken_ms / 1000), now)


def _stopped_by(record: ViewRecord, waits: tuple[TableWait, ...]) -> str | None:
    """Return the record's error; None if it reports that the view waits for tables and these are known."""
    return None if waits and WAITS_FOR_TABLE in (record.error or "").partition("\n")[0] else record.error


def _behind(wal_lsn: int | None, flushed_lsn: int | None) -> int | None:
    return None if wal_lsn is None or flushed_lsn is None else max(0, wal_lsn - flushed_lsn)


def _lag_bytes(behind: int | None, lag_s: float | None) -> int | None:
    """Return the bytes of missing WAL: 0 if no change is missing, None if that is unknown."""
    return None if lag_s is None else behind if lag_s else 0
