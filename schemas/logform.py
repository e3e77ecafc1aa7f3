"""The form of the log, the same for the daemon and the Spark jobs: time, level, event, and what belongs to it.

For people on a terminal, else a JSON object a line.
"""

from __future__ import annotations

from typing import Any, Final

import structlog

SHARED: Final[tuple[structlog.types.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
"""What every record goes through, whoever reads it."""


def renderers(*, terminal: bool) -> list[structlog.types.Processor]:
    """Return what turns a record into text."""
    if terminal:
        return [structlog.dev.ConsoleRenderer()]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def rendered(level: str, values: dict[str, Any], *, terminal: bool) -> str:
    """Return one record as text, without a logger; `values` has its `event`."""
    record: Any = dict(values)
    for process in (*SHARED, *renderers(terminal=terminal)):
        record = process(None, level, record)
    return str(record)
