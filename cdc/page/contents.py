"""The contents of the status page, as values: computed from the status, the daemon's health and its history. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tailrace.cdc.check.finding import Severity
from tailrace.cdc.health.health import Health, PastError
from tailrace.cdc.operations.quantities import bytes_text, duration_text, lag_text, verified_text
from tailrace.cdc.operations.status import Status
from tailrace.cdc.operations.table_states import TableInfo
from tailrace.cdc.operations.table_waits import sentence
from tailrace.cdc.page.attention import Problem, named_error, problems
from tailrace.cdc.page.charts import Chart
from tailrace.cdc.page.checks import Checked
from tailrace.cdc.page.history import History, Sample
from tailrace.schemas.config.model import Config
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import PositionRecord
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import candidates
from tailrace.snapshot.progress import TableProgress, seconds_left

MOST_TABLES: Final = 200
"""Maximum number of tables on the page: parked ones first, then those that changed last."""

MOST_DEAD: Final = 10
"""Maximum number of tables in the list of dead letters: those with the newest ones."""

MOST_FINDINGS: Final = 100
"""Maximum number of findings on the page: those that stop a start first."""

UNKNOWN: Final = "unknown"
_SEVERITY: Final = {
    Severity.STOP: ("bad", "stops a start"),
    Severity.WARN: ("warn", "warning"),
    Severity.NOTE: ("off", "note"),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A station of the path. `field` is the position as a JSON pointer into `tailrace status --json`."""

    title: str
    name: str
    tone: str
    state: str
    position: str
    field: str
    rate: str
    lag: str


@dataclass(frozen=True, slots=True)
class SlotRow:
    """The slot's WAL against its limit; `share` is the used part of the limit, None without a limit."""

    retained: str
    limit: str
    share: float | None
    wal_status: str
    full: str
    tone: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """A captured table. `changes` are the records written since the daemon's start.

    The remedy of a parked table is among the problems; `hint` is that of another state.
    """

    name: str
    state: str
    tone: str
    changes: int
    last_change: str
    code: str | None
    error: str | None
    hint: str | None


@dataclass(frozen=True, slots=True)
class ViewRow:
    """A view, and why it does not advance; the remedy is among the problems."""

    name: str
    target: str
    state: str
    tone: str
    lsn: str
    lag: str
    generation: str
    code: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Bar:
    """A running read of a table."""

    table: str
    percent: float
    text: str


@dataclass(frozen=True, slots=True)
class DeadRow:
    """Dead letters of a table, and when the newest one was written."""

    table: str
    changes: int
    last: str


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """All dead letters, those of each table, and the number of those that are not counted by table."""

    changes: int
    topic: str
    tables: Sequence[DeadRow]
    uncounted: int
    more_tables: int
    diverts: bool


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """An error of the past."""

    at: str
    code: str
    message: str
    times: int


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding of the check: the part that was checked, the present state, the remedy in words, lines to paste."""

    code: str
    tone: str
    severity: str
    object: str
    seen: str
    wanted: str
    paste: str


@dataclass(frozen=True, slots=True)
class CheckRows:
    """The newest check: its time and duration, its result in words, its findings, and the number of those left out."""

    at: str
    seconds: str
    tone: str
    result: str
    findings: Sequence[FindingRow]
    more: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The whole page. `status` is the same as `tailrace status --json` prints; None before it was read.

    `check` is None before the first check has ended.
    """

    slot: str
    prefix: str
    version: str
    state: str
    tone: str
    as_of: str
    status: Mapping[str, Any] | None
    problems: Sequence[Problem]
    path: Sequence[Stage]
    wal: SlotRow | None
    charts: Sequence[Chart]
    bars: Sequence[Bar]
    views: Sequence[ViewRow]
    tables: Sequence[TableRow]
    more_tables: int
    dead: DeadLetters
    check: CheckRows | None
    errors: Sequence[ErrorRow]


@dataclass(frozen=True, slots=True)
class Known:
    """What the page is made of: the newest status with its time, tables' states and check, the daemon's health."""

    health: Health
    history: History
    status: Status | None
    status_at: float
    tables: Sequence[TableInfo]
    checked: Checked | None = None


def contents(config: Config, known: Known, charts: Sequence[Chart], version: str, now: float) -> Contents:
    """Return the page's contents at `now` (seconds since 1970)."""
    health, status = known.health, known.status
    found = problems(config, health, status)
    tables = _tables(config, health, known.tables, now)
    tone, state = _state(health, status, found)
    return Contents(
        config.source.slot,
        config.kafka.prefix,
        version,
        state,
        tone,
        _clock(known.status_at) if status else "",
        None if status is None else status.to_dict(),
        found,
        _path(config, known),
        None if status is None else _wal(status, health),
        charts,
        _bars(health, now),
        [] if status is None else _views(status),
        tables[:MOST_TABLES],
        max(0, len(tables) - MOST_TABLES),
        _dead(config, health.record),
        None if known.checked is None else _check(known.checked),
        [_past(each) for each in reversed(health.past_errors.copy())],
    )


