"""The command `tailrace`: its groups, and the one place where an error is printed.

Every command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tailrace.cdc.cli import config, dev, explain, inspect, output, run, snapshot, table, version, views
from tailrace.cdc.cli.tree import App, usage_error

app = App(
    name="tailrace",
    help="Change data capture for PostgreSQL: WAL to Kafka, Kafka to warehouse tables and search indexes.",
    pretty_exceptions_enable=False,  # it could print local variables, and with them the DSN
    epilog="Exit codes: 0 done, 1 a bug, 2 usage, 3 configuration, 4 source, 5 sink, 6 needs a person, "
    "7 verify found a difference, or status a parked table, 8 deadline passed, 130 interrupted.",
)


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=version.print_and_exit,
            is_eager=True,
            expose_value=False,  # every command takes it
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Take what stands before the command."""


app.command()(run.run)
app.command()(inspect.status)
app.command()(inspect.tail)
app.command()(inspect.verify)
app.command()(inspect.wait)
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(table.app, name="table")
app.add_typer(views.app, name="views")
app.add_typer(dev.app, name="dev")
app.add_typer(config.app, name="config")
app.command()(explain.explain)
app.command()(version.version)


def main() -> None:
    """Run the command line: a known error in its three lines, anything else as the bug that it is."""
    from tailrace.schemas.errors import TailraceError

    output.print_what_cannot_be_encoded()
    try:
        # it returns a code if a command has ended with one, and prints nothing by itself
        sys.exit(app(prog_name="tailrace", standalone_mode=False))
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
        else:
            print(usage_error(error), file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except TailraceError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception:
        import traceback

        from tailrace.schemas.config.secret import without_remembered

        print(without_remembered(traceback.format_exc()), file=sys.stderr)
        print(
            "\nThis is a bug in tailrace, not something that you did. Please report it with the lines above,"
            "\nafter a look whether they show anything secret.",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
