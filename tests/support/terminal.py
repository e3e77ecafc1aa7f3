"""A command on a pseudo-terminal: its output, its longest silence, and Ctrl-C from the keyboard."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.daemon import ROOT

# a terminal that a session's first process opens becomes its controlling terminal: Ctrl-C is a signal then
_PROGRAM = """
import os, sys
os.close(os.open(sys.argv.pop(1), os.O_RDWR))
from {module} import main
main()
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_END_S: Final = 90.0
"""A process that runs for longer after Ctrl-C is killed."""


@dataclass(frozen=True)
class Seen:
    """All output to a terminal, the exit code, and times without output, in seconds.

    `first_s` is the time before the first output, `last_s` that after the last, `silent_s` the longest in between,
    which began when `silent_after` was the end of the output. `ended_s` is the time from Ctrl-C to the end, `left` the
    command lines of processes that were started and run on then.
    """

    raw: str
    code: int
    first_s: float
    silent_s: float
    silent_after: str
    last_s: float
    ended_s: float | None
    left: tuple[str, ...]

    @property
    def text(self) -> str:
        """The output without the control sequences."""
        return _CONTROL.sub("", self.raw).replace("\r\n", "\n")

    @property
    def drawn(self) -> list[str]:
        """All lines, including overwritten ones, without the echo of Ctrl-C."""
        return [line.rstrip() for line in re.split(r"[\r\n]+", self.text.replace("^C", ""))]

    @property
    def colors(self) -> list[str]:
        """The sequences that set a color or a style other than none."""
        return [each for each in _COLOR.findall(self.raw) if each != "\x1b[0m"]


def on_terminal(
    arguments: Sequence[str],
    *,
    width: int,
    cwd: Path,
    module: str = "tailrace.cdc.cli.main",
    interrupt_at: str | threading.Event | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> Seen:
    """Run `main` of a module on a terminal until it ends; press Ctrl-C at a text of the output, or at an event.

    It is killed after `seconds`.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(module=module), os.ttyname(slave), *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **(environment or {})},
        start_new_session=True,
    )
    os.close(slave)
    began = last = time.monotonic()
    first, silent, silent_after, quiet, pressed, raw = 0.0, 0.0, b"", 0.0, 0.0, b""
    try:
        while True:
            now = time.monotonic()
            if now - began > seconds or (pressed and now - pressed > _END_S):
                _kill(process)
            if not pressed and _is_due(interrupt_at, raw):
                os.write(master, b"\x03")
                pressed = now
            if not select.select([master], [], [], 0.1)[0]:
                # only what is seen to be silent counts: this process may be kept from looking for a while
                quiet = time.monotonic() - last
                if process.poll() is not None:
                    break
                continue
            try:
                read = os.read(master, 65_536)
            except OSError:  # the last process has closed it
                break
            if not raw:
                first = quiet
            elif quiet > silent:
                silent, silent_after = quiet, raw[-200:]
            raw, last, quiet = raw + read, time.monotonic(), 0.0
        code = process.wait(10)
        ended = time.monotonic() - pressed if pressed else None
        text = raw.decode(errors="replace")
        return Seen(text, code, first, silent, silent_after.decode(errors="replace"), quiet, ended, _left(process.pid))
    finally:
        _kill(process)
        process.wait()
        os.close(master)


@contextmanager
def in_background(arguments: Sequence[str], **options: Any) -> Iterator[Callable[[], Seen]]:
    """Run a command on a terminal during the block; yield a function that presses Ctrl-C and returns all output."""
    pressed = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        seen = thread.submit(on_terminal, arguments, interrupt_at=pressed, **options)

        def interrupt() -> Seen:
            pressed.set()
            return seen.result()

        try:
            yield interrupt
        finally:
            pressed.set()


def _is_due(interrupt_at: str | threading.Event | None, raw: bytes) -> bool:
    if isinstance(interrupt_at, threading.Event):
        return interrupt_at.is_set()
    return interrupt_at is not None and interrupt_at.encode() in raw


def _left(session: int, seconds: float = 120) -> tuple[str, ...]:
    """Return the command lines of a session's processes that do not end within the time."""
    deadline = time.monotonic() + seconds  # a JVM that is starting up ends late
    while alive := alive_in(session):
        if time.monotonic() > deadline:
            return tuple(" ".join(each.cmdline()) for each in alive)
        time.sleep(0.1)
    return ()


def alive_in(session: int) -> list[psutil.Process]:
    """Return the live processes of a session, including orphans."""
    found = []
    for each in psutil.process_iter():
        try:
            if os.getsid(each.pid) == session and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it and all of its session, as a power cut would; servers of `dev up` are detached by then."""
    for each in alive_in(process.pid):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    if process.poll() is None:
        process.kill()
