"""A Spark job on a terminal: its JSON lines become a display, its results and errors are passed on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

from tailrace.cdc.cli.display import Display

if TYPE_CHECKING:
    from tailrace.cdc.launch.spark_job import Job

_LAST_WORDS_S: Final = 5.0
"""So long its last lines are waited for when it has ended: what it has started holds the pipe, too."""
_OF_AN_ERROR: Final = ("ERROR  TR-", "DETAIL ", "HINT   ")
_OF_THE_LOG: Final = ("event", "view", "level", "timestamp", "logger")


def run_shown(started: Job, what: str) -> int:
    """Run a job to its end with a display in place of its lines; return its exit code, negative for a signal."""
    from tailrace.cdc.launch.spark_job import start

    with Display(what) as display:
        process = start(
            started,
            stdout=subprocess.PIPE if sys.stdout.isatty() else None,
            stderr=subprocess.PIPE,
            # the terminal sends Ctrl-C to its group only, and we hand it on once
            process_group=0,
        )
        interrupted = threading.Event()

        def shown(line: str) -> None:
            # what is told of an end that a person asked for: stacks of Python, of Java
            if not interrupted.is_set() or line.startswith(_OF_AN_ERROR):
                take(display, line)

        def told(_: int) -> None:
            interrupted.set()
            display.show("stopping", None)

        readers = [_reader(process.stderr, shown), _reader(process.stdout, display.line)]
        code = wait(process, told)
        for reader in readers:
            reader.join(_LAST_WORDS_S)
    return code


def wait(process: subprocess.Popen[Any], told: Callable[[int], None] = lambda number: None) -> int:
    """Wait for a process in a group of its own, and hand on what means an end; return its code, 130 after Ctrl-C.

    It gets SIGTERM, whatever we got: a job ends by it in order, or at once without a word, while SIGINT in the middle
    of its imports is a traceback.
    """
    first = 0

    def hand_on(number: int, _: FrameType | None) -> None:
        nonlocal first
        first = first or number
        told(number)
        process.send_signal(signal.SIGTERM)

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + first if code < 0 and first else code


def take(display: Display, line: str) -> None:
    """Show what a line of a job says: how far it is, what it has done, or, as it is, any other text."""
    event = _event(line)
    if event is None:
        display.note(line)
    elif event["event"] == "progress":
        rows, share, left = event.get("rows") or 0, event.get("share") or 0.0, event.get("seconds_left")
        # the job takes the time left from the share that is done, so the time that it took is known, too
        rate = f"{rows * (1 - share) / (left * share):,.0f} rows/s" if left and share else f"{rows:,} rows"
        display.show(f"{event.get('view')}: {event.get('stage')}", share, rate, left)
    else:
        display.note(_words(event))


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _words(event: Mapping[str, Any]) -> str:
    """Write an event as a person reads it: the view, what happened, and the values that there are."""
    about = f"{event['view']}: " if "view" in event else ""
    there = {name: value for name, value in event.items() if name not in _OF_THE_LOG and value not in (None, {})}
    values = (_value(name, value) for name, value in there.items())
    return f"{about}{event['event']}  {'  '.join(values)}".rstrip()


def _value(name: str, value: Any) -> str:
    if name == "ms" and isinstance(value, dict):
        return ", ".join(f"{step} {milliseconds / 1000:.1f} s" for step, milliseconds in value.items())
    return f"{name} {value}"


def _reader(stream: IO[bytes] | None, line: Callable[[str], None]) -> threading.Thread:
    def read() -> None:
        for each in stream or ():
            line(each.decode(errors="replace").rstrip("\n"))

    thread = threading.Thread(target=read, name="job's lines", daemon=True)
    thread.start()
    return thread
