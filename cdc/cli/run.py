"""`tailrace run`: the daemon in the foreground, and what signals do to it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.options import ConfigFile

STOP_SECONDS = 5.0
"""A stop in order is over by then, or it is given up; what was not confirmed is sent again at the next start."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


LogLevel = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error; overrides log.level.")
]


def run(config: ConfigFile = None, log_level: LogLevel = None) -> None:
    """Stream changes from PostgreSQL to Kafka until SIGTERM or Ctrl-C; a second one stops at once."""
    from tailrace.cdc.cli.service import logged_failure

    with logged_failure():
        _run(config, log_level)


def _run(config: Path | None, log_level: str | None = None) -> None:
    from tailrace.cdc.daemon import http, log
    from tailrace.cdc.daemon.daemon_record import recorded
    from tailrace.cdc.daemon.notify import notifying
    from tailrace.cdc.daemon.service import Service
    from tailrace.cdc.daemon.slot_watch import SlotWatch
    from tailrace.cdc.health.health import Health
    from tailrace.schemas.config.file import load

    loaded = load(config, {"log.level": log_level} if log_level else None)
    log.configure(level=loaded.log.level)
    stop = threading.Event()
    stop_on_signal(stop)
    health = Health(loaded.source.slot)
    with http.serving(loaded, health), SlotWatch(loaded, health), notifying(health), recorded(loaded, health):
        Service(loaded, stop, health).run()


def stop_on_signal(stop: threading.Event, end: Callable[[int], None] = os._exit) -> threading.Thread:
    """Set `stop` at the first SIGTERM or SIGINT; call `end` at the second, or when STOP_SECONDS have passed.

    A thread waits for them: Python runs signal handlers in the main thread between two of its instructions, and
    that may be inside a call of librdkafka that takes half a minute. Call it before other threads start.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    thread = threading.Thread(target=_wait, args=(stop, end), name="signals", daemon=True)
    thread.start()
    return thread


def _say_stopping() -> None:
    if sys.stderr.isatty():
        output.note(f"stopping; a second signal stops at once, {STOP_SECONDS:.0f} s at the latest")
    else:
        import structlog

        structlog.get_logger().info("stopping", at_most_s=STOP_SECONDS)


def _say_not_stopped() -> None:
    from tailrace.schemas.errors import DeadlineError
    from tailrace.schemas.log_form import failure

    error = DeadlineError(
        "TR-800",
        f"not stopped in order within {STOP_SECONDS:.0f} s",
        detail="The slot keeps what Kafka has not committed; nothing is lost and nothing will be sent twice.",
        hint="Start it again: tailrace run",
    )
    output.note(failure(error, terminal=sys.stderr.isatty()))


def _wait(stop: threading.Event, end: Callable[[int], None]) -> None:
    signal.sigwait(_SIGNALS)
    stop.set()
    # the end of the log's reader is no reason to miss the second signal
    with suppress(OSError, ValueError):
        _say_stopping()
    second = signal.sigtimedwait(_SIGNALS, STOP_SECONDS)
    if second is not None:
        end(128 + second.si_signo)
    # the end of the log's reader is no reason to stay
    with suppress(OSError, ValueError):
        _say_not_stopped()
    end(8)
