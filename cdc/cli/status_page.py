"""Output of `tailrace status` and `tailrace views status`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from tailrace.cdc.operations.quantities import bytes_text, duration_text, lag_text, verified_text
from tailrace.cdc.operations.status import DaemonStatus, SourceStatus, Status, TopicsStatus, ViewStatus, not_followed
from tailrace.cdc.operations.table_waits import sentence
from tailrace.cdc.postgres.membership import shown
from tailrace.schemas.lsn import format_lsn

_INDENT: Final = " " * 9
_LEAST_WIDTH: Final = 40
_MOST_DEAD: Final = 10
"""Maximum number of tables with dead letters in the text; the JSON form has all that are counted."""


def status_lines(status: Status, width: int = 80) -> Iterator[str]:
    """Yield the lines of the status: daemon, source, topics, views. Wraps at spaces, at `width`."""
    for text in (
        *_daemon(status.slot_name, status),
        *_source(status),
        *_topics(status.topics),
    ):
        # SQL statements are not wrapped, so that they can be pasted
        yield from [text] if text.endswith(";") else _wrapped(text, width)
    if status.views:
        yield ""
        yield from view_lines(status.views, width, said=status.topics.error)


def view_lines(
    views: Sequence[ViewStatus], width: int = 80, said: str | None = None, *, full: bool = False
) -> Iterator[str]:
    """Yield a table of views with LSN and lag, then their errors, except one that equals `said`.

    With `full`, the errors have their details and hints, and nothing is wrapped.
    """
    rows = [("VIEW", "TARGET", "LSN", "LAG"), *map(_view, views)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for *cells, last in rows:
        yield "  ".join([cell.ljust(size) for cell, size in zip(cells, widths, strict=True)] + [last]).rstrip()
    errors = dict.fromkeys(view.error for view in views if view.error and view.error != said)
    followers = not_followed(views)
    if (errors and not full) or followers:
        yield ""
    for line, of in followers.items():
        yield from _wrapped(f"{', '.join(of)}: {line}", width)
    for error in errors:
        of = [view.name for view in views if view.error == error]
        if full:
            yield from ("", f"{', '.join(of)}:", *error.splitlines())
            continue
        # an error that several views share, such as Kafka being down, is printed once
        yield from _wrapped(f"{', '.join(of)}: {_first_line(error)}", width)
        if "\n" in error:
            yield f"{_INDENT}full error: tailrace views status {of[0]}"


def _first_line(error: str) -> str:
    return " ".join(error.partition("\n")[0].removeprefix("ERROR").split())


def _wrapped(text: str, width: int, indent: str = _INDENT) -> list[str]:
    if len(text) <= width:
        return [text]
    return textwrap.wrap(
        text,
        max(width, _LEAST_WIDTH),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )


def _daemon(slot_name: str, status: Status) -> Iterator[str]:
    daemon, slot = status.daemon, status.source.slot
    if daemon.running is None and daemon.state is None:
        return
    where = _where(daemon)
    if daemon.running is not False:
        since = f" since {_time(daemon.since)}" if daemon.since and daemon.state == "running" else ""
        reads = "runs" if daemon.running else "unknown while PostgreSQL is down; last seen"
        yield f"daemon   {reads}{where}{since}"
        if daemon.state == "retrying":
            yield f"{_INDENT}retrying since {_time(daemon.since)}: {_error(daemon)}"
        return
    if daemon.state == "failed":
        yield f"daemon   does not run: it failed at {_time(daemon.since)}{where}"
        yield f"{_INDENT}{_error(daemon)}"
    elif slot is None and not status.lacks_slot:
        yield f'daemon   has not run yet: slot "{slot_name}" does not exist; start it: tailrace run'
    elif daemon.state == "stopped":
        yield f"daemon   does not run: it was stopped at {_time(daemon.since)}{where}"
    elif daemon.state == "killed":
        yield (
            f"daemon   does not run: it ended without reporting why (killed?); last seen{where}, running since"
            f" {_time(daemon.since)}"
        )
        if daemon.code:
            yield f"{_INDENT}last error: {_error(daemon)}"
    else:
        yield f'daemon   does not run: no process reads slot "{slot_name}"'


def _where(daemon: DaemonStatus) -> str:
    process = f" (process {daemon.pid})" if daemon.pid else ""
    return f" on {daemon.host}{process}" if daemon.host else ""


def _time(since: str | None) -> str:
    return "an unknown time" if since is None else since.replace("T", " ").replace("+00:00", " UTC")


def _error(daemon: DaemonStatus) -> str:
    return " ".join(each for each in (daemon.code, daemon.message) if each) or "no error is known"


def _source(status: Status) -> Iterator[str]:
    source, slot_name, seconds_to_full = status.source, status.slot_name, status.seconds_to_full
    if source.error:
        yield f"source   down: {source.error}"
        return
    yield f"source   WAL at {_lsn(source.wal_lsn)}"
    yield from _missing(source)
    slot = source.slot
    if status.lacks_slot:
        yield f'slot     "{slot_name}" is MISSING, but the topics have a position; what to do: tailrace explain TR-402'
        return
    if slot is None:
        may_be_lost = status.topics.error or status.daemon.code == "TR-402"
        what = "; if it did, what to do: tailrace explain TR-402" if may_be_lost else " yet; `tailrace run` creates it"
        yield f'slot     "{slot_name}" does not exist{what}'
        return
    owner = f"read by server process {slot.active_pid}" if slot.active_pid else "not read by any process"
    yield f'slot     "{slot_name}", {owner}'
    yield f"{_INDENT}confirmed {_lsn(slot.confirmed_flush_lsn)}, restart {_lsn(slot.restart_lsn)}"
    yield f"{_INDENT}holds {bytes_text(source.retained_bytes or 0)} of WAL, status {slot.wal_status or 'unknown'}"
    if slot.safe_wal_size is None:
        yield f"{_INDENT}no limit: max_slot_wal_keep_size is not set"
        return
    room = f"lost after another {bytes_text(slot.safe_wal_size)} of WAL"
    if seconds_to_full is not None:
        room += f", in about {duration_text(seconds_to_full)} if no daemon reads it"
    yield f"{_INDENT}{room}"


def _missing(source: SourceStatus) -> Iterator[str]:
    if not source.captures_any:
        yield "NOTHING is captured: no published table matches source.tables. Was a schema or a table renamed?"
    missing = source.missing_tables
    if missing:
        names = ", ".join(shown(missing))
        match = (
            "1 table matches source.tables and is"
            if len(missing) == 1
            else f"{len(missing)} tables match source.tables and are"
        )
        yield f"missing  {match} in no publication: {names}"
        for statement in source.missing_statements:
            yield f"         {statement}"


def _topics(topics: TopicsStatus) -> Iterator[str]:
    lag = lag_text(topics.lag_bytes, topics.lag_seconds)
    if topics.error:
        yield f"topics   down: {topics.error}"
        if topics.lag_seconds is not None:
            yield f"{_INDENT}lag {lag}"
        return
    if topics.flushed_lsn is None:
        yield "topics   nothing stored yet"
        return
    unread = ""
    if topics.lag_seconds is None and topics.unread_bytes:
        unread = f" ({bytes_text(topics.unread_bytes)} of WAL not read yet)"
    yield f"topics   complete to {_lsn(topics.flushed_lsn)}, lag {lag}{unread}"
    yield f"{_INDENT}position {topics.position}"
    for each in topics.reads:
        if each.table not in topics.parked_tables:
            yield f"{_INDENT}incomplete: {each}"
    for line in dict.fromkeys("\n".join(topics.unpublished_tables.values()).splitlines()):
        yield f"{_INDENT}{line.strip()}"
    for name, code in topics.parked_tables.items():
        if code:
            yield f"{_INDENT}PARKED: {name} ({code}), its changes are not written; reason: tailrace table list"
    if topics.diverted:
        yield f"{_INDENT}{topics.diverted} changes could not be stored exactly and are in the dead-letter topic"
        yield from _dead_letters(topics)
    if topics.open_transaction:
        yield f"{_INDENT}in the middle of transaction {topics.open_transaction}"


def _dead_letters(topics: TopicsStatus) -> Iterator[str]:
    for table, each in list(topics.diverted_tables.items())[:_MOST_DEAD]:
        yield f"{_INDENT}{table}: {each.changes}, the last one at {_time(each.last_at)}"
    if (more := len(topics.diverted_tables) - _MOST_DEAD) > 0:
        yield f"{_INDENT}and {more} more tables: tailrace status --json"
    if topics.diverted_uncounted:
        yield f"{_INDENT}{topics.diverted_uncounted} earlier ones are not counted by table"


def _view(view: ViewStatus) -> tuple[str, str, str, str]:
    if view.error and view.generation is None:
        return view.name, view.target, "-", "unknown"  # the topic with the views' states cannot be read
    waits = [sentence(view.waits_for)] if view.waits_for and not view.error else []
    if view.flushed_lsn is None:
        state = ["nothing applied yet"] if not view.error or view.only_waits else []
    else:
        state = [lag_text(view.lag_bytes, view.lag_seconds)]
    begins = [] if view.history_from_lsn is None else [f"from {_lsn(view.history_from_lsn)}"]
    begins += [] if view.verified is None else [verified_text(view.verified.keys, view.verified.seconds)]
    stopped = [f"{'waits' if view.only_waits else 'stopped'}, see below"] if view.error else []
    lsn = "-" if view.flushed_lsn is None else _lsn(view.flushed_lsn)
    return view.name, view.target, lsn, ", ".join(state + begins + stopped + waits)


def _lsn(lsn: int | None) -> str:
    return "unknown" if lsn is None else format_lsn(lsn)
