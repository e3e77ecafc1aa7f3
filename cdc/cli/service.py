"""Commands that run until stopped: log the error that ends one in the form of its log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from typer.exceptions import TyperException


@contextmanager
def logged_failure() -> Iterator[None]:
    """Off a terminal, print the error that ends the block as one line of JSON and exit with its code.

    On a terminal the error is raised: `cdc.cli.main` prints it, as for all other commands.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, TyperException):
        raise
    except Exception as error:
        if sys.stderr.isatty():
            raise
        print(_line(error), file=sys.stderr, flush=True)
        raise typer.Exit(getattr(error, "exit_code", 1)) from None


def _line(error: Exception) -> str:
    from tailrace.schemas.errors import TailraceError
    from tailrace.schemas.log_form import failure, rendered

    if isinstance(error, TailraceError):
        return failure(error, terminal=False)
    import traceback

    from tailrace.schemas.config.secret import without_remembered

    stack = without_remembered("".join(traceback.format_exception(error)))
    return rendered("critical", {"event": "a bug in tailrace: please report it", "exception": stack}, terminal=False)
