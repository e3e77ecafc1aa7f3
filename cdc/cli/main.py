"""The command `tailrace`: its groups, and the one place where an error is printed.

Every command imports what it needs when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from cdc.cli import config, dev, inspect, run, snapshot, version, views

app = typer.Typer(
    name="tailrace",
    help="Change data capture for PostgreSQL: WAL to Kafka, Kafka to warehouse tables and search indexes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it could print local variables, and with them the DSN
    rich_markup_mode=None,  # loading it takes longer than all the rest of --help
    epilog="Exit codes: 0 done, 1 a bug, 2 usage, 3 configuration, 4 source, 5 sink, 6 needs a person, "
    "7 check or verify found something, 8 deadline passed.",
)
app.command()(run.run)
app.command()(inspect.status)
app.command()(inspect.tail)
app.command()(inspect.verify)
app.command()(inspect.wait)
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(views.app, name="views")
app.add_typer(dev.app, name="dev")
app.add_typer(config.app, name="config")
app.command()(version.version)


def main() -> None:
    """Run the command line: a known error in its three lines, anything else as the bug that it is."""
    from schemas.errors import TailraceError

    try:
        app()
    except TailraceError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except Exception:
        import traceback

        from schemas.secret import without_remembered

        print(without_remembered(traceback.format_exc()), file=sys.stderr)
        print(
            "\nThis is a bug in tailrace, not something that you did. Please report it with the lines above,"
            "\nafter a look whether they show anything secret.",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
