"""The one display of progress: a line on a terminal that says what is done, how far that is, and how fast.

Off a terminal, and with --json, there is none: notes are lines on standard error, results are lines on standard output.
It appears after half a second, so that what is quick loads nothing for it.
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
"""So often it is drawn: a thread does it, whatever the command waits for."""


def on_terminal() -> bool:
    """Whether a person looks at standard error, on something that can draw a line anew."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def _short(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


class Display:
    """Shows one step after the other while its block runs; all of it is erased at the end. Threads may share it."""

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
        """Erase it; from now on lines are printed as they are."""
        if self._ended:
            return
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._bar is not None:
                self._bar.stop()

    def step(self, what: str, done: float = 0, total: float | None = None, unit: str = "") -> None:
        """Say what is being done, and how much of it; a new `what` starts a new rate."""
        if what != self._what:
            self._what, self._began = what, time.monotonic()
        elapsed = time.monotonic() - self._began
        rate = f"{done / elapsed:,.0f} {unit}/s" if unit and done and elapsed > 0.1 else ""
        left = elapsed * (total - done) / done if total and 0 < done <= total else None
        self.show(what, None if not total else min(1.0, done / total), rate, left)

    def show(self, what: str, share: float | None, rate: str = "", seconds_left: float | None = None) -> None:
        """Say the same of something that has counted for itself."""
        self._what = what
        self._state = {
            "total": 1.0,  # without one the bar would pulse, in a kilobyte each time
            "completed": share or 0,
            "share": "" if share is None else f"{share:.0%}",
            "rate": rate,
            "left": "" if seconds_left is None else f"{_short(seconds_left)} left",
        }
        with self._lock:
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, description=what, **self._state)

    def phase(self, text: str) -> None:
        """Say what is being done: in the display, or as a line where there is none."""
        if self._shown:
            self.show(text, None)
        else:
            output.note(text)

    def note(self, text: str) -> None:
        """Print a line above the display, on standard error."""
        with self._lock:
            self._above(lambda: output.note(text), sys.stderr)

    def line(self, text: str) -> None:
        """Print a line of the result."""
        with self._lock:
            self._above(lambda: output.line(text), sys.stdout)

    def _above(self, write: Callable[[], None], stream: TextIO) -> None:
        """Write where the display is: without it, the line would be written behind it."""
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
                return False  # what ends by a signal would leave it hidden

        def text(field: str, **column: Any) -> TextColumn:
            return TextColumn(f"{{task.{field}}}", markup=False, table_column=Column(no_wrap=True, **column))

        with self._lock:
            if self._ended:
                return
            self._bar = Progress(
                SpinnerColumn("line"),  # of ASCII
                text("description", overflow="ellipsis", ratio=1),
                BarColumn(12),
                text("fields[share]"),
                text("fields[rate]"),
                text("fields[left]"),
                TimeElapsedColumn(),
                console=Plain(stderr=True),
                refresh_per_second=_A_SECOND,
                transient=True,
                redirect_stdout=False,  # it would send results to standard error
                redirect_stderr=False,
                expand=True,
            )
            self._task = self._bar.add_task(self._what, **self._state)
            self._bar.start()
