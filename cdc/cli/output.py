"""Standard output: results only, a line at a time. Logs, progress and errors go to standard error."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import typer


def line(text: str = "") -> None:
    """Print a line; when its reader has gone (``| head``), end the command quietly."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def print_what_cannot_be_encoded() -> None:
    """Escape on standard output what its encoding lacks, as on standard error: a locale is no reason to fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def json(value: Any) -> None:
    """Print a value as one line of JSON, of ASCII alone where the encoding is another than UTF-8."""
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
    """Tell a person something that is no result."""
    print(text, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as they need to be."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def lag_text(lag_bytes: int | None, lag_seconds: float | None) -> str:
    """Say how far behind something is: 0 s when nothing is missing."""
    if lag_seconds is None:
        return "unknown"
    if lag_seconds == 0:
        return "0 s"
    shown = f"{lag_seconds:.1f} s" if lag_seconds < 120 else duration_text(lag_seconds)
    return f"{shown}, {bytes_text(lag_bytes)}" if lag_bytes else shown


def width() -> int:
    """Return the width of the terminal; off a terminal no line is broken, so that it can be searched."""
    return shutil.get_terminal_size((80, 24)).columns if sys.stdout.isatty() else sys.maxsize


def bytes_text(number: float) -> str:
    """Say a size as people do."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def duration_text(seconds: float) -> str:
    """Say a time as people do."""
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
