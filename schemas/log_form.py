"""Log format of the daemon and the Spark jobs: time, level, event and its values.

Readable text on a terminal, otherwise one JSON object per line.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final, TextIO

import structlog

from tailrace.schemas.config.secret import without_remembered
from tailrace.schemas.errors import TailraceError

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
"""The levels of `log.level`."""

SHARED: Final[tuple[structlog.types.Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
"""Processors of every log record, for both formats."""

_EXTRA: Final = ("kind", "client", "lines")
"""Additional keys of `sinks.kafka.client_log`."""


def renderers(*, terminal: bool) -> list[structlog.types.Processor]:
    """Return the processors that render a record as text."""
    if terminal:
        # the default form of a traceback shows local variables, and with them secrets, if rich is installed
        plain = structlog.dev.plain_traceback
        colors = not os.environ.get("NO_COLOR")
        return [_error_below, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def foreign_renderers(*, terminal: bool) -> list[structlog.types.Processor]:
    """Return the processors that render a record of another library as text, without secrets."""
    return [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        _hide_secrets,
        *renderers(terminal=terminal),
    ]


def _hide_secrets(_: Any, __: str, record: structlog.types.EventDict) -> structlog.types.EventDict:
    return {name: without_remembered(value) if isinstance(value, str) else value for name, value in record.items()}


def library_handler(stream: TextIO) -> logging.Handler:
    """Return a handler that writes records of libraries that use the `logging` module in the same format."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*SHARED, structlog.stdlib.ExtraAdder(_EXTRA)],
            processors=foreign_renderers(terminal=stream.isatty()),
        )
    )
    return handler


def _error_below(_: Any, __: str, record: structlog.types.EventDict) -> structlog.types.EventDict:
    """Print a multi-line error as lines, in the place of a stack trace, instead of as a quoted string."""
    if isinstance(error := record.get("error"), str) and "\n" in error and "exception" not in record:
        record["exception"] = record.pop("error")
    return record


def rendered(level: str, values: dict[str, Any], *, terminal: bool) -> str:
    """Return one record as text, without a logger; `values` includes its `event`."""
    record: Any = dict(values)
    for process in (*SHARED, *renderers(terminal=terminal)):
        record = process(None, level, record)
    return str(record)


def failure(error: TailraceError, *, terminal: bool) -> str:
    """Return a fatal error as text: its three lines on a terminal, else a record with these as fields."""
    if terminal:
        return str(error)
    fields = {"detail": error.detail, "hint": error.hint}
    values = {"code": error.code, **{name: text for name, text in fields.items() if text}, "event": error.message}
    return rendered("error", values, terminal=False)
