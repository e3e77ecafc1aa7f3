"""Progress line of a command on a terminal: the step, its share done, its rate and the time left.

Off a terminal, and with --json, there is no progress line: notes go to standard error, results to standard output.
The line appears after half a second, so that quick commands do not import its library. Commands start it before their
own imports, which take seconds on a busy machine.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from tailrace.cdc.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AFTER_S: Final = 0.5
_A_SECOND: Final = 4
"""Redraws per second, by a thread, so that the line moves while the command waits."""


_ALMOST_ALL: Final = 1 - 1e-6


def on_terminal() -> bool:
    """Return True if standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _short(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


class Display:
    """A progress line that shows one step at a time and is erased at the end of its block. Thread-safe."""

    def __init__(self, what: str, *, json: bool = False) -> None:
        self._lock = threading.RLock()
        self._timer = threading.Timer(AFTER_S, self._start)
        self._timer.daemon = True
        self._shown = on_terminal() and not json
        self._ended = False
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._what, self._began = what, time.monotonic()
        self._state: dict[str, Any] = {"total": 1.0, "completed": 0, "share": "", "rate": "", "left": ""}

    def __enter__(self) -> Self:
        if self._shown:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Erase the progress line; later lines are printed directly."""
        if self._ended:
            return
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()

    def step(self, what: str, done: float = 0, total: float | None = None, unit: str = "") -> None:
        """Show a step and its progress; a new `what` starts a new rate."""
        if what != self._what:
            self._what, self._began = what, time.monotonic()
        elapsed = time.monotonic() - self._began
        rate = f"{done / elapsed:,.0f} {unit}/s" if unit and done and elapsed > 0.1 else ""
        left = elapsed * (total - done) / done if total and 0 < done <= total else None
        self.show(what, None if not total else min(1.0, done / total), rate, left)

    def show(self, what: str, share: float | None, rate: str = "", seconds_left: float | None = None) -> None:
        """Show a step whose share, rate and time left the caller has computed."""
        self._what = what
        self._state = {
            "total": 1.0,  # without a total the bar pulses, which writes a kilobyte per redraw
            "completed": min(share or 0, _ALMOST_ALL),  # a complete task stops the clock of all later steps
            "share": "" if share is None else f"{share:.0%}",
            "rate": rate,
            "left": "" if seconds_left is None else f"{_short(seconds_left)} left",
        }
        with self._lock:
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, description=what, **self._state)

    def phase(self, text: str) -> None:
        """Show a step without progress, or print it as a note if there is no progress line."""
        if self._shown:
            self.show(text, None)
        else:
            output.note(text)

    def note(self, text: str) -> None:
        """Print a line on standard error, above the progress line."""
        with self._lock:
            self._above(lambda: output.note(text), sys.stderr)

    def line(self, text: str) -> None:
        """Print a line of the result on standard output."""
        with self._lock:
            self._above(lambda: output.line(text), sys.stdout)

    def _above(self, write: Callable[[], None], stream: TextIO) -> None:
        """Call `write` with the progress line removed, so that both do not share a line of the terminal."""
        if self._bar is None or self._ended or not stream.isatty():
            write()
            return
        self._bar.stop()
        try:
            write()
        finally:
            self._bar.start()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        class Plain(Console):
            def show_cursor(self, show: bool = True) -> bool:
                return False  # a process that is killed by a signal would leave the cursor hidden

        def text(field: str, **column: Any) -> TextColumn:
            return TextColumn(f"{{task.{field}}}", markup=False, table_column=Column(no_wrap=True, **column))

        with self._lock:
            if self._ended:
                return
            self._bar = Progress(
                SpinnerColumn("line"),  # ASCII only
                text("description", overflow="ellipsis", ratio=1),
                BarColumn(12),
                text("fields[share]"),
                text("fields[rate]"),
                text("fields[left]"),
                TimeElapsedColumn(),
                console=Plain(stderr=True),
                refresh_per_second=_A_SECOND,
                transient=True,
                redirect_stdout=False,  # redirected results would go to standard error
                redirect_stderr=False,
                expand=True,
            )
            self._task = self._bar.add_task(self._what, **self._state)
            self._bar.start()
