"""`tailrace explain`: cause and remedy of an error code, from the registry of codes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.options import Json

if TYPE_CHECKING:
    from tailrace.schemas.error_codes import ErrorCode


def explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="TR-204, tr-204 or 204; default: list all codes.")
    ] = None,
    json: Json = False,
) -> None:
    """Explain an error code: cause, remedy, whether it is retried, exit code."""
    from tailrace.schemas.error_codes import CODES

    if code is None:
        entries = list(CODES.values())
        if json:
            output.json([entry.to_dict() for entry in entries])
            return
        rows = [(entry.id, _number(entry), entry.retry.name.lower(), entry.title) for entry in entries]
        output.table(("code", "exit", "retry", "title"), rows)
        return
    entry = _named(code)
    if json:
        output.json(entry.to_dict())
        return
    for line in _lines(entry, output.width()):
        output.line(line)


def _named(given: str) -> ErrorCode:
    from difflib import get_close_matches

    from tailrace.schemas.error_codes import CODES, code
    from tailrace.schemas.errors import UsageError

    wanted = given.upper()
    wanted = f"TR-{wanted}" if wanted.isdigit() else wanted
    if wanted in CODES:
        return code(wanted)
    listed = "tailrace explain  # lists all codes"
    if re.fullmatch(r"TR-\d{3}", wanted):
        near = ", ".join(sorted(sorted(CODES, key=lambda each: abs(int(each[3:]) - int(wanted[3:])))[:3]))
        raise UsageError("TR-005", f"there is no error code {wanted}", detail=f"The nearest are {near}.", hint=listed)
    nearest = get_close_matches(wanted, CODES, n=1)
    raise UsageError(
        "TR-005",
        f'unknown error code "{given}"',
        detail="Usage: tailrace explain [OPTIONS] [CODE]",
        hint=f'Did you mean "tailrace explain {nearest[0]}"? {listed}' if nearest else listed,
    )


def _number(entry: ErrorCode) -> str:
    return "-" if entry.exit_code is None else str(entry.exit_code)


def _lines(entry: ErrorCode, width: int) -> Iterator[str]:
    yield f"{entry.id}  {entry.title}"
    parts = {
        "Cause": entry.cause,
        "Remedy": entry.remedy,
        "Retried": entry.what_follows,
        "Exit code": _number(entry),
    }
    for name, text in parts.items():
        yield ""
        yield from textwrap.wrap(
            text,
            width,
            initial_indent=f"{name:<11}",
            subsequent_indent=" " * 11,
            break_long_words=False,
            break_on_hyphens=False,
        )
