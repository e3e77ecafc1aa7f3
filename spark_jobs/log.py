"""The jobs' log on standard error, in the daemon's form, and one form for their errors."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from typing import Any

import structlog

from tailrace.schemas.errors import TailraceError
from tailrace.schemas.log_form import LEVELS, SHARED, rendered, renderers
from tailrace.spark_jobs.causes import job_failed


class _Log:
    """Which records are written; a job has one log, whatever its threads."""

    least = LEVELS["info"]


def line(**values: Any) -> None:
    """Log one record; `event` says what has happened, `level` is info if not given."""
    level = values.pop("level", "info")
    if LEVELS[level] < _Log.least:
        return
    # in one piece: several views are maintained at once
    print(rendered(level, values, terminal=sys.stderr.isatty()) + "\n", end="", file=sys.stderr, flush=True)


def result(text: str) -> None:
    """Print a result on standard output; a reader that has gone (`| head`) is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # escaped like on standard error, if the locale's encoding does not have it
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def set_level(level: str) -> None:
    """Write records from `level` (`log.level`) on."""
    _Log.least = LEVELS[level]


def configure() -> None:
    """Let libraries that log by the standard library write records of the same form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=SHARED,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *renderers(terminal=sys.stderr.isatty()),
            ],
        )
    )
    # Py4J logs through the root logger, with its traceback, what it raises, too.
    handler.addFilter(lambda record: record.getMessage() != "Exception while sending command.")
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # These two raise what they log, and log each retry with its traceback.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger("opensearch").setLevel(logging.ERROR)


def named(error: Exception) -> TailraceError:
    """Return our own error as it is; of any other its cause, as far as its text cannot hold values of rows."""
    if isinstance(error, TailraceError):
        return error
    if tracing():
        traceback.print_exception(error)
    return job_failed(error)


def tracing() -> bool:
    """Whether everything is to be printed as it comes, values of rows included."""
    return bool(os.environ.get("TAILRACE_TRACE"))
