"""The jobs' log on standard error, in the daemon's format, and conversion of their errors."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from typing import Any

from tailrace.schemas.errors import TailraceError
from tailrace.schemas.log_form import LEVELS, library_handler, rendered
from tailrace.spark_jobs.causes import job_failed


class _Log:
    """The lowest level that is written, and whether a result was cut; all threads of a job share one log."""

    least = LEVELS["info"]
    cut = False


def line(**values: Any) -> None:
    """Log one record; `event` names the event, `level` defaults to info."""
    level = values.pop("level", "info")
    if LEVELS[level] < _Log.least:
        return
    # One write for each record: several views are maintained at the same time.
    print(rendered(level, values, terminal=sys.stderr.isatty()) + "\n", end="", file=sys.stderr, flush=True)


def result(text: str) -> None:
    """Print a result on standard output; a closed pipe (`| head`) does not end the job."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escape characters that the locale's encoding lacks, as on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # The interpreter flushes standard output again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _Log.cut = True


def was_cut() -> bool:
    """Whether the reader of standard output has ended before it had all results."""
    return _Log.cut


def set_level(level: str) -> None:
    """Write only records of `level` (`log.level`) or higher."""
    _Log.least = LEVELS[level]
    logging.getLogger("tailrace").setLevel(LEVELS[level])


def configure() -> None:
    """Write records of libraries that use the `logging` module in the same format."""
    handler = library_handler(sys.stderr)
    # Py4J raises this error and also logs it, with its traceback, through the root logger.
    handler.addFilter(lambda record: record.getMessage() != "Exception while sending command.")
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("tailrace").setLevel(_Log.least)
    # These two log errors that they also raise, and each retry with its traceback.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger("opensearch").setLevel(logging.ERROR)


def named(error: Exception) -> TailraceError:
    """Return our own error unchanged; for any other error, one with its cause but no row values."""
    if isinstance(error, TailraceError):
        return error
    if tracing():
        traceback.print_exception(error)
    return job_failed(error)


def tracing() -> bool:
    """Whether TAILRACE_TRACE requests unfiltered output, including row values."""
    return bool(os.environ.get("TAILRACE_TRACE"))
