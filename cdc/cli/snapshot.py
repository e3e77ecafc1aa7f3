"""`tailrace snapshot`: have tables read again, see how far that is, and steer it; the daemon does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output, snapshot_plan
from tailrace.cdc.cli.ask import TIMEOUT_S, Timeout, ask, table_names
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import ConfigFile, Json
from tailrace.cdc.cli.tree import App

if TYPE_CHECKING:
    from tailrace.schemas.records.requests import Request

app = App(help="Read tables again while the stream goes on; see, pause and resume reads.")

app.command()(snapshot_plan.plan)

Tables = Annotated[
    list[str] | None, typer.Argument(metavar="TABLE...", help='"schema.table"; "table" is public.table.')
]
Reads = Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help="Default: all that are being read.")]


@app.command()
def start(
    tables: Tables = None,
    all_tables: Annotated[bool, typer.Option("--all", help="All captured tables.")] = False,
    reconcile: Annotated[
        bool, typer.Option("--reconcile", help="At the end, delete what is not there any more.")
    ] = False,
    where: Annotated[str | None, typer.Option(metavar="SQL", help="Only rows for which this holds.")] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only rows in which one of these is not null; they are sent whole."),
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many rows a second, each table.")
    ] = None,
    timeout: Timeout = TIMEOUT_S,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Read tables again. With --all --reconcile also after a slot was lost: it is made anew, topics become right."""
    from tailrace.schemas.records.requests import Request

    names = table_names(tables)
    if bool(names) == all_tables:
        raise typer.BadParameter("name tables, or say --all")
    condition = _condition(where, columns)
    if condition and reconcile:
        raise typer.BadParameter(
            "--reconcile deletes what it does not find, so it reads all rows: no --where, no --columns"
        )
    ask(Request("start", names, condition, rate, reconcile), timeout, config, json)


@app.command()
def pause(tables: Reads = None, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Read no more chunks until `resume`; the stream goes on."""
    from tailrace.schemas.records.requests import Request

    ask(Request("pause", table_names(tables)), timeout, config, json)


@app.command()
def resume(tables: Reads = None, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Go on with reads that were paused; chunks that were read are not read again."""
    from tailrace.schemas.records.requests import Request

    ask(Request("resume", table_names(tables)), timeout, config, json)


@app.command()
def cancel(tables: Reads = None, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """End reads that `start` has begun; rows that were sent stay. A topic that lacks rows must be read to the end."""
    from tailrace.schemas.records.requests import Request

    ask(Request("cancel", table_names(tables)), timeout, config, json)


@app.command()
def status(config: ConfigFile = None, json: Json = False) -> None:
    """Show each table's newest run: how far it is, what was asked, and requests that nobody has taken up."""
    from tailrace.cdc.operations.snapshots import read_snapshots
    from tailrace.schemas.config.file import load

    loaded = load(config)
    with Display("asking Kafka", json=json):
        found = read_snapshots(loaded)
    if json:
        output.json(found.to_dict())
        return
    rows = [
        (
            each.table,
            str(each.run),
            each.state,
            "-" if each.chunks is None else f"{each.chunks_done}/{each.chunks}",
            _number(each.rows),
            _number(each.rows_per_s),
            _number(each.seconds_left),
            each.lsn or "-",
            " ".join(
                [f"where {each.where}"] * bool(each.where)
                + [f"{each.rate} rows/s"] * bool(each.rate)
                + ["reconcile"] * each.reconcile
                + ["no state until it is done"] * each.incomplete
            ),
        )
        for each in found.tables
    ]
    output.table(("table", "run", "state", "chunks", "rows", "rows/s", "s left", "as of", ""), rows)
    for request in found.waiting:
        output.line(f"waiting for a daemon: {_words(request)}")


def _condition(where: str | None, columns: str | None) -> str | None:
    if columns is None:
        return where
    names = [name.strip().replace('"', '""') for name in columns.split(",")]
    filled = " OR ".join(f'"{name}" IS NOT NULL' for name in names)
    return filled if where is None else f"({where}\n) AND ({filled})"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _words(request: Request) -> str:
    return " ".join(
        [request.action, *(request.tables or ["--all"])]
        + ["--reconcile"] * request.reconcile
        + [f"--where '{request.where}'"] * bool(request.where)
    )
