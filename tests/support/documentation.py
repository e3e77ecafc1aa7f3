"""A page of the documentation as its reader uses it: each block of commands, SQL or settings is run, in order.

Blocks in another language than those of `Page.run_next` are not run: `text` and `json` show something. What has no end,
such as `tailrace run`, is started as in a second terminal and ended with the page.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from tailrace.cdc.dev.postgres import binaries
from tests.support.daemon import ROOT

DOCS: Final = ROOT / "docs"
_BLOCK: Final = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SERVICES: Final = ("tailrace run", "tailrace views follow", "prometheus ")
_RUN: Final = ("console", "sql", "toml", "python")
_STATE: Final = ".shell-of-the-reader"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page that a reader runs or pastes; `line` is that of its first line of text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"docs/{self.page}:{self.line} ({self.language})\n{self.text}"


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, named from `docs/`, that can be run."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, each.start(3)) + 1, each[2], textwrap.dedent(each[3]))
        for each in _BLOCK.finditer(text)
    ]
    return [each for each in found if each.language in _RUN]


def put_settings(text: str, added: str) -> str:
    """Return a configuration with lines pasted into it: a key replaces the one of its section, others are appended."""
    section = ""
    lines = text.splitlines()
    for new in added.splitlines():
        if new.startswith("["):
            section = new.partition("]")[0] + "]"
            if not any(line.startswith(section) for line in lines):
                lines += [section]
        elif new.strip():
            first = next(at for at, line in enumerate(lines) if line.startswith(section)) + 1
            last = next((at for at in range(first, len(lines)) if lines[at].startswith("[")), len(lines))
            key = new.partition("=")[0].strip()
            same = [at for at in range(first, last) if lines[at].partition("=")[0].strip() == key]
            lines[slice(same[0], same[0] + 1) if same else slice(first, first)] = [new]
    return "\n".join(lines) + "\n"


@dataclass
class Reader:
    """Somebody who works in `folder`, with a shell whose variables last from block to block, and a database.

    `examples` are the addresses that pages name in place of the reader's own; nothing else is replaced.
    """

    folder: Path
    dsn: str
    environment: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=dict)
    """Variables of blocks in Python."""

    services: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @contextmanager
    def page(self, name: str) -> Iterator[Page]:
        """Yield a page; at its end all blocks must have been run, and what they started is ended."""
        page = Page(self, name, blocks(name))
        assert page.left, name
        try:
            yield page
            assert not page.left, f"not run: {page.left[0]}"
        finally:
            for command in list(self.services):
                self.stop(command)

    def shell(self, script: str, *, typed: str = "", code: int = 0, seconds: float = 300) -> str:
        """Run a script of the shell on a terminal; return its output. `typed` is entered, `code` is expected."""
        state = self.folder / _STATE
        script = f"set -e; test ! -e {state} || . {state}\n{script}\nexport -p > {state}\n"
        near, far = pty.openpty()
        with subprocess.Popen(
            ["bash", "-c", script],
            stdin=far,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self._environment(),
            start_new_session=True,
        ) as process:
            try:
                os.close(far)
                os.write(near, typed.encode())
                output = _read(process, seconds)
                assert process.wait(30) == code, f"{process.returncode} instead of {code}\n{script}{output}"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                os.close(near)
        return output

    def start(self, command: str) -> None:
        """Start a service of a page, whose log is in the folder."""
        with self.log(command).open("ab") as log:
            self.services[command] = subprocess.Popen(
                ["bash", "-c", f"test ! -e {_STATE} || . ./{_STATE}; exec {command}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(),
                start_new_session=True,
            )

    def log(self, command: str) -> Path:
        return self.folder / f"{command.split(' --')[0].replace(' ', '-')}.log"

    def stop(self, command: str) -> int:
        """End a service as a supervisor does, and return its exit code."""
        service = self.services.pop(command)
        service.send_signal(signal.SIGTERM)
        try:
            return service.wait(60)
        finally:
            if service.poll() is None:
                os.killpg(service.pid, signal.SIGKILL)
                service.wait()

    def as_own(self, text: str) -> str:
        """Return a text of a page with the reader's own addresses."""
        for example, own in self.examples.items():
            text = text.replace(example, own)
        return text

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(binaries())])
        return {**os.environ, "PATH": path, "NO_COLOR": "1", "TERM": "dumb", **self.environment}


@dataclass
class Page:
    """A page whose first blocks have been run; `left` are the others."""

    reader: Reader
    name: str
    left: list[Block]

    def run_next(self, *, typed: str = "", code: int = 0, seconds: float = 300) -> str:
        """Run the next block and return its output: what a command prints, or the rows of SQL.

        `typed` and `code` are those of the block's last command. Settings are pasted into `tailrace.toml`.
        """
        assert self.left, f"{self.name} has no more blocks"
        block = self.left.pop(0)
        text = self.reader.as_own(block.text)
        try:
            return str(getattr(self, f"_{block.language}")(text, typed, code, seconds))
        except (AssertionError, psycopg.Error) as error:
            raise AssertionError(f"{block}\n{error}") from error

    def _console(self, text: str, typed: str, code: int, seconds: float) -> str:
        commands = [each for each in re.split(r"(?<!\\)\n", text) if each.strip() and not each.startswith("#")]
        output = []
        for command in commands:
            if f"{command} ".startswith(_SERVICES) and "--until-lsn" not in command:
                self.reader.start(command.partition("  #")[0].strip())
                continue
            last = command is commands[-1]
            output.append(
                self.reader.shell(command, typed=typed if last else "", code=code if last else 0, seconds=seconds)
            )
        return "".join(output)

    def _sql(self, text: str, *_: object) -> str:
        with psycopg.connect(self.reader.dsn, autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return "\n".join(map(str, cursor.fetchall())) if cursor.description is not None else ""

    def _toml(self, text: str, *_: object) -> str:
        file = self.reader.folder / "tailrace.toml"
        file.write_text(put_settings(file.read_text(encoding="utf-8"), text), encoding="utf-8")
        return ""

    def _python(self, text: str, *_: object) -> str:
        exec(text, self.reader.names)
        return ""


def _read(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Return all output up to the end of the process; a program that it leaves does not hold it up."""
    assert process.stdout is not None
    deadline, output = time.monotonic() + seconds, bytearray()
    while True:
        assert time.monotonic() < deadline, f"not within {seconds} s\n{output.decode(errors='replace')}"
        if select.select([process.stdout], [], [], 0.2)[0]:
            part = os.read(process.stdout.fileno(), 65536)
            output += part
            if not part:
                return output.decode(errors="replace")
        elif process.poll() is not None:
            return output.decode(errors="replace")
