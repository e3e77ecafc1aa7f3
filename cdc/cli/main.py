"""The command `tailrace`: its groups, and the one place that prints errors.

A command is imported when the command line names it, and imports what it calls when it runs.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tailrace.cdc.cli import output, version
from tailrace.cdc.cli.tree import App, RootGroup, usage_error

app = App(
    group=RootGroup,
    name="tailrace",
    help="Change data capture for PostgreSQL: WAL to Kafka, Kafka to warehouse tables and search indexes.",
    pretty_exceptions_enable=False,  # it could print local variables, and with them the DSN
    epilog="Exit codes: 0 done, 1 a bug, 2 usage, 3 configuration, 4 source, 5 sink, 6 needs a person, "
    "7 verify found a difference, check what stops a start, or status something that needs a person, "
    "8 deadline passed, 130 interrupted, 141 the reader of the output has ended.",
)


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=version.print_and_exit,
            is_eager=True,
            expose_value=False,  # the callback does the work
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Accept options before the command."""


def main() -> None:
    """Run the command line: print a known error in three lines, any other as a bug with its traceback."""
    from tailrace.schemas.errors import TailraceError, UsageError

    output.open_missing_streams()
    output.print_what_cannot_be_encoded()
    try:
        # in this mode it returns the command's exit code and leaves errors to us
        sys.exit(app(prog_name="tailrace", standalone_mode=False))
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
        else:
            output.note(str(usage_error(error)))
        sys.exit(2)
    except SystemExit as error:
        # the library's own output, such as `--help`
        if isinstance(error.__context__, BrokenPipeError):
            sys.exit(output.CUT)
        raise
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except TailraceError as error:
        output.note(str(error))
        sys.exit(error.exit_code)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and output.cannot_be_written():
            if isinstance(error, BrokenPipeError):
                sys.exit(output.CUT)
            refused = UsageError(
                "TR-006",
                f"standard output cannot be written: {error.strerror}",
                detail="The command's result is incomplete.",
                hint="df -h  # if the output goes to a file",
            )
            output.note(str(refused))
            sys.exit(refused.exit_code)
        import traceback

        from tailrace.schemas.config.secret import without_remembered

        print(without_remembered(traceback.format_exc()), file=sys.stderr)
        print(
            "\nThis is a bug in tailrace, not a mistake of yours. Please report it with the lines above."
            "\nFirst check that they contain no secrets.",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
