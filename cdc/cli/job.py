"""Run a Spark job on a terminal: show its JSON log as a progress line, pass on results and errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final

import typer

from tailrace.cdc.cli.display import Display

if TYPE_CHECKING:
    from tailrace.cdc.launch.spark_job import Job
    from tailrace.schemas.errors import TailraceError

_LAST_WORDS_S: Final = 5.0
"""Maximum wait in seconds for the last lines after the job has ended: a child process may hold the pipe open."""
_OF_AN_ERROR: Final = ("ERROR  TR-", "DETAIL ", "HINT   ")
_OF_THE_LOG: Final = ("event", "view", "level", "timestamp", "logger")


def run_shown(started: Job, what: str, *, service: bool = False) -> int:
    """Run a job to its end with a progress line; return its exit code, negative for a signal.

    The progress line of a `service` ends with the first line of its log, which is printed from then on.
    """
    with Display(what) as display:
        return run_on(display, started, display.line if sys.stdout.isatty() else None, service=service)


def ended(code: int, *, service: bool = False) -> None:
    """End the command with a job's exit code. The job has printed its error, unless a signal has ended it."""
    if code < 0:
        from tailrace.schemas.log_form import failure

        print(failure(_killed(-code), terminal=not service or sys.stderr.isatty()), file=sys.stderr, flush=True)
    if code:
        raise typer.Exit(code if code > 0 else 128 - code)


def _killed(number: int) -> TailraceError:
    from tailrace.schemas.errors import TailraceError

    return TailraceError(
        "TR-518",
        f"the Spark job was ended by signal {number} ({signal.Signals(number).name})",
        detail="It could not report why. Uncommitted work has no effect; the next start repeats it.",
        hint="dmesg | grep -i 'out of memory'  # SIGKILL is mostly the kernel's, for want of memory",
    )


def run_on(display: Display, started: Job, result: Callable[[str], None] | None, *, service: bool = False) -> int:
    """Run a job like `run_shown` on a given display; `result` takes each line of its result, None: it prints them."""
    from tailrace.cdc.launch.spark_job import start

    process = start(
        started,
        stdout=subprocess.PIPE if result else None,
        stderr=subprocess.PIPE,
        # the terminal sends Ctrl-C to its own process group only; we forward it once
        process_group=0,
    )
    interrupted = threading.Event()

    def shown(line: str) -> None:
        if service:
            display.end()
            print(as_on_terminal(line), file=sys.stderr, flush=True)
        # after Ctrl-C, Python and Java print stack traces of a stop that was requested
        elif not interrupted.is_set() or line.startswith(_OF_AN_ERROR):
            take(display, line)

    def on_signal(_: int) -> None:
        if service and not interrupted.is_set():
            display.note("stopping at the end of the batch; a second signal stops at once")
        interrupted.set()
        display.show("stopping", None)

    readers = [_reader(process.stderr, shown), *([_reader(process.stdout, result)] if result else [])]
    code = wait(process, on_signal)
    for reader in readers:
        reader.join(_LAST_WORDS_S)
    return code


def wait(process: subprocess.Popen[Any], on_signal: Callable[[int], None] = lambda number: None) -> int:
    """Wait for a process in its own group and forward stop signals; return its code, 130 after Ctrl-C.

    The process gets SIGTERM, whatever signal arrived: a job then stops in order, or at once without output, while
    SIGINT during its imports causes a traceback.
    """
    first = 0

    def hand_on(number: int, _: FrameType | None) -> None:
        nonlocal first
        first = first or number
        on_signal(number)
        process.send_signal(signal.SIGTERM)

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup sets SIG_IGN
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, hand_on) for number in numbers}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    # a service that was asked to stop has ended in order, with 0
    interrupted = code == 0 and first == signal.SIGINT
    return 128 + first if interrupted or (code < 0 and first) else code


def take(display: Display, line: str) -> None:
    """Show a line of a job: progress in the progress line, other events in words, other text unchanged."""
    event = _event(line)
    if event is None:
        display.note(line)
    elif event["event"] == "progress":
        rows, share, left = event.get("rows") or 0, event.get("share") or 0.0, event.get("seconds_left")
        # the job computes seconds_left from the elapsed time and the share, so they give the elapsed time
        rate = f"{rows * (1 - share) / (left * share):,.0f} rows/s" if left and share else f"{rows:,} rows"
        display.show(f"{event.get('view')}: {event.get('stage')}", share, rate, left)
    else:
        display.note(_words(event))


def as_on_terminal(line: str) -> str:
    """Return a line of a service's log as a terminal shows it: a record as text, its fatal error as three lines."""
    from tailrace.schemas.errors import TailraceError
    from tailrace.schemas.log_form import rendered

    event = _event(line)
    if event is None:
        return line
    if "code" in event and "view" not in event:
        return str(
            TailraceError(event["code"], event["event"], detail=event.get("detail", ""), hint=event.get("hint", ""))
        )
    return rendered(event.pop("level", "info"), event, terminal=True)


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _words(event: Mapping[str, Any]) -> str:
    """Format an event for a person: the view, the event and the values that are set."""
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
