"""Logging to standard error: readable text on a terminal, otherwise one JSON object per line.

The long-running command configures it once, including libraries that use the standard `logging` module. Column values
are never logged.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from tailrace.schemas.log_form import LEVELS, SHARED, library_handler, renderers


def configure(stream: TextIO = sys.stderr, level: str = "info") -> None:
    """Send all log events at `level` or above to `stream`, as text if it is a terminal, else as JSON."""
    structlog.configure(
        processors=[*SHARED, *renderers(terminal=stream.isatty())],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    # Libraries log warnings and errors only.
    logging.basicConfig(handlers=[library_handler(stream)], level=max(logging.WARNING, LEVELS[level]), force=True)
