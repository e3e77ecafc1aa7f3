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
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Seen:
    """All output to the terminal, the exit code, and the longest time without output, in seconds."""

    raw: str
    code: int
    silent_s: float

    @property
    def text(self) -> str:
        """The output without the control sequences."""
        return _CONTROL.sub("", self.raw).replace("\r\n", "\n")

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
    interrupt_after_s: float | None = None,
    interrupt_at: str | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 60,
) -> Seen:
    """Run `main` of a module on a terminal until it ends; press Ctrl-C after a while or at a text.

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
    silent, pressed, raw = 0.0, False, b""
    try:
        while True:
            now = time.monotonic()
            silent = max(silent, now - last)
            if now - began > seconds:
                _kill(process)
            if interrupt_after_s is not None and not pressed and now - began > interrupt_after_s:
                os.write(master, b"\x03")
                pressed = True
            if not select.select([master], [], [], 0.1)[0]:
                if process.poll() is not None:
                    break
                continue
            try:
                read = os.read(master, 65_536)
            except OSError:  # the last process has closed it
                break
            raw, last = raw + read, time.monotonic()
            if interrupt_at is not None and not pressed and interrupt_at.encode() in raw:
                os.write(master, b"\x03")
                pressed = True
        return Seen(raw.decode(errors="replace"), process.wait(10), silent)
    finally:
        _kill(process)
        process.wait()
        os.close(master)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it and its children, as a power cut would; servers of `dev up` are detached by then."""
    with suppress(psutil.NoSuchProcess):
        for each in [*psutil.Process(process.pid).children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.kill()
