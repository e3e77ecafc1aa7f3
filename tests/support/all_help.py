"""Print all commands' help in one process: on a terminal, starting one takes longer than its help."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import typer

from tailrace.cdc.cli import main as cli


def commands() -> Iterator[tuple[str, ...]]:
    """Yield every command and group, from the app itself."""

    def below(group: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, command in getattr(group, "commands", {}).items():
            yield from below(command, (*path, name))

    return below(typer.main.get_command(cli.app), ())


def main() -> None:
    """Print the help of all commands, each after a line with its name."""
    for command in commands():
        print(f"## {' '.join(command)}", flush=True)
        sys.argv[1:] = [*command, "--help"]
        try:
            cli.main()
        except SystemExit as ended:
            print(f"## ended {ended.code or 0}", flush=True)
