"""`tailrace check`: every condition that `run` and `views follow` need, found before a start."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.options import ConfigFile, Json

if TYPE_CHECKING:
    from tailrace.cdc.check.finding import Finding

_INDENT = " " * 7

_PASTED: Final = re.compile(
    r"(tailrace|kcat|kafka-[\w.-]+|apt-get|curl|df|dmesg|docker|export|iconv|ls|mkdir|pip|psql|ss|systemctl) "
    r"|[A-Z_]+=\S|[A-Z]{3,} |--|\[|\"|[\w.]+ = "
)
"""The start of a command, of SQL or of a line of tailrace.toml; other lines of a hint are prose."""


def check(
    config: ConfigFile = None,
    json: Json = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="source, kafka or views; may be repeated. Default: all."),
    ] = None,
) -> None:
    """Report everything that would stop `run` or `views follow`, or hurt later. Nothing is changed.

    Exit code 7 if something stops a start.
    """
    with Display("asking PostgreSQL and Kafka", json=json):
        found = _findings(config, only)
    stops = sum(each.stops for each in found)
    if json:
        output.json({"stops": stops, "findings": [each.to_dict() for each in found]})
    else:
        for text in finding_lines(found):
            for part in output.wrapped(text, output.width()) if not text.startswith(f"{_INDENT}paste ") else [text]:
                output.line(part)
        output.line(_summary(found, stops))
    if stops:
        raise typer.Exit(7)


def _findings(config: Path | None, only: Sequence[str] | None) -> list[Finding]:
    from tailrace.cdc.check.finding import Findings
    from tailrace.cdc.check.run_check import PARTS, check
    from tailrace.schemas.config.file import find, load
    from tailrace.schemas.errors import ConfigError, UsageError

    for each in only or ():
        if each not in PARTS:
            raise UsageError(
                "TR-004",
                f'unknown part "{each}" for "--only"',
                detail=f"Parts: {', '.join(PARTS)}.",
                hint="tailrace check --only source",
            )
    try:
        loaded = load(config)
    except ConfigError as error:
        findings = Findings()
        findings.add("configuration", error)
        return findings.sorted()
    path = find(config, os.environ, needed=False)
    return check(loaded, [part for part in PARTS if not only or part in only], path)


def finding_lines(found: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines of the findings: severity, id and part, what was seen and wanted, hints and lines to paste."""
    for each in found:
        yield f"{each.severity.upper():<5}  {each.id}  {each.object}: {each.seen}"
        yield f"{_INDENT}wanted {each.wanted}"
        for line in each.paste.splitlines():
            yield f"{_INDENT}{'paste' if _PASTED.match(line) else 'hint '}  {line}"
        yield f"{_INDENT}page   {each.page}"
        yield ""


def _summary(found: Sequence[Finding], stops: int) -> str:
    warnings = sum(each.severity == "warn" for each in found)
    counted = f"{warnings} {'warning' if warnings == 1 else 'warnings'}"
    if not stops:
        return f"Nothing stops a start; {counted}."
    return f"{stops} {'finding stops' if stops == 1 else 'findings stop'} a start; {counted}."
