"""`tailrace snapshot`: what is read of the tables, and how far it is."""

from __future__ import annotations

import typer

from cdc.cli import snapshot_plan

app = typer.Typer(no_args_is_help=True, help="Copies of tables: what they read, and how far they are.")
app.command()(snapshot_plan.plan)
