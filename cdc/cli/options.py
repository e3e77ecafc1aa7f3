"""Options that several commands share, with the same name and help everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration file; default: $TAILRACE_CONFIG, ./tailrace.toml or /etc/tailrace/tailrace.toml.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
TABLE_HELP = "schema.table, with quotes around a name with a dot: '\"a.b\".c'; table means public.table."
"""A name without quotes is also found if schema or table have dots."""


def lsn_of(text: str) -> int:
    """Return the LSN that an option names; usage error if it is none."""
    from tailrace.schemas.lsn import parse_lsn

    try:
        return parse_lsn(text)
    except ValueError:
        raise typer.BadParameter(
            f'"{text}" is not an LSN: write it as PostgreSQL prints it, for example 0/16B3748.'
        ) from None
