"""`tailrace views`: what they hold, and the Spark jobs that keep them so."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.cli import output
from cdc.cli.options import ConfigFile, Json

if TYPE_CHECKING:
    from cdc.ops.spark import Job

app = typer.Typer(help="Keep views up to date, rebuild them, see where they are.", no_args_is_help=True)


@app.command("list")
def list_views(config: ConfigFile = None, json: Json = False) -> None:
    """List the declared views."""
    from schemas.configfile import load

    views = load(config).views
    if json:
        output.json({name: view.model_dump() for name, view in views.items()})
        return
    rows = [
        (name, view.target, view.shape, view.table or "a query", ", ".join(view.key or []) or "primary key")
        for name, view in views.items()
    ]
    output.table(("view", "target", "shape", "of", "key"), rows)


@app.command()
def status(config: ConfigFile = None, json: Json = False) -> None:
    """Show the LSN that each view reflects, and how far it is behind the source."""
    from cdc.cli.status_page import view_lines
    from cdc.ops.read_status import read_status
    from schemas.configfile import load

    found = read_status(load(config))
    if json:
        output.json(found.to_dict()["views"])
        return
    for text in view_lines(found.views):
        output.line(text)


@app.command()
def follow(config: ConfigFile = None) -> None:
    """Keep all views up to date until SIGTERM or Ctrl-C, in one Spark session."""
    _run_job("follow", config, [])


@app.command()
def rebuild(
    views: Annotated[list[str], typer.Argument(metavar="VIEW...", help="Views to build anew.")],
    config: ConfigFile = None,
) -> None:
    """Build views from offset 0 next to the live ones, then swap. `follow` may run meanwhile."""
    _run_job("rebuild", config, views)


@app.command()
def explain(view: str, config: ConfigFile = None, json: Json = False) -> None:
    """Show how a change in each table of a query finds the rows to compute anew, and what it scans."""
    from cdc.ops.spark import plain_job
    from cdc.ops.views import named
    from schemas.configfile import read

    loaded = read(config)
    named(loaded.config, [view])
    file = ["--config", str(loaded.path)] if loaded.path else []
    _run(plain_job("explain", [*file, *(["--json"] if json else []), view]))


def _run_job(script: str, path: Path | None, names: Sequence[str]) -> None:
    from cdc.ops.spark import job
    from cdc.ops.views import named, refuse_without_key
    from schemas.configfile import read

    loaded = read(path)
    refuse_without_key(loaded.config, named(loaded.config, names))
    file = ["--config", str(loaded.path)] if loaded.path else []
    _run(job(loaded.config, script, [*file, *names]))


def _run(started: Job) -> None:
    code = _wait(subprocess.Popen(started.command, env=started.environment))
    if code:
        # The job has said in its own words what is wrong.
        raise typer.Exit(code if code > 0 else 128 - code)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process; hand on the signals that mean an end in order."""

    def hand_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
