"""Logging of benchmarks: to stderr, since stdout has the figures, at INFO, a daemon's default."""

from __future__ import annotations

import logging
import sys

import structlog


def log_to_stderr() -> None:
    """Configure structlog."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
