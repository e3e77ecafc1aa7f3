"""`tailrace views`: list, inspect, maintain and rebuild views, with Spark jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display, on_terminal
from tailrace.cdc.cli.job import ended, run_shown, wait
from tailrace.cdc.cli.options import ConfigFile, Json, lsn_of
from tailrace.cdc.cli.tree import App

if TYPE_CHECKING:
    from tailrace.cdc.launch.spark_job import Job

app = App(help="Maintain views, rebuild them, show their status.")


ViewName = Annotated[str, typer.Argument(metavar="VIEW", help="Name of a configured view.")]


@app.command("list")
def list_views(config: ConfigFile = None, json: Json = False) -> None:
    """List the declared views."""
    from tailrace.schemas.config.file import load

    views = load(config).views
    if json:
        output.json({name: view.model_dump() for name, view in views.items()})
        return
    rows = [
        (name, view.target, view.shape, view.table or "a query", ", ".join(view.key or []) or _key_of(view.shape))
        for name, view in views.items()
    ]
    output.table(("view", "target", "shape", "of", "key"), rows)


def _key_of(shape: str) -> str:
    """Return the words for the key of a view that declares none: a log has each change as a row."""
    return "-" if shape == "log" else "primary key"


@app.command()
def status(
    views: Annotated[
        list[str] | None, typer.Argument(metavar="VIEW...", help="Show only these views, with full errors.")
    ] = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Show the LSN that each view has applied, and its lag. Exit codes as of `tailrace status`, for these views."""
    with Display("asking PostgreSQL and Kafka", json=json):
        from tailrace.cdc.cli.status_page import view_lines
        from tailrace.cdc.operations.read_status import read_status
        from tailrace.cdc.operations.views import named
        from tailrace.schemas.config.file import load

        loaded = load(config)
        chosen = named(loaded, views) if views else loaded.views
        status = read_status(loaded)
    if json:
        output.json([view for view in status.to_dict()["views"] if view["name"] in chosen])
    else:
        found = [view for view in status.views if view.name in chosen]
        for text in view_lines(found, output.width(), full=bool(views)):
            output.line(text)
    if code := status.views_exit_code(chosen):
        raise typer.Exit(code)


@app.command()
def follow(
    views: Annotated[
        list[str] | None, typer.Argument(metavar="VIEW...", help="Maintain only these views; default: all.")
    ] = None,
    config: ConfigFile = None,
    until_lsn: Annotated[
        str | None, typer.Option(metavar="LSN", help="End once these views have applied this LSN.")
    ] = None,
) -> None:
    """Maintain views in one Spark session until SIGTERM or Ctrl-C. Serves health and metrics on health.views_listen."""
    from tailrace.cdc.cli.service import logged_failure
    from tailrace.schemas.lsn import format_lsn

    until = [] if until_lsn is None else [f"--until-lsn={format_lsn(lsn_of(until_lsn))}"]
    with logged_failure():
        _run_job("follow", config, views or [], until, shown=True, service=True)


@app.command()
def rebuild(
    views: Annotated[list[str], typer.Argument(metavar="VIEW...", help="Views to rebuild.")],
    config: ConfigFile = None,
    swap: Annotated[bool, typer.Option("--swap/--no-swap", help="--no-swap leaves the new generation staged.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the records to read and the estimated time.")
    ] = False,
    json: Json = False,
) -> None:
    """Rebuild views from offset 0 in a new generation, then swap. `follow` may run at the same time."""
    if dry_run:
        _run_plain_job("rebuild", config, views, ["--dry-run", *_json(json)], json=json)
        return
    _run_job("rebuild", config, views, [*([] if swap else ["--no-swap"]), *_json(json)], shown=not json)


@app.command()
def compare(
    view: ViewName,
    config: ConfigFile = None,
    json: Json = False,
    limit: Annotated[int, typer.Option(min=0, max=100_000, metavar="N", help="Maximum differing keys to print.")] = 20,
) -> None:
    """Compare the live generation with the staged one at one cut; exit code 7 if they differ."""
    _look_first("compare", config, view, json=json)
    _run_job("generations", config, [view], ["compare", f"--limit={limit}", *_json(json)], shown=not json)


@app.command()
def swap(view: ViewName, config: ConfigFile = None, json: Json = False) -> None:
    """Bring the staged generation to the newest cut and make it live for all readers at once."""
    _look_first("swap", config, view, json=json)
    _run_job("generations", config, [view], ["swap", *_json(json)], shown=not json)


@app.command()
def rollback(view: ViewName, config: ConfigFile = None, json: Json = False) -> None:
    """Make the generation before the last swap live again, at its own cut. `follow` continues from there."""
    _look_first("rollback", config, view, json=json)
    _run_job("generations", config, [view], ["rollback", *_json(json)], shown=not json)


