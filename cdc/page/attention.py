"""The problems that a person should know of, each with its code and remedy. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from tailrace.cdc.health.health import Health
from tailrace.cdc.operations.quantities import bytes_text, duration_text, verified_text
from tailrace.cdc.operations.status import SourceStatus, Status, not_followed
from tailrace.schemas.config.model import Config
from tailrace.schemas.error_codes import CODES

_ERROR: Final = re.compile(r"ERROR\s+(TR-\d{3})\s+(.+)")
_NEAR_FULL: Final = 0.5


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: its object, what is known of it, its code if it has one, and lines to paste that help."""

    tone: Literal["bad", "warn"]
    title: str
    text: str = ""
    code: str | None = None
    hint: str | None = None


def problems(config: Config, health: Health, status: Status | None) -> list[Problem]:
    """Return all problems, the ones that stop changes first."""
    found = [*_daemon(health, status)]
    if status is not None:
        found += [*_slot(status), *_views(status)]
    found += [*_tables(health)]
    if status is not None and status.source.missing_tables:
        names, lines = status.source.missing_tables, status.source.missing_statements
        text = f"{len(names)} in no publication: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}"
        found.append(Problem("warn", "Tables that are not captured", text, hint="\n".join(lines) or None))
    return sorted(found, key=lambda problem: problem.tone != "bad")


def named_error(error: str | None, view: str) -> tuple[str | None, str | None, str | None]:
    """Return code, message and hint of a view's error.

    The details are left out: they may quote Spark, and with it a value of a row. So is an error without a code.
    """
    if error is None:
        return None, None, None
    said = _ERROR.match(error)
    if said is None:
        first = error.partition("\n")[0]
        known = first if first.startswith(("Kafka at ", "PostgreSQL ")) else "The views job reported an error."
        return None, known, f"tailrace views status {view}"
    _, separator, hint = error.partition("\nHINT")
    return said[1], said[2].strip(), hint.strip() if separator else None


def _daemon(health: Health, status: Status | None) -> Iterator[Problem]:
    source_error = status.source.error if status is not None and status.source.error else health.source_error
    if source_error:
        yield Problem("bad", "PostgreSQL does not answer", source_error)
    kafka_error = status.topics.error if status is not None and status.topics.error else health.kafka_error
    if kafka_error:
        yield Problem("bad", "Kafka does not answer", kafka_error)
    error = health.error
    if error is not None and health.state == "retrying":
        yield Problem("bad", "The daemon is retrying", error.message, error.code, error.hint or None)
    if health.stall is not None:
        yield Problem("bad", "The position does not move", health.stall.cause)
    if (fill := health.fill) is not None:
        yield Problem("warn", "A topic is being filled", f"{fill.topic}: {fill.done} of {fill.total} offsets")
    if health.lost_topics:
        yield Problem("bad", "Topics have lost records", ", ".join(health.lost_topics), "TR-424")


def _slot(status: Status) -> Iterator[Problem]:
    source: SourceStatus = status.source
    slot = source.slot
    if status.lacks_slot:
        yield Problem("bad", "The slot is missing", f'"{status.slot_name}" was dropped', "TR-402")
    elif slot is not None and slot.is_lost:
        yield Problem("bad", "The slot is lost", f'the server has invalidated "{slot.name}"', "TR-204")
    elif slot is not None and slot.safe_wal_size is not None:
        retained = source.retained_bytes or 0
        limit = retained + max(0, slot.safe_wal_size)
        if limit and retained / limit >= _NEAR_FULL:
            left_s = status.seconds_to_full
            rest = f"; full in about {duration_text(left_s)}" if left_s is not None else ""
            text = f"{bytes_text(retained)} of {bytes_text(limit)}{rest}"
            yield Problem("bad" if retained / limit >= 0.9 else "warn", "The slot is close to its WAL limit", text)
    if not source.captures_any and source.error is None:
        yield Problem("bad", "No table is captured", "no published table matches source.tables")


def _views(status: Status) -> Iterator[Problem]:
    for view in status.views:
        # an outage is said once, above
        if view.is_parked and view.error != status.topics.error:
            code, message, hint = named_error(view.error, view.name)
            yield Problem("bad", f"View {view.name} is parked", message or "", code, hint)
        if view.verified is not None and view.differs:
            text = verified_text(view.verified.keys, view.verified.seconds)
            hint = f"tailrace verify {view.name} --all --repair"
            yield Problem("bad", f"View {view.name} differs from the topics", text, "TR-700", hint)
    for why, names in not_followed(status.views).items():
        dead = any(view.is_abandoned for view in status.views if view.name in names)
        title = f"Nobody follows {', '.join(names)}"
        yield Problem("bad" if dead else "warn", title, why, hint="tailrace views follow")


def _tables(health: Health) -> Iterator[Problem]:
    for table, parked in sorted(health.parked.items()):
        if not parked.left_out:
            yield Problem("bad", f"Table {table} is parked", parked.message, parked.code, parked.hint or None)


def has_page(code: str | None) -> bool:
    """Return whether a code is registered, so that its page exists."""
    return code in CODES
