"""The lines of `tailrace status`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc.cli.output import bytes_text, duration_text, lag_text
from cdc.membership import shown
from cdc.ops.status import SourceStatus, Status, TopicsStatus, ViewStatus
from cdc.ops.table_waits import sentence
from schemas.lsn import format_lsn
from sinks.views_topic import WAITS_FOR_TABLE


def status_lines(status: Status) -> Iterator[str]:
    """Say where everything stands, one thing a line, what is wrong in words."""
    yield from _source(status.slot_name, status.source, status.seconds_to_full)
    yield from _topics(status.topics)
    if status.views:
        yield ""
        yield from view_lines(status.views)


def view_lines(views: Sequence[ViewStatus]) -> Iterator[str]:
    """Say for each view which LSN it reflects and how far that is behind."""
    yield f"{'VIEW':<24} {'TARGET':<10} {'LSN':<14} LAG"
    for view in views:
        yield _view(view)


def _source(slot_name: str, source: SourceStatus, seconds_to_full: float | None) -> Iterator[str]:
    if source.error:
        yield f"source   down: {source.error}"
        return
    yield f"source   WAL at {_lsn(source.wal_lsn)}"
    yield from _missing(source)
    slot = source.slot
    if slot is None:
        yield f'slot     "{slot_name}" does not exist yet; `tailrace run` makes it'
        return
    owner = f"read by process {slot.active_pid}" if slot.active_pid else "not read by anybody"
    yield (
        f'slot     "{slot_name}" confirmed {_lsn(slot.confirmed_flush_lsn)}, restart {_lsn(slot.restart_lsn)}, {owner}'
    )
    room = "no limit" if slot.safe_wal_size is None else f"{bytes_text(slot.safe_wal_size)} more until it is lost"
    if seconds_to_full is not None:
        room += f", that is {duration_text(seconds_to_full)} of WAL if nobody reads it"
    yield (
        f"         holds {bytes_text(source.retained_bytes or 0)} of WAL, status {slot.wal_status or 'unknown'}, {room}"
    )


def _missing(source: SourceStatus) -> Iterator[str]:
    missing = source.missing_tables
    if missing:
        names = ", ".join(shown(missing))
        yield f"missing  {len(missing)} tables match source.tables and are in no publication: {names}"
        for statement in source.missing_statements:
            yield f"         {statement}"


def _topics(topics: TopicsStatus) -> Iterator[str]:
    if topics.error:
        yield f"topics   down: {topics.error}"
        return
    if topics.flushed_lsn is None:
        yield "topics   nothing stored yet"
        return
    yield (
        f"topics   complete to {_lsn(topics.flushed_lsn)}, position {topics.position},"
        f" lag {lag_text(topics.lag_bytes, topics.lag_seconds)}"
    )
    for each in topics.reads:
        if each.table not in topics.parked_tables:
            yield f"         incomplete: {each}"
    for name, code in topics.parked_tables.items():
        if code:
            yield f"         PARKED: {name} ({code}), its changes are not written; why: tailrace table list"
    if topics.diverted:
        yield f"         {topics.diverted} changes could not be stored exactly and are in the dead-letter topic"
    if topics.open_transaction:
        yield f"         in the middle of transaction {topics.open_transaction}"


def _view(view: ViewStatus) -> str:
    waits = sentence(view.waits_for)
    if view.flushed_lsn is None:
        first = _first_line(view.error) if view.error else waits
        if view.error and WAITS_FOR_TABLE not in first:
            state = f"down: {first}"
        else:
            state = f"nothing applied yet{first and ', '}{first}"
        return f"{view.name:<24} {view.target:<10} {'-':<14} {state}"
    failed = f"  stopped: {_first_line(view.error)}" if view.error else waits and f"  {waits}"
    lag = lag_text(view.lag_bytes, view.lag_seconds)
    begins = "" if view.history_from_lsn is None else f"  from {_lsn(view.history_from_lsn)}"
    return f"{view.name:<24} {view.target:<10} {_lsn(view.flushed_lsn):<14} {lag}{begins}{failed}"


def _first_line(error: str) -> str:
    """Return an error's code and message; `tailrace views status VIEW` shows the whole of it."""
    return " ".join(error.partition("\n")[0].removeprefix("ERROR").split())


def _lsn(lsn: int | None) -> str:
    return "unknown" if lsn is None else format_lsn(lsn)
