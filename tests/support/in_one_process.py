"""Run several commands in one process: on a terminal, starting a process takes longer than most of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import typer

# loaded before the first command, so that their silence is that of their work
from tailrace.cdc.cli import main as cli
from tailrace.cdc.operations import read_status, verify, verify_log  # noqa: F401


def commands() -> Iterator[tuple[str, ...]]:
    """Yield every command and group, from the app itself."""

    def below(group: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, command in getattr(group, "commands", {}).items():
            yield from below(command, (*path, name))

    return below(typer.main.get_command(cli.app), ())


def main() -> None:
    """Run commands, a JSON list of lists of arguments, each after a line with them and before one with its code."""
    for arguments in json.loads(sys.argv[1]):
        print(f"## {' '.join(arguments)}", flush=True)
        sys.argv[1:] = arguments
        try:
            cli.main()
        except SystemExit as ended:
            print(f"## ended {ended.code or 0}", flush=True)
