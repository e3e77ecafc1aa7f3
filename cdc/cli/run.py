"""`tailrace run`: the daemon in the foreground, and its handling of signals."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.options import ConfigFile

if TYPE_CHECKING:
    from tailrace.cdc.check.finding import Finding

STOP_SECONDS = 5.0
"""Time limit of an orderly stop; PostgreSQL sends unconfirmed changes again at the next start."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


LogLevel = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error; overrides log.level.")
]


def run(config: ConfigFile = None, log_level: LogLevel = None) -> None:
    """Stream changes from PostgreSQL to Kafka until SIGTERM or Ctrl-C. A second signal stops at once."""
    # until the service begins: a start makes no garbage, and to look for it takes a tenth of the time of the imports
    gc.disable()
    from tailrace.cdc.cli.service import logged_failure
    from tailrace.schemas.load_structlog import load_structlog

    load_structlog()
    further: list[Finding] = []
    try:
        with logged_failure():
            _run(config, log_level, further)
    finally:
        gc.enable()
        _print_findings(further)


def _print_findings(further: Sequence[Finding]) -> None:
    """Print what would refuse the next start as well, in the form of the error that ended this one."""
    from tailrace.schemas.errors import TailraceError
    from tailrace.schemas.log_form import failure

    for each in further:
        error = TailraceError(each.id, each.seen, detail=each.wanted, hint=each.paste.replace("\n", f"\n{' ' * 7}"))
        print(failure(error, terminal=sys.stderr.isatty()), file=sys.stderr, flush=True)


def _run(config: Path | None, log_level: str | None, further: list[Finding]) -> None:
    """Run the daemon; if its start is refused, add what else stops a start to `further`."""
    from tailrace.cdc.daemon import http, log
    from tailrace.cdc.daemon.daemon_record import recorded
    from tailrace.cdc.daemon.notify import notifying
    from tailrace.cdc.daemon.service import Service
    from tailrace.cdc.daemon.slot_watch import SlotWatch
    from tailrace.cdc.health.health import Health
    from tailrace.schemas.config.file import load
    from tailrace.schemas.error_codes import Retry, retry_of
    from tailrace.schemas.errors import TailraceError
    from tailrace.sinks.tracing.traces import check_installed

    loaded = load(config, {"log.level": log_level} if log_level else None)
    log.configure(level=loaded.log.level)
    check_installed(loaded)
    stop = threading.Event()
    signals = stop_on_signal(stop)
    health = Health(loaded.source.slot)
    service = Service(loaded, stop, health)
    try:
        with http.serving(loaded, health), SlotWatch(loaded, health), notifying(health), recorded(loaded, health):
            service.run()
    except TailraceError as error:
        if retry_of(error.code) is Retry.NEVER and not service.has_streamed:
            from tailrace.cdc.check.run_check import check

            with suppress(Exception):  # the error itself is more important than a fault of the check
                further += [each for each in check(loaded, ("source", "kafka")) if each.stops and each.id != error.code]
        raise
    if signals.first == signal.SIGINT:
        raise typer.Exit(128 + signal.SIGINT)


class Signals(threading.Thread):
    """The thread that waits for signals; `first` is the number of the first one, None before it."""

    def __init__(self, stop: threading.Event, end: Callable[[int], None]) -> None:
        super().__init__(name="signals", daemon=True)
        self.first: int | None = None
        self._stop_requested, self._end = stop, end

    def run(self) -> None:
        """Do what `stop_on_signal` says."""
        self.first = signal.sigwait(_SIGNALS)
        self._stop_requested.set()
        # if the reader of the log has gone, still wait for the second signal
        with suppress(OSError, ValueError):
            _say_stopping()
        second = signal.sigtimedwait(_SIGNALS, STOP_SECONDS)
        if second is not None:
            self._end(128 + second.si_signo)
        # if the reader of the log has gone, still exit
        with suppress(OSError, ValueError):
            _say_not_stopped()
        self._end(8)


def stop_on_signal(stop: threading.Event, end: Callable[[int], None] = os._exit) -> Signals:
    """Set `stop` at the first SIGTERM or SIGINT; call `end` at the second, or after STOP_SECONDS.

    A thread waits for the signals. Python would run a signal handler in the main thread only after its current
    instruction, which may be a call of librdkafka that takes 30 s. Call this before other threads start.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signals = Signals(stop, end)
    signals.start()
    return signals


def _say_stopping() -> None:
    if sys.stderr.isatty():
        output.note(f"stopping within {STOP_SECONDS:.0f} s; a second signal stops at once")
    else:
        import structlog

        structlog.get_logger().info("stop requested", at_most_s=STOP_SECONDS)


def _say_not_stopped() -> None:
    from tailrace.schemas.errors import DeadlineError
    from tailrace.schemas.log_form import failure

    error = DeadlineError(
        "TR-800",
        f"the daemon did not stop within {STOP_SECONDS:.0f} s and was ended",
        detail="No change is lost: the slot holds the WAL of all changes that Kafka has not committed.",
        hint="tailrace run",
    )
    output.note(failure(error, terminal=sys.stderr.isatty()))
