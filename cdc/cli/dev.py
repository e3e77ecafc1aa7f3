"""`tailrace dev`: embedded servers, a demo shop, the daemon and the views on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import Json
from tailrace.cdc.cli.tree import App

app = App(help="Run all servers, a demo shop, the daemon and the views on this machine.")

StateDir = Annotated[Path, typer.Option("--state-dir", metavar="FOLDER", help="Folder for data, logs and state.")]
STATE_DIR = Path(".tailrace")


@app.command()
def up(
    search: Annotated[
        bool, typer.Option("--search/--no-search", help="Start OpenSearch, if a suitable JDK is found.")
    ] = True,
    rate: Annotated[
        float, typer.Option(min=0, metavar="N", help="Rows that the demo load changes per second; 0 turns it off.")
    ] = 200,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay and show the status; Ctrl-C stops all processes.")
    ] = False,
    port_base: Annotated[
        int | None,
        typer.Option(
            "--port-base",
            min=1024,
            max=65531,
            metavar="N",
            help="Fixed ports: PostgreSQL N, Kafka N+1 and N+2, OpenSearch N+3 and N+4. Default: those of the last"
            " start, or others if they are taken.",
        ),
    ] = None,
    state_dir: StateDir = STATE_DIR,
) -> None:
    """Start all processes that do not run, and return when the views have caught up. Safe to repeat.

    The first view is compared with the source meanwhile; exit code 7 if it differs.
    """
    with Display("starting servers") as display:
        from tailrace.cdc.cli.verify_report import summary
        from tailrace.cdc.dev.state import ended_on_failure
        from tailrace.cdc.dev.up import NOT_CAUGHT_UP, bring_up, wait_for_views, where_to_look

        def on_progress(what: str, done: int, total: int | None) -> None:
            display.step(what, done, total)

        with ended_on_failure(state_dir, display.note, but_for=(NOT_CAUGHT_UP,)):
            file, servers = bring_up(
                state_dir,
                search=search,
                rate=rate,
                say=display.note,
                on_progress=on_progress,
                port_base=port_base,
            )
            result = wait_for_views(
                file, servers, state_dir, say=display.phase, note=display.note, on_progress=on_progress
            )
            lines = where_to_look(file)
    shown = "" if file.parent == Path.cwd() else f" --config {file}"
    output.note(f"ready: tailrace status{shown} | tailrace tail orders{shown} | tailrace verify{shown}")
    for line in lines:
        output.line(line)
    if result is not None and (differs := summary([result])) is not None:
        raise differs
    if foreground:
        _stay(file, state_dir)


def _stay(file: Path, state_dir: Path) -> None:
    from tailrace.cdc.cli.inspect import watch_status
    from tailrace.cdc.dev.state import stop_servers
    from tailrace.schemas.config.file import load

    try:
        with Display("asking PostgreSQL and Kafka") as display:
            watch_status(load(file), as_json=False, display=display)
    finally:
        output.note("stopping")
        with Display("stopping"):
            stop_servers(state_dir)


@app.command()
def down(
    purge: Annotated[bool, typer.Option("--purge", help="Also delete all data.")] = False,
    state_dir: StateDir = STATE_DIR,
) -> None:
    """Stop the processes that `tailrace dev up` started, by their process ids."""
    from tailrace.cdc.dev.state import stop_servers

    with Display("stopping"):
        ended = stop_servers(state_dir, purge)
    output.note(f"stopped: {', '.join(ended) or 'nothing was running'}{'; all data deleted' if purge else ''}")


@app.command()
def status(json: Json = False, state_dir: StateDir = STATE_DIR) -> None:
    """Show the state, process id, ports, memory and log file of each process."""
    from tailrace.cdc.dev import state

    found = state.status(state_dir)
    if json:
        output.json(
            [
                {
                    "name": each.server.name,
                    "pid": each.server.process.pid,
                    "running": each.alive,
                    "ports": dict(each.server.ports),
                    "memory_bytes": each.memory,
                    "log": each.server.log,
                }
                for each in found
            ]
        )
        return
    if not found:
        output.note(f'no processes in "{state_dir}"; start them: tailrace dev up')
        return
    rows = [
        (
            each.server.name,
            "running" if each.alive else "stopped",
            str(each.server.process.pid),
            " ".join(f"{name} {port}" for name, port in each.server.ports.items()) or "-",
            output.bytes_text(each.memory),
            str(each.server.log),
        )
        for each in found
    ]
    output.table(("name", "state", "pid", "ports", "memory", "log"), rows, breaks_words=True)
