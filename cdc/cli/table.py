"""`tailrace table`: which tables the publications have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc.cli import output
from cdc.cli.options import ConfigFile, Json

if TYPE_CHECKING:
    from cdc.ops.tables import Change

app = typer.Typer(help="Add tables to the publications and remove them.", no_args_is_help=True)

Tables = Annotated[list[str], typer.Argument(metavar="TABLE...", help='"schema.table"; "table" is public.table.')]


@app.command()
def add(tables: Tables, config: ConfigFile = None, json: Json = False) -> None:
    """Publish tables that source.tables takes. A running daemon reads their rows, then follows their changes."""
    from cdc.ops import tables as ops
    from schemas.configfile import load

    _show(ops.add(load(config), _names(tables)), json)


@app.command()
def remove(tables: Tables, config: ConfigFile = None, json: Json = False) -> None:
    """Publish tables no more. Their topics stay as they are; added again, a table is read again."""
    from cdc.ops import tables as ops
    from schemas.configfile import load

    loaded = load(config)
    changes = ops.remove(loaded, _names(tables))
    _show(changes, json)
    left = [f'"!{each.table}"' for each in changes if each.outcome == "removed"]
    if left:
        output.note(
            "source.tables still takes them, so `tailrace status` shows them as missing; to leave them out for good:"
            f" tables = [..., {', '.join(left)}]"
        )


def _show(changes: list[Change], json: bool) -> None:
    if json:
        from dataclasses import asdict

        output.json({"tables": [asdict(each) for each in changes]})
    else:
        rows = [(each.table, each.publication or "-", each.outcome) for each in changes]
        output.table(("table", "publication", "outcome"), rows)


def _names(tables: list[str]) -> list[str]:
    return list(dict.fromkeys(name if "." in name else f"public.{name}" for name in tables))
