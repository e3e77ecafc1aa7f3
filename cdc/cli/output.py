"""Print results on standard output, line by line. Logs, progress and errors go to standard error."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import typer


def line(text: str = "") -> None:
    """Print a line; if the reader has closed the pipe (``| head``), end the command quietly."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def print_what_cannot_be_encoded() -> None:
    """Escape characters that standard output's encoding lacks: no locale must make a command fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def json(value: Any) -> None:
    """Print a value as one line of JSON, in ASCII only if the encoding is not UTF-8."""
    text = json_text(value)
    if (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"):
        import json as standard

        text = standard.dumps(standard.loads(text))
    line(text)


def json_text(value: Any) -> str:
    """Return a value as one line of JSON."""
    import orjson

    return orjson.dumps(value, default=str).decode()


def note(text: str) -> None:
    """Print a note, which is not a result, on standard error."""
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below a head, each column as wide as its widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def lag_text(lag_bytes: int | None, lag_seconds: float | None) -> str:
    """Format a lag: 0 s if no change is missing, "unknown" if the time is None."""
    if lag_seconds is None:
        return "unknown"
    if lag_seconds == 0:
        return "0 s"
    shown = f"{lag_seconds:.1f} s" if lag_seconds < 120 else duration_text(lag_seconds)
    return f"{shown}, {bytes_text(lag_bytes)}" if lag_bytes else shown


def width() -> int:
    """Return the terminal's width; off a terminal, lines are not wrapped, so that grep finds them."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else sys.maxsize


def bytes_text(number: float) -> str:
    """Format a size in bytes with a decimal unit, for example 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def duration_text(seconds: float) -> str:
    """Format a duration in seconds with the largest suitable unit, for example 2.5 hours."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