@app.command()
def drop(
    view: ViewName,
    config: ConfigFile = None,
    json: Json = False,
    generation: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Drop only this one; default: all.")
    ] = None,
    confirm: Annotated[
        str | None, typer.Option(metavar="VIEW", help="The view's name, to drop what readers see.")
    ] = None,
) -> None:
    """Drop a generation, or all. To drop the live one, confirm with the view's name."""
    import sys

    asked = generation is None and confirm is None and sys.stdin.isatty()
    _look_first("drop", config, view, generation, view if asked else confirm, json=json)
    if asked:
        confirm = typer.prompt(f'Readers see view "{view}". Type its name to drop all its generations', err=True)
    only = [] if generation is None else [f"--generation={generation}"]
    confirmed = [] if confirm is None else [f"--confirm={confirm}"]
    _run_job("generations", config, [view], ["drop", *only, *confirmed, *_json(json)], shown=not json)


@app.command()
def resume(
    view: ViewName,
    config: ConfigFile = None,
    json: Json = False,
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Maximum wait for the result.")] = 120,
) -> None:
    """Make a running `follow` retry a parked view at once."""
    with Display(f"{view}: waiting for `follow` to retry it", json=json):
        from tailrace.cdc.operations.resume import resume as try_again
        from tailrace.schemas.config.file import load
        from tailrace.schemas.lsn import format_lsn

        loaded = load(config)
        at = try_again(loaded, view, timeout)
    if json:
        output.json({"view": view, "lsn": format_lsn(at)})
    else:
        output.line(f"{view}: resumed at {format_lsn(at)}")


@app.command()
def explain(
    view: ViewName,
    config: ConfigFile = None,
    json: Json = False,
    check: Annotated[bool, typer.Option("--check", help="Also check types and functions with Spark.")] = False,
) -> None:
    """Show how a change in each table of a query finds the rows to recompute, and what it scans."""
    if check:
        _run_job("explain", config, [view], ["--check", *_json(json)], shown=not json)
        return
    _run_plain_job("explain", config, [view], _json(json), json=json)


def _json(json: bool) -> list[str]:
    return ["--json"] if json else []


def _look_first(
    command: str,
    path: Path | None,
    view: str,
    generation: int | None = None,
    confirmed: str | None = None,
    *,
    json: bool,
) -> None:
    """Refuse an impossible command before Spark starts, which takes 30 s on a busy machine."""
    with Display("reading the view's generations", json=json):
        from tailrace.cdc.operations.views import named
        from tailrace.schemas.config.file import load
        from tailrace.sinks.read.views import generations_there
        from tailrace.sinks.read.which_generation import refuse

        config = load(path)
        named(config, [view])
        there = generations_there(config, view)
    if there is not None:
        refuse(command, view, there, generation, confirmed)


def _run_plain_job(script: str, path: Path | None, names: Sequence[str], options: Sequence[str], *, json: bool) -> None:
    from tailrace.cdc.launch.spark_job import plain_job
    from tailrace.cdc.operations.views import named
    from tailrace.schemas.config.file import read

    loaded = read(path)
    named(loaded.config, names)
    file = ["--config", str(loaded.path)] if loaded.path else []
    _show(plain_job(script, [*options, *file, *names]), "asking Kafka", shown=not json)


def _run_job(
    script: str,
    path: Path | None,
    names: Sequence[str],
    options: Sequence[str] = (),
    *,
    shown: bool = False,
    service: bool = False,
) -> None:
    with Display("asking Kafka for schemas", json=not shown) as display:
        from tailrace.cdc.launch.spark_job import job
        from tailrace.cdc.operations.views import named, refuse_without_key
        from tailrace.schemas.config.file import read

        loaded = read(path)
        views = named(loaded.config, names)
        # without names, the one that is refused would stop the others: its batch parks it
        refuse_without_key(loaded.config, views, at_topics=bool(names) or not service)
        file = ["--config", str(loaded.path)] if loaded.path else []
        display.show("starting Spark", None)
        started = job(loaded.config, script, [*options, *file, *names])
    _show(started, "starting Spark", shown=shown, service=service)


def _show(started: Job, what: str, *, shown: bool, service: bool = False) -> None:
    if shown and on_terminal():
        ended(run_shown(started, what, service=service), service=service)
    else:
        _run(started, what, service=service)


def _run(started: Job, what: str, *, service: bool) -> None:
    from tailrace.cdc.launch.spark_job import start

    if on_terminal():
        output.note(f"{what}; Ctrl-C ends the job")
    # in its own process group: else the terminal also sends Ctrl-C, and a second signal ends a job in mid-batch
    ended(wait(start(started, process_group=0)), service=service)
