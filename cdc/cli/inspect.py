"""Commands `status`, `tail` and `wait`: inspect a pipeline without changing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import TABLE_HELP, ConfigFile, Json, lsn_of

if TYPE_CHECKING:
    from tailrace.schemas.config.model import Config


def status(
    config: ConfigFile = None,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every second until Ctrl-C.")] = False,
) -> None:
    """Show daemon, slot, positions, lag and views, also while servers are down.

    Exit code 0: all is well. 4: PostgreSQL cannot be reached. 5: Kafka cannot be reached. 7: a person is needed,
    because the daemon failed or was killed, the slot is lost or missing, a table is parked, no table is captured, or
    a view has stopped. A daemon that was stopped with a signal is no error.
    """
    with Display("asking PostgreSQL and Kafka", json=json) as display:
        from tailrace.cdc.cli.status_page import status_lines
        from tailrace.cdc.operations.read_status import read_status
        from tailrace.schemas.config.file import load

        loaded = load(config)
        if watch:
            watch_status(loaded, as_json=json, display=display)
        found = read_status(loaded)
    if json:
        output.json(found.to_dict())
    else:
        for text in status_lines(found, output.width()):
            output.line(text)
    if found.exit_code:
        raise typer.Exit(found.exit_code)


def watch_status(config: Config, *, as_json: bool, display: Display) -> NoReturn:
    """Print the status once a second until interrupted; on a terminal, clear the screen first.

    The display ends before the first status.
    """
    import sys
    import time

    from tailrace.cdc.cli.status_page import status_lines
    from tailrace.cdc.operations.read_lag import WaitingChanges
    from tailrace.cdc.operations.read_status import read_status

    waiting = WaitingChanges()
    while True:
        found = read_status(config, waiting)
        display.end()
        if as_json:
            output.json(found.to_dict())
        else:
            clear = "\x1b[H\x1b[2J" if sys.stdout.isatty() else ""
            output.line(clear + "\n".join(status_lines(found, output.width())))
        time.sleep(1)


def tail(
    table: Annotated[str, typer.Argument(metavar="TABLE", help=TABLE_HELP)],
    config: ConfigFile = None,
    json: Json = False,
    from_start: Annotated[bool, typer.Option("--from-start", help="Start at the oldest record on the topic.")] = False,
    count: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Stop after N changes.")] = None,
) -> None:
    """Print the changes of a table as they arrive: LSN, operation, key, columns, time since the commit."""
    with Display(f"waiting for changes of {table}", json=json) as display:
        from itertools import islice

        from tailrace.cdc.operations.tail import tail as changes
        from tailrace.schemas.config.file import load

        loaded = load(config)
        for change in islice(changes(loaded, table, from_start=from_start), count):
            display.end()
            if json:
                output.json(change.to_dict())
            else:
                output.line(str(change))


def wait(
    views: Annotated[list[str] | None, typer.Option("--view", metavar="VIEW", help="Default: all views.")] = None,
    lsn: Annotated[
        str | None, typer.Option(metavar="LSN", help="For example 0/16B3748; default: the source's current LSN.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Maximum wait; then the exit code is 8.")
    ] = 30,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Wait until views have applied all changes committed before an LSN, and print the LSN of each view."""
    from tailrace.schemas.lsn import format_lsn

    given = None if lsn is None else lsn_of(lsn)
    with Display("asking PostgreSQL", json=json) as display:
        from tailrace.cdc.operations.read_status import wal_lsn
        from tailrace.cdc.operations.wait import AppliedViews
        from tailrace.cdc.postgres.connect import connect
        from tailrace.schemas.config.file import load

        loaded = load(config)
        if given is None:
            with connect(loaded.source.dsn.get_secret_value(), application_name="tailrace wait") as connection:
                wanted = wal_lsn(connection)
        else:
            wanted = given
        display.show(f"waiting for views to be at {format_lsn(wanted)}", None)
        with AppliedViews(loaded) as applied:
            try:
                found = applied.wait(wanted, views or [], timeout)
            except KeyboardInterrupt:
                display.end()
                for name, at in applied.reached(views or []).items():
                    state = "has applied nothing" if at is None else f"at {format_lsn(at)}"
                    output.note(f"interrupted: {name} {state}, not waited any longer for {format_lsn(wanted)}")
                raise
    if json:
        output.json({"lsn": format_lsn(wanted), "views": {name: format_lsn(at) for name, at in found.items()}})
        return
    output.table(("view", "lsn"), [(name, format_lsn(at)) for name, at in found.items()])
