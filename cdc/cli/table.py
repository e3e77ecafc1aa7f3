"""`tailrace table`: captured tables and where each is; publish them or no more; park, resume, leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.ask import TIMEOUT_S, Timeout, ask, table_names
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import ConfigFile, Json
from tailrace.cdc.cli.tree import App

if TYPE_CHECKING:
    from tailrace.cdc.operations.tables import Change
    from tailrace.schemas.records.requests import Action

app = App(help="Captured tables: list, add, remove, park, resume.")

Tables = Annotated[list[str], typer.Argument(metavar="TABLE...", help='"schema.table"; "table" is public.table.')]


@app.command("list")
def list_tables(config: ConfigFile = None, json: Json = False) -> None:
    """Show each table's status; of a parked one also why, since when, and what mends it."""
    from tailrace.cdc.operations.table_states import read_tables
    from tailrace.schemas.config.file import load

    loaded = load(config)
    with Display("asking Kafka", json=json):
        found = read_tables(loaded)
    if json:
        output.json({"tables": [each.to_dict() for each in found]})
        return
    rows = [(each.table, each.status, str(each.run), each.code or "", each.since or "") for each in found]
    output.table(("table", "status", "run", "error", "since"), rows)
    for each in found:
        if each.code and not each.left_out:
            output.line(f"\n{each.table}: {each.code} {each.error}")
            resume = f"tailrace table resume {each.table}"
            lines = (each.hint or "").split("\n       ")
            for line in lines if resume in lines else [*lines, resume]:
                output.line(f"    {line}")


@app.command()
def add(tables: Tables, config: ConfigFile = None, json: Json = False) -> None:
    """Publish tables that source.tables takes. A running daemon reads their rows, then follows their changes."""
    from tailrace.cdc.operations import tables as ops
    from tailrace.schemas.config.file import load

    loaded = load(config)
    with Display("asking PostgreSQL", json=json):
        changes = ops.add(loaded, table_names(tables))
    _show(changes, json)


@app.command()
def remove(tables: Tables, config: ConfigFile = None, json: Json = False) -> None:
    """Publish tables no more. Their topics stay as they are; added again, a table is read again."""
    from tailrace.cdc.operations import tables as ops
    from tailrace.schemas.config.file import load

    loaded = load(config)
    with Display("asking PostgreSQL", json=json):
        changes = ops.remove(loaded, table_names(tables))
    _show(changes, json)
    left = [f'"!{each.table}"' for each in changes if each.outcome == "removed"]
    if left:
        output.note(
            "source.tables still takes them, so `tailrace status` shows them as missing; to leave them out for good:"
            f" tables = [..., {', '.join(left)}]"
        )


@app.command()
def park(tables: Tables, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Set tables aside: their changes are not written until `resume`, which reads them again; all others continue."""
    _ask("park", tables, timeout, config, json)


@app.command()
def resume(tables: Tables, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Read parked tables again beside the stream, delete what is not found, and follow them from then on."""
    _ask("unpark", tables, timeout, config, json)


@app.command("leave-out")
def leave_out(tables: Tables, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Park tables for good: `status` does not remind of them any more; `resume` takes them back."""
    _ask("leave out", tables, timeout, config, json)


def _ask(action: Action, tables: list[str], timeout: float, config: ConfigFile, json: bool) -> None:
    from tailrace.schemas.records.requests import Request

    ask(Request(action, table_names(tables)), timeout, config, json)


def _show(changes: list[Change], json: bool) -> None:
    if json:
        from dataclasses import asdict

        output.json({"tables": [asdict(each) for each in changes]})
    else:
        rows = [(each.table, each.publication or "-", each.outcome) for each in changes]
        output.table(("table", "publication", "outcome"), rows)
