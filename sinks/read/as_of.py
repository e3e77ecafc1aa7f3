"""Read a table's past state from its view of shape `history`, as of an LSN or a time, without Spark.

In SQL it is ``valid_from_lsn < L AND (valid_to_lsn IS NULL OR valid_to_lsn >= L)`` (what was committed before L), or
``valid_from <= T AND (valid_to IS NULL OR valid_to > T)``. In addition, these functions raise an error for an LSN or
time that the view does not cover. As of an LSN the answer is exact; as of a time it depends on the source's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError, RebuildError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.shapes import SHAPES
from tailrace.sinks.control.views_topic import ViewRecord, read_views
from tailrace.sinks.iceberg.reader import StoredView, stored_view
from tailrace.sinks.target.protocol import FROM_LSN, TO_LSN, VALID_FROM, VALID_TO, VALIDITY, HistoryFrom


def read_as_of_lsn(config: Config, name: str, lsn: int) -> Iterator[dict[str, Any]]:
    """Return the table's rows with exactly the transactions that were committed before `lsn`.

    Values have the form of `sinks.read.views`. StateError for an LSN before the history begins (TR-561), or after the
    applied state (TR-562).
    """
    stored, begins, _ = _open(config, name)
    if lsn < begins.lsn:
        raise _too_early(name, format_lsn(lsn), begins)
    if lsn > stored.cut.flushed_lsn:
        raise _too_late(name, format_lsn(lsn), format_lsn(stored.cut.flushed_lsn))
    return stored.rows(f"{FROM_LSN} < {lsn} AND ({TO_LSN} IS NULL OR {TO_LSN} >= {lsn})", VALIDITY)


def read_as_of_time(config: Config, name: str, at: datetime) -> Iterator[dict[str, Any]]:
    """Return the table's rows as of a time, by the commit times of the source's clock.

    Limits are checked in milliseconds. `at` must have a time zone. StateError for a time before the history begins
    (TR-561), or after the applied state (TR-562).
    """
    stored, begins, record = _open(config, name)
    known_ms = max(stored.cut.commit_ts_us // 1000, record.current_ms if record else 0)
    at_ms = int(at.timestamp() * 1000)
    if at_ms < begins.at_ms:
        raise _too_early(name, at.isoformat(), begins)
    if at_ms > known_ms:
        raise _too_late(name, at.isoformat(), _time(known_ms))
    text = at.astimezone(UTC).isoformat(timespec="microseconds")
    return stored.rows(f"{VALID_FROM} <= '{text}' AND ({VALID_TO} IS NULL OR {VALID_TO} > '{text}')", VALIDITY)


def _open(config: Config, name: str) -> tuple[StoredView, HistoryFrom, ViewRecord | None]:
    view = config.views.get(name)
    if view is None or not SHAPES[view.shape].has_versions or config.warehouse is None:
        raise ConfigError(
            "TR-567",
            f'there is no view "{name}" of shape "history"',
            detail="Other views keep the present state only, or changes one by one.",
            hint=f'[views.{name}] table = "schema.table", shape = "history"',
        )
    record = read_views(config.kafka, Topics(config.kafka.prefix)).get(name)
    stored = stored_view(config.warehouse, name, record)
    if stored.history_from is None:
        raise RebuildError("TR-548", f'view "{name}" was built of another shape', view=name)
    return stored, stored.history_from, record


def _too_early(name: str, wanted: str, begins: HistoryFrom) -> StateError:
    return StateError(
        "TR-561",
        f'view "{name}" does not go back to {wanted}',
        detail=f"Its history begins at {format_lsn(begins.lsn)}, {_time(begins.at_ms)}.",
        hint="What came before that is on no topic any more; ask for a later state.",
    )


def _too_late(name: str, wanted: str, there: str) -> StateError:
    return StateError(
        "TR-562",
        f'view "{name}" has not come to {wanted} yet',
        detail=f"It stands at {there}.",
        hint="tailrace views status  # `tailrace views follow` brings it forward",
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
