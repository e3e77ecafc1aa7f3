"""The log: on standard error, for people on a terminal, else a JSON object a line.

Set up once by the command that runs long; libraries that log by the standard library come along. Values of
cells never go here.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from tailrace.schemas.log_form import LEVELS, SHARED, renderers

_EXTRA = ("kind", "client", "lines")
"""What `sinks.kafka.client_log` says besides."""


def configure(stream: TextIO = sys.stderr, level: str = "info") -> None:
    """Send all logging from `level` on to `stream`, in the form that fits it."""
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
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    # Libraries speak up only when something is wrong.
    logging.basicConfig(handlers=[handler], level=max(logging.WARNING, LEVELS[level]), force=True)
