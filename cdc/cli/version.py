"""`tailrace version` and the option --version."""

from __future__ import annotations

from typing import Any

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.options import Json


def version(json: Json = False) -> None:
    """Print the version, and whether the row codec is compiled."""
    import platform
    from importlib import metadata

    from tailrace.schemas.encode import row_codec

    values: dict[str, Any] = {
        "tailrace": metadata.version("tailrace"),
        "python": platform.python_version(),
        "compiled": not str(row_codec.__file__).endswith(".py"),
    }
    if json:
        output.json(values)
        return
    compiled = "yes" if values["compiled"] else "no (no C compiler at install: correct, but slower)"
    output.line(f"tailrace {values['tailrace']}")
    output.line(f"python {values['python']}")
    output.line(f"compiled row codec: {compiled}")


def print_and_exit(wanted: bool) -> None:
    """Print the version and exit if --version was given."""
    if wanted:
        from importlib import metadata

        output.line(f"tailrace {metadata.version('tailrace')}")
        raise typer.Exit(0)
