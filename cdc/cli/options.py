"""Options that several commands share, so that they are called and explained alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Configuration file; else TAILRACE_CONFIG, ./tailrace.toml, /etc/tailrace/tailrace.toml.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
