"""Every command as a person sees it: on narrow and wide terminals, with NO_COLOR, until Ctrl-C.

The commands are taken from the app itself, so that a new one is tested without being named here.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from tailrace.cdc.cli.main import app
from tailrace.cdc.dev.state import Servers, stop_servers
from tailrace.schemas.config.file import load
from tailrace.schemas.errors import ConfigError
from tests.support.all_help import commands
from tests.support.daemon import running, wait_for_state, write_config
from tests.support.servers import fresh_database
from tests.support.terminal import Seen, on_terminal

_VALUES = {"TABLE": ["t"], "VIEW": ["v"]}
_MORE = {"drop": ["--confirm", "v"], "start": ["t"], "dev up": ["--no-search"]}
"""Further arguments, besides the required ones."""

_SERVICES = {("run",), ("views", "follow")}
"""Commands that run until stopped, and are silent while nothing happens."""

LEAVES = [path for path in commands() if path and not any(other[: len(path)] == path != other for other in commands())]


def assert_nothing_raw(seen: Seen) -> None:
    """Assert that there is no output meant for programs: no traceback, no JSON."""
    assert "Traceback" not in seen.text, seen.text
    assert "Exception" not in seen.text, seen.text
    assert not re.search(r'^\s*\{"', seen.text, re.MULTILINE), seen.text


@pytest.mark.parametrize("width", [80, 200])
def test_help_of_every_command_fits_the_terminal(width: int, tmp_path: Path) -> None:
    seen = on_terminal([], width=width, cwd=tmp_path, module="tests.support.all_help", environment={"NO_COLOR": "1"})
    assert seen.code == 0, seen.text
    assert_nothing_raw(seen)
    assert "\x1b" not in seen.raw
    names = re.findall(r"^## (?!ended)(.*)$", seen.text, re.MULTILINE)
    assert names == [" ".join(command) for command in commands()]
    assert re.findall(r"^## ended (.*)$", seen.text, re.MULTILINE) == ["0"] * len(names)
    assert [line for line in seen.text.splitlines() if len(line) > width] == []
    assert max(map(len, seen.text.splitlines())) > 70


@pytest.fixture(scope="module")
def started_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Seconds until a command's first output on this machine, measured now."""
    began = time.monotonic()
    assert on_terminal(["version"], width=80, cwd=tmp_path_factory.mktemp("version")).code == 0
    return time.monotonic() - began


@pytest.fixture(scope="module")
def folder(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A pipeline with a table on Kafka, and a view that no job maintains, so that waits for it never end."""
    folder = tmp_path_factory.mktemp("terminal")
    prefix = f"t{os.getpid()}terminal"
    with fresh_database(servers.dsn) as dsn:
        views = f'[warehouse]\nuri = "jdbc:sqlite:{folder}/catalog.db"\nlocation = "{folder}"\n'
        views += (
            '[views.v]\ntable = "public.t"\n[views.q]\nquery = "SELECT n, count(*) AS c FROM public.t GROUP BY n"\n'
        )
        path = write_config(folder, dsn, servers.bootstrap, prefix, f'[health]\nlisten = ""\n{views}key = ["n"]\n')
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
            connection.execute("INSERT INTO t SELECT g, g % 7 FROM generate_series(1, 1000) g")
            with running(path) as daemon:
                wait_for_state(load(path), connection)
                assert daemon.stop() == 0
        yield folder


def _arguments(path: tuple[str, ...]) -> list[str]:
    """Return the command with a value for each required argument."""
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    needed = [param for param in command.params if param.param_type_name == "argument" and param.required]
    values = [value for param in needed for value in _VALUES[(param.metavar or param.name.upper()).rstrip(".")]]
    return [*path, *values, *_MORE.get(path[-1], []), *_MORE.get(" ".join(path), [])]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_shows_nothing_raw_until_ctrl_c(path: tuple[str, ...], folder: Path, started_s: float) -> None:
    width = 80 if LEAVES.index(path) % 2 else 200
    try:
        seen = on_terminal(
            _arguments(path),
            width=width,
            cwd=folder,
            interrupt_after_s=3 + 3 * started_s,
            environment={"NO_COLOR": "1"},
            seconds=100,
        )
    finally:
        if path[0] == "dev":
            with suppress(ConfigError):  # no servers had been started
                stop_servers(folder / ".tailrace", purge=True)
    # Python itself ends by the signal if Ctrl-C comes after the last line
    assert seen.code in {0, 2, 3, 4, 5, 6, 7, 8, 130, -signal.SIGINT}, (seen.code, seen.text)
    assert seen.text.strip() or path == ("dev", "down")
    if path != ("config", "schema"):
        assert_nothing_raw(seen)
    assert seen.colors == []
    if path not in _SERVICES:
        # commands start more slowly than `version`, which imports almost nothing
        assert seen.silent_s < 2 + 4 * started_s, (seen.silent_s, started_s, seen.text)


def test_colors_are_used_without_no_color(folder: Path, started_s: float) -> None:
    seen = on_terminal(
        ["wait"], width=80, cwd=folder, interrupt_after_s=4 + 4 * started_s, environment={"NO_COLOR": ""}
    )
    assert (seen.code, "waiting for views" in seen.text) == (130, True), seen.text
    assert seen.colors
