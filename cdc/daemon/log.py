"""Logging to standard error: readable text on a terminal, otherwise one JSON object per line.

The long-running command configures it once, including libraries that use the standard `logging` module. Column values
are never logged.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from tailrace.schemas.log_form import LEVELS, SHARED, foreign_renderers, renderers

_EXTRA = ("kind", "client", "lines")
"""Additional keys of `sinks.kafka.client_log`."""


def configure(stream: TextIO = sys.stderr, level: str = "info") -> None:
    """Send all log events at `level` or above to `stream`, as text if it is a terminal, else as JSON."""
    shared, renderer = SHARED, renderers(terminal=stream.isatty())
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(_EXTRA)],
            processors=foreign_renderers(terminal=stream.isatty()),
        )
    )
    # Libraries log warnings and errors only.
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, LEVELS[level]), force=True)
