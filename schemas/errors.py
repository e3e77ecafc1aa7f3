"""The errors that a person may see, in PostgreSQL's form: ERROR, DETAIL, HINT.

    TailraceError
     ├── UsageError      exit 2   the command line: a command, an option or an argument
     ├── ConfigError     exit 3   the configuration file, or an option that overrides it
     ├── SourceError     exit 4   PostgreSQL: not reachable, not allowed, not set up
     │    └── DecodeError         a replication message that violates its format
     ├── SinkError       exit 5   Kafka, warehouse, search index, schema registry
     ├── StateError      exit 6   needs a person: slot lost, gap, another system
     │    └── RebuildError        a view that cannot continue with its present rows
     ├── FoundError      exit 7   a comparison found a difference
     └── DeadlineError   exit 8   a deadline passed

Each code is registered in `schemas.error_codes`. Raise an error where the fault is found, add context once, print it
once at the top (`cdc.cli.main`). Never put a cell value in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class TailraceError(Exception):
    """An error with a code (``TR-204``), numbers and units in `detail`, a command to paste in `hint`."""

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"ERROR  {self.code}  {self.message}"]
        if self.detail:
            lines.append(f"DETAIL {self.detail}")
        if self.hint:
            lines.append(f"HINT   {self.hint}")
        return "\n".join(lines)


def all_of(errors: Sequence[TailraceError]) -> TailraceError:
    """Return one error that reports all of `errors`, so that a person sees them at once.

    It has the code of the first one and its class, or the next base class with the usual arguments.
    """
    first, *others = errors
    if not others:
        return first
    codes = [f"{each.message}{f' ({each.code})' if each.code != first.code else ''}" for each in errors]
    kinds = (each for each in type(first).__mro__ if "__init__" not in vars(each) and issubclass(each, TailraceError))
    return next(kinds)(
        first.code,
        "; ".join(codes),
        detail=" ".join(dict.fromkeys(each.detail for each in errors if each.detail)),
        hint="\n       ".join(dict.fromkeys(each.hint for each in errors if each.hint)),
    )


class UsageError(TailraceError):
    """The command line names something unknown, or lacks something required."""

    exit_code = 2


class ConfigError(TailraceError):
    """The configuration is invalid or cannot be used."""

    exit_code = 3


class SourceError(TailraceError):
    """PostgreSQL cannot be read as configured."""

    exit_code = 4


class DecodeError(SourceError):
    """Bytes that violate their message's format: in `what`, at `offset`, with `need` and `have` bytes."""

    def __init__(self, what: str, offset: int, need: int, have: int) -> None:
        super().__init__(
            "TR-210",
            f"cannot decode {what} at offset {offset}",
            detail=f"{need} bytes needed, {have} available.",
            hint="This is a bug or a damaged connection; the slot still has the data. Please report it.",
        )
        self.offset = offset


class SinkError(TailraceError):
    """Kafka, the warehouse, the search index or the schema registry is not reachable or refuses a request."""

    exit_code = 5


class StateError(TailraceError):
    """The stored states of both sides do not match; to continue could lose data, so a person decides."""

    exit_code = 6


class RebuildError(StateError):
    """A view cannot continue with its present rows; the hint is the command that rebuilds it.

    `before` and `after` are texts around that command.
    """

    def __init__(
        self, code: str, message: str, *, view: str, detail: str = "", before: str = "", after: str = ""
    ) -> None:
        super().__init__(code, message, detail=detail, hint=f"{before}tailrace views rebuild {view}{after}")
        self._view = view
        self._around = before, after

    def of_base_table(self, table: str, reader: str) -> RebuildError:
        """Return the same error about the base table of `table`, with the command for a view that reads it."""
        message = self.message.replace(f'view "{self._view}"', f'view "{reader}": the base table of {table}', 1)
        before, after = self._around
        return RebuildError(self.code, message, view=reader, detail=self.detail, before=before, after=after)


class FoundError(TailraceError):
    """A comparison found a difference; the findings have been printed."""

    exit_code = 7


class DeadlineError(TailraceError):
    """A deadline passed; the wait itself changed nothing."""

    exit_code = 8