def _state(health: Health, status: Status | None, found: Sequence[Problem]) -> tuple[str, str]:
    if health.state == "standby":
        return "off", "standby"
    bad = [each for each in found if each.tone == "bad"]
    if bad:
        return "bad", "1 problem" if len(bad) == 1 else f"{len(bad)} problems"
    if found:
        return "warn", "1 warning" if len(found) == 1 else f"{len(found)} warnings"
    if status is None or health.state in ("starting", "copying"):
        return "off", health.state
    return "ok", "all is well"


def _path(config: Config, known: Known) -> list[Stage]:
    health, status, history = known.health, known.status, known.history
    source = status.source if status else None
    slot = source.slot if source else None
    topics = status.topics if status else None
    wal_lsn = source.wal_lsn if source else None
    sent_lsn = health.source.sent_lsn if health.source else None
    down = bool(source and source.error) or health.source_error is not None
    broken = bool(topics and topics.error) or health.kafka_error is not None
    at_work = health.state in ("streaming", "copying")
    return [
        Stage(
            "Source",
            "PostgreSQL",
            "bad" if down else "ok" if source else "off",
            "down" if down else "writes WAL" if source else "not asked yet",
            _lsn(wal_lsn),
            "/source/wal_lsn",
            _per_second(history.rate(lambda each: each.wal_lsn), bytes_text),
            "",
        ),
        Stage(
            "Slot",
            config.source.slot,
            "bad" if slot is None and source and not down else "ok" if slot and slot.active_pid else "warn",
            "missing" if slot is None and source and not down else "read" if slot and slot.active_pid else "not read",
            _lsn(slot.confirmed_flush_lsn if slot else None),
            "/source/slot/confirmed_flush_lsn",
            _per_second(history.rate(lambda each: each.confirmed_lsn), bytes_text),
            _gap(wal_lsn, slot.confirmed_flush_lsn if slot else None),
        ),
        Stage(
            "Daemon",
            f"process {status.daemon.pid}" if status and status.daemon.pid else "this process",
            "ok" if at_work else "off" if health.state == "standby" else "warn",
            health.state,
            _lsn(sent_lsn),
            "",
            _per_second(history.rate(lambda each: each.transactions), lambda n: f"{_short(n)} commits"),
            _gap(health.source.wal_lsn if health.source else None, sent_lsn),
        ),
        Stage(
            "Topics",
            f"{config.kafka.prefix}.*",
            "bad" if broken else "ok" if topics else "off",
            "down" if broken else "written" if topics else "not asked yet",
            _lsn(topics.flushed_lsn if topics else None),
            "/topics/flushed_lsn",
            _per_second(history.rate(lambda each: each.records), lambda n: f"{_short(n)} records"),
            lag_text(topics.lag_bytes, topics.lag_seconds) if topics else UNKNOWN,
        ),
        _views_stage(status, history),
    ]


def _views_stage(status: Status | None, history: History) -> Stage:
    views = status.views if status else ()
    if not views:
        return Stage("Views", "none declared" if status else "", "off", "", "", "", "", "")
    parked = [view for view in views if view.is_parked]
    dead = any(view.is_abandoned for view in views)
    lags = [view.lag_seconds for view in views]
    known = [lag for lag in lags if lag is not None]
    lag = lag_text(None, max(known)) if known else UNKNOWN
    maintained = "maintained" if len(known) == len(lags) else "not all maintained"
    return Stage(
        "Views",
        "1 view" if len(views) == 1 else f"{len(views)} views",
        "bad" if parked or dead else "ok" if len(known) == len(lags) else "warn",
        f"{len(parked)} parked" if parked else "not followed" if dead else maintained,
        _lsn(oldest_view(status)),
        "",
        _per_second(history.rate(lambda each: each.views_lsn), bytes_text),
        lag,
    )


def oldest_view(status: Status | None) -> int | None:
    """Return the LSN of the view that is furthest back, of those that have one."""
    found = [view.flushed_lsn for view in status.views] if status else []
    return min((lsn for lsn in found if lsn is not None), default=None)


def _wal(status: Status, health: Health) -> SlotRow | None:
    source = status.source
    slot, retained = source.slot, source.retained_bytes
    if slot is None or retained is None:
        return None
    status_text = slot.wal_status or UNKNOWN
    if slot.safe_wal_size is None:
        never = "never: max_slot_wal_keep_size is not set"
        return SlotRow(bytes_text(retained), "no limit", None, status_text, never, "ok")
    limit = retained + max(0, slot.safe_wal_size)
    share = min(1.0, retained / limit) if limit else 1.0
    left_s = status.seconds_to_full
    return SlotRow(
        bytes_text(retained),
        bytes_text(limit),
        share,
        status_text,
        f"{duration_text(left_s)} without a daemon" if left_s is not None else UNKNOWN,
        "bad" if slot.wal_status in ("unreserved", "lost") or share >= 0.9 else "warn" if share >= 0.5 else "ok",
    )


def _bars(health: Health, now: float) -> list[Bar]:
    reads = [each for each in dict(health.reads).values() if each.chunks and not each.done]
    return [_bar(each, now) for each in sorted(reads, key=lambda each: each.table)]


