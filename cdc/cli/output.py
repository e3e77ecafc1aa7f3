"""Print results on standard output, line by line. Logs, progress and errors go to standard error."""

from __future__ import annotations

import io
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, TextIO

import typer

from tailrace.cdc.operations.quantities import bytes_text as bytes_text

CUT: Final = 128 + signal.SIGPIPE
"""Exit code of a command whose output was cut, as that of other Unix tools, which SIGPIPE ends."""

_NARROWEST: Final = 8
"""No column of a table is made narrower, even if the table is wider than the terminal then."""
_BELOW_HINT: Final = " " * 7


def line(text: str = "") -> None:
    """Print a line; if the reader has closed the pipe (``| head``), end the command quietly with `CUT`."""
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CUT) from None


def open_missing_streams() -> None:
    """Discard what goes to a standard stream that is closed, as some supervisors leave it."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def cannot_be_written() -> bool:
    """Return whether standard output cannot be written, such as on a full disk; then its text is given up."""
    try:
        # the failed text may not be in the buffer any more
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        # The interpreter flushes again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


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
    """Print a note, which is not a result, on standard error; on a terminal, long lines break at spaces."""
    print("\n".join(fitted(each, _width(sys.stderr)) for each in text.split("\n")), file=sys.stderr, flush=True)


def fitted(text: str, most: int) -> str:
    """Break a line at spaces if it is longer than `most`; those of a hint stay whole, to be pasted."""
    if len(text) <= most or text.startswith(("HINT", _BELOW_HINT)):
        return text
    indent = _BELOW_HINT if text.startswith(("ERROR  ", "DETAIL ")) else ""
    return textwrap.fill(
        text, most, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def wrapped(text: str, most: int) -> list[str]:
    """Break a line of a report at spaces if it is longer than `most`; its rest is indented further than its start."""
    if len(text) <= most:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.wrap(text, most, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, breaks_words: bool = False) -> None:
    """Print rows below a head, each column as wide as its widest cell or as the terminal allows.

    Names and LSNs stay whole, to be copied, unless `breaks_words`, for tables of long paths.
    """
    for text in table_lines(head, rows, width(), breaks_words=breaks_words):
        line(text)


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], most: int, *, breaks_words: bool = False
) -> Iterator[str]:
    """Yield the lines of a table; if they would be longer than `most`, cells are broken at spaces.

    If that is not enough, each row is a block of lines, one for each cell that is not empty.
    """
    columns = list(zip(head, *rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    least = [_NARROWEST if breaks_words else word for word in words]
    between = 2 * (len(widths) - 1)
    while sum(widths) + between > most:
        wide = [n for n, (width, low) in enumerate(zip(widths, least, strict=True)) if width > low]
        if not wide:
            break
        widths[max(wide, key=lambda n: widths[n])] -= 1
    if sum(widths) + between > most and not breaks_words:
        yield from _blocks(head, rows, most)
        return
    for row in (head, *rows):
        cells = [_broken(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            yield "  ".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()


def _blocks(head: Sequence[str], rows: Sequence[Sequence[str]], most: int) -> Iterator[str]:
    """Yield each row as lines ``name: cell``, with an empty line between two rows."""
    for n, row in enumerate(rows):
        if n:
            yield ""
        for name, cell in zip(head, row, strict=True):
            text = f"{name}: {cell}" if name else cell
            if len(text) <= most:
                yield from [text] if cell else []
                continue
            yield f"{name}:"
            for part in textwrap.wrap(cell, most - 2, break_long_words=False, break_on_hyphens=False):
                yield f"  {part}"


def _broken(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)


def width() -> int:
    """Return the terminal's width; off a terminal, lines are not wrapped, so that grep finds them."""
    return _width(sys.stdout)


def _width(stream: TextIO) -> int:
    if not stream.isatty():
        return sys.maxsize
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
