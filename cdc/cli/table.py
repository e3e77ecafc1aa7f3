"""`tailrace table`: list captured tables; add, remove, park, resume and leave out tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.ask import TIMEOUT_S, Timeout, ask, table_names
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import TABLE_HELP, ConfigFile, Json
from tailrace.cdc.cli.tree import App

if TYPE_CHECKING:
    from tailrace.cdc.operations.tables import Change
    from tailrace.schemas.records.requests import Action

app = App(help="Captured tables: list, add, remove, park, resume.")

Tables = Annotated[list[str], typer.Argument(metavar="TABLE...", help=TABLE_HELP)]


@app.command("list")
def list_tables(config: ConfigFile = None, json: Json = False) -> None:
    """Show the status of each table, and the remedy for those that are parked or unpublished.

    The last column is the LSN of the first commit that the topic of a parked table lacks.
    """
    with Display("asking Kafka", json=json):
        from tailrace.cdc.operations.table_states import read_tables
        from tailrace.schemas.config.file import load

        loaded = load(config)
        found = read_tables(loaded)
    if json:
        output.json({"tables": [each.to_dict() for each in found]})
        return
    rows = [
        (each.table, each.status, str(each.run), each.code or "", each.since or "", each.lsn or "") for each in found
    ]
    output.table(("table", "status", "run", "error", "since", "changes missing from"), rows)
    for each in found:
        if each.code and not each.left_out:
            output.line(f"\n{each.table}: {each.code} {each.error}")
            resume = f"tailrace table resume {each.table}"
            lines = (each.hint or "").split("\n       ")
            for line in lines if resume in lines or each.code == "TR-424" else [*lines, resume]:
                output.line(f"    {line}")
        elif each.hint and not each.code:
            output.line(f"\n{each.table}: its changes are not published; once they are, it is read again")
            for line in each.hint.split("\n       "):
                output.line(f"    {line}")


@app.command()
def add(tables: Tables, config: ConfigFile = None, json: Json = False) -> None:
    """Publish tables that match source.tables. A daemon reads their rows, then streams their changes."""
    with Display("asking PostgreSQL", json=json):
        from tailrace.cdc.operations import tables as ops
        from tailrace.schemas.config.file import load

        loaded = load(config)
        changes = ops.add(loaded, table_names(tables))
    _show(changes, json)


@app.command()
def remove(tables: Tables, config: ConfigFile = None, json: Json = False) -> None:
    """Remove tables from the publications. Their topics stay. A table that is added again is read again."""
    with Display("asking PostgreSQL", json=json):
        from tailrace.cdc.operations import tables as ops
        from tailrace.schemas.config.file import load

        loaded = load(config)
        changes = ops.remove(loaded, table_names(tables))
    _show(changes, json)
    left = [f'"!{each.table}"' for each in changes if each.outcome == "removed"]
    if left:
        output.note(
            "they still match source.tables, so `tailrace status` lists them as missing; to exclude them:"
            f" tables = [..., {', '.join(left)}]"
        )


@app.command()
def park(tables: Tables, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Park tables: their changes are not written until `resume` reads them again. Others continue."""
    _ask("park", tables, timeout, config, json)


@app.command()
def resume(tables: Tables, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Read parked tables again, delete keys that they no longer have, and stream their changes again.

    The topic of a table without a key is emptied instead, and then all its rows are written.
    """
    _ask("unpark", tables, timeout, config, json)


@app.command("leave-out")
def leave_out(tables: Tables, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Park tables permanently: `status` no longer reports them. `resume` reads them again."""
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