def _bar(read: TableProgress, now: float) -> Bar:
    share = read.size_done / read.size if read.size else 0.0
    rate, left_s = read.rows_per_s(int(now * 1000)), seconds_left([read], int(now * 1000))
    rest = "" if left_s is None else f", {_age(left_s)} left"
    return Bar(
        read.table,
        round(100 * share, 1),
        f"{share:.0%}: {bytes_text(read.size_done)} of {bytes_text(read.size)}, {read.rows:,} rows,"
        f" {_short(rate)} rows/s{rest}",
    )


def _views(status: Status) -> list[ViewRow]:
    rows = []
    for view in status.views:
        code, error, _ = named_error(view.error, view.name)
        waits = sentence(view.waits_for)
        parked, begun = view.is_parked, view.flushed_lsn is not None
        state = "parked" if parked else "waits" if waits or view.only_waits else "maintained" if begun else "not begun"
        if view.verified is not None:
            state += f", {verified_text(view.verified.keys, view.verified.seconds)}"
        rows.append(
            ViewRow(
                view.name,
                view.target,
                state,
                "bad" if parked or view.differs else "warn" if waits or not begun else "ok",
                _lsn(view.flushed_lsn),
                lag_text(view.lag_bytes, view.lag_seconds),
                str(view.generation) if view.generation else "–",
                code,
                error or waits or None,
            )
        )
    return rows


def _tables(config: Config, health: Health, tables: Sequence[TableInfo], now: float) -> list[TableRow]:
    topics = Topics(config.kafka.prefix)
    ends: dict[str, float] = {}
    rows = []
    for each in tables:
        names = [topics.table(*pair) for pair in candidates(each.table)]
        changes = sum(health.records[name] for name in names)
        at = max((health.changed_at.get(name, 0.0) for name in names), default=0.0)
        ends[each.table] = at
        bad = each.code is not None and not each.left_out
        rows.append(
            TableRow(
                each.table,
                each.status,
                "bad" if bad else "ok" if each.status == "streaming" else "warn",
                changes,
                f"{_age(now - at)} ago" if at else "none since the start",
                each.code,
                each.error,
                None if bad else each.hint,
            )
        )
    return sorted(rows, key=lambda row: (row.tone != "bad", -ends[row.name], row.name))


def _dead(config: Config, record: PositionRecord | None) -> DeadLetters:
    tables = record.diverted_newest_first if record is not None else []
    return DeadLetters(
        record.diverted if record is not None else 0,
        Topics(config.kafka.prefix).dead,
        [DeadRow(table, each.changes, _clock(each.last_ms / 1000)) for table, each in tables[:MOST_DEAD]],
        record.diverted_uncounted if record is not None else 0,
        max(0, len(tables) - MOST_DEAD),
        config.source.on_table_error == "divert",
    )


def _check(checked: Checked) -> CheckRows:
    rows = [
        FindingRow(each.id, *_SEVERITY[each.severity], each.object, each.seen, each.wanted, each.paste)
        for each in checked.findings
    ]
    stops = sum(each.severity is Severity.STOP for each in checked.findings)
    warnings = sum(each.severity is Severity.WARN for each in checked.findings)
    warned = "1 warning" if warnings == 1 else f"{warnings} warnings"
    if stops:
        tone, result = "bad", f"{stops} {'finding stops' if stops == 1 else 'findings stop'} the next start, {warned}"
    else:
        tone, result = "warn" if warnings else "ok", f"nothing stops the next start, {warned}"
    more = max(0, len(rows) - MOST_FINDINGS)
    return CheckRows(_clock(checked.at), _seconds(checked.seconds), tone, result, rows[:MOST_FINDINGS], more)


def _past(error: PastError) -> ErrorRow:
    return ErrorRow(_clock(error.last_at), error.code, error.message, error.times)


def _age(seconds: float) -> str:
    return duration_text(seconds) if seconds >= 120 else f"{max(0.0, seconds):.0f} s"


def _gap(end: int | None, position: int | None) -> str:
    if end is None or position is None:
        return UNKNOWN
    return bytes_text(max(0, end - position))


def _per_second(rate: float | None, shown: Callable[[float], str]) -> str:
    return UNKNOWN if rate is None else f"{shown(rate)}/s"


def _short(number: float) -> str:
    if number < 10:
        return f"{number:.1f}".removesuffix(".0")
    return f"{number:,.0f}"


def _lsn(lsn: int | None) -> str:
    return UNKNOWN if lsn is None else format_lsn(lsn)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def throughput(sample: Sample) -> float:
    """Return the counter of which the throughput is drawn."""
    return sample.records


def charts_of(history: History, now: float, draw: Callable[..., Chart]) -> list[Chart]:
    """Draw throughput, lag and latency."""
    return [
        draw("throughput", "Throughput, records per second", history.rates(throughput, now), _short),
        draw("lag", "Lag of the topics", history.maxima(lambda each: each.lag_s, now), _seconds),
        draw("latency", "Latency, commit to Kafka", history.maxima(lambda each: each.delivery_s, now), _seconds),
    ]


def _seconds(value: float) -> str:
    if value >= 120:
        return duration_text(value)
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"
