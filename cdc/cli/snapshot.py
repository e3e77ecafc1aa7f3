"""`tailrace snapshot`: have the daemon read tables again; show, pause, resume and cancel reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output, snapshot_plan
from tailrace.cdc.cli.ask import TIMEOUT_S, Timeout, ask, table_names
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import TABLE_HELP, ConfigFile, Json
from tailrace.cdc.cli.tree import App

if TYPE_CHECKING:
    from tailrace.schemas.records.requests import Request

app = App(help="Read tables again while streaming; show, pause, resume and cancel reads.")

app.command()(snapshot_plan.plan)

Tables = Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help=TABLE_HELP)]
Reads = Annotated[list[str] | None, typer.Argument(metavar="TABLE...", help="Default: all tables being read.")]


@app.command()
def start(
    tables: Tables = None,
    all_tables: Annotated[bool, typer.Option("--all", help="All captured tables.")] = False,
    reconcile: Annotated[
        bool, typer.Option("--reconcile", help="At the end, delete keys that the table no longer has.")
    ] = False,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Read only the rows that meet this condition.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Read only rows in which one of these is not null; whole rows are sent."),
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Maximum rows per second for each table.")
    ] = None,
    timeout: Timeout = TIMEOUT_S,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Read tables again. After the loss of the slot, --all --reconcile also creates a new slot.

    The topics then equal the tables again.
    """
    from tailrace.schemas.records.requests import Request

    names = table_names(tables)
    if bool(names) == all_tables:
        raise typer.BadParameter("give either table names or --all")
    condition = _condition(where, columns)
    if condition and reconcile:
        raise typer.BadParameter(
            "--reconcile cannot be combined with --where or --columns: it deletes all keys that it does not read"
        )
    ask(Request("start", names, condition, rate, reconcile), timeout, config, json)


@app.command()
def pause(tables: Reads = None, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Pause reads until `resume`. Streaming continues."""
    from tailrace.schemas.records.requests import Request

    ask(Request("pause", table_names(tables)), timeout, config, json)


@app.command()
def resume(tables: Reads = None, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Resume paused reads. Chunks that have been read are not read again."""
    from tailrace.schemas.records.requests import Request

    ask(Request("resume", table_names(tables)), timeout, config, json)


@app.command()
def cancel(tables: Reads = None, timeout: Timeout = TIMEOUT_S, config: ConfigFile = None, json: Json = False) -> None:
    """Cancel reads that `start` began. Rows that were sent stay.

    A read cannot be cancelled while its topic lacks rows.
    """
    from tailrace.schemas.records.requests import Request

    ask(Request("cancel", table_names(tables)), timeout, config, json)


@app.command()
def status(config: ConfigFile = None, json: Json = False) -> None:
    """Show each table's newest run, its progress and options, and the requests without an answer."""
    with Display("asking Kafka", json=json):
        from tailrace.cdc.operations.snapshots import read_snapshots
        from tailrace.schemas.config.file import load

        loaded = load(config)
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
                + ["incomplete until it is done"] * each.incomplete
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
