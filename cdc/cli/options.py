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
