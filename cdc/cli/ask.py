"""Send a request to the daemon over Kafka and print the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display

if TYPE_CHECKING:
    from pathlib import Path

    from tailrace.schemas.records.requests import Outcome, Request

Timeout = Annotated[
    float,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="Maximum wait for the daemon's answer. Then the request stays on Kafka, the next daemon executes it, and"
        ' the exit code is 0; in JSON, "taken" is false.',
    ),
]
TIMEOUT_S = 15.0

_WORDS: Final = {"unpark": "resume", "leave out": "leave-out"}
"""The commands whose actions have other names in requests."""


def ask(request: Request, timeout: float, config: Path | None, json: bool) -> None:
    """Send a request and print its outcome. Raises ConfigError TR-130 if it is refused for a table.

    No answer is no error: a request may be sent while no daemon runs, as for the recovery of a lost slot.
    """
    with Display("waiting for the daemon's answer", json=json):
        from tailrace.cdc.operations.snapshots import refuse_recovery
        from tailrace.schemas.config.file import load
        from tailrace.sinks.control.requests import Ask

        loaded = load(config)
        if request.is_recovery:
            refuse_recovery(loaded)
        with Ask(loaded.kafka, loaded.source.slot) as asked:
            asked.send(request)
            answer = asked.wait(timeout)
    if json:
        tables = [_dict(each) for each in answer or ()]
        output.json({"request": asked.id, "taken": answer is not None, "tables": tables})
    elif answer:
        output.table(("table", "run", "outcome"), [(e.table, str(e.run or "-"), e.outcome) for e in answer])
    if answer is None:
        output.note(
            f"no daemon answered within {timeout:.0f} s; the request stays on Kafka until `tailrace run` executes it"
        )
    elif not answer:
        output.note("no table is being read")
    _refuse([each for each in answer or () if each.refused], request)


def _refuse(refused: list[Outcome], request: Request) -> None:
    from tailrace.schemas.errors import ConfigError

    if refused:
        hints = dict.fromkeys(each.hint for each in refused if each.hint)
        about_reads = request.action in ("start", "pause", "resume", "cancel")
        word = _WORDS.get(request.action, request.action)
        raise ConfigError(
            "TR-130",
            f'request "{word}" refused for {", ".join(each.table for each in refused)}',
            detail="; ".join(f"{each.table}: {each.outcome}" for each in refused) + ".",
            hint="\n       ".join(hints) or ("tailrace snapshot status" if about_reads else "tailrace table list"),
        )


def table_names(tables: list[str] | None) -> tuple[str, ...]:
    """Return distinct names with their schema and without quotes; the default schema is public."""
    from tailrace.schemas.table_names import qualified

    return tuple(dict.fromkeys(map(qualified, tables or ())))


def _dict(outcome: Outcome) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(outcome)
