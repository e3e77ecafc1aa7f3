"""`tailrace init`: write a configuration and the SQL for a live database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display


def init(
    dsn: Annotated[str, typer.Option("--dsn", metavar="DSN", help="Connection to the database, of any role.")],
    kafka: Annotated[str, typer.Option("--kafka", metavar="HOST:PORT", help="Bootstrap servers.")] = "localhost:9092",
    role: Annotated[
        str, typer.Option("--role", metavar="NAME", help="Role that Tailrace will use; created by the SQL.")
    ] = "tailrace",
    file: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="File to write; the SQL goes beside it, as .sql.")
    ] = Path("tailrace.toml"),
) -> None:
    """Write a commented tailrace.toml, and the SQL for its role and publications. Nothing is overwritten or run."""
    sql = file.with_suffix(".sql")
    with Display("looking at the database"):
        from tailrace.cdc.check.init_files import write_files
        from tailrace.cdc.check.proposal import propose

        proposal = propose(dsn, kafka, role)
        write_files(proposal, file, sql)
    output.line(f"wrote {file} and {sql}")
    if proposal.brokers is None:
        output.note(f"No answer from Kafka at {kafka}: correct kafka.bootstrap in {file}.")
    output.note(f"Next: run {sql} as the owner of the tables, then: tailrace check --config {file}")
