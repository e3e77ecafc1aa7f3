"""`tailrace verify --repair`: show what it will do, ask, do it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.job import ended, run_on

if TYPE_CHECKING:
    from tailrace.cdc.operations.repair import Plan
    from tailrace.cdc.operations.verify_result import Result
    from tailrace.schemas.config.file import Loaded


def refuse_unasked(*, yes: bool) -> None:
    """Raise ConfigError (TR-702) if nobody can be asked and `yes` is not given."""
    from tailrace.schemas.errors import ConfigError

    if not yes and not sys.stdin.isatty():
        raise ConfigError(
            "TR-702",
            "a repair asks before it changes anything, and there is no terminal",
            hint="tailrace verify --repair --yes",
        )


def confirmed(plan: Plan, *, yes: bool, json: bool) -> bool:
    """Show a plan and return whether it may be carried out."""
    if json:
        output.json({"plan": plan.to_dict()})
    for number, text in enumerate(plan.words(), 1):
        for part in output.wrapped(f"repair {number}: {text}", output.width()) if not json else ():
            output.line(part)
    return yes or typer.confirm("Repair?", err=True)


def carry_out(
    plan: Plan,
    file: Loaded,
    timeout: float,
    limit: int,
    show: Callable[[Display, Result], None],
    *,
    json: bool,
) -> list[Result]:
    """Repair topics, then views; return the comparisons that the Spark job makes afterwards, passed to `show`.

    Exits with the job's code if it fails; the job has printed its error.
    """
    results: list[Result] = []
    with Display("repairing", json=json) as display:
        import orjson

        from tailrace.cdc.launch.spark_job import job
        from tailrace.cdc.operations.repair import read_again
        from tailrace.cdc.operations.verify_result import Result

        def on_progress(what: str, done: int, total: int | None) -> None:
            display.step(what, done, total, "rows")

        def result(line: str) -> None:
            found: dict[str, Any] = orjson.loads(line)
            if "repaired" in found:
                _say(display, found["repaired"], json=json)
                return
            results.append(Result.from_dict(found))
            show(display, results[-1])

        for read in plan.tables:
            read_again(file.config, read, timeout, on_progress)
            _say(display, {"view": None, "table": read.table, "keys": read.keys}, json=json)
        code = 0
        if plan.names:
            display.show("starting Spark", None)
            options = ["--config", str(file.path)] if file.path else []
            started = job(file.config, "repair", [f"--limit={limit}", *options, *plan.names])
            code = run_on(display, started, result)
    ended(code)
    return results


def _say(display: Display, repaired: dict[str, Any], *, json: bool) -> None:
    """Print what was repaired: the topic of a table, a view, or a base table below it."""
    if json:
        display.line(output.json_text({"repaired": repaired}))
        return
    view, table, keys = repaired["view"], repaired["table"], repaired["keys"]
    if view is None:
        display.line(f"{table}: rows of {keys} keys read again")
        return
    what = f"{view}, base table of {table}" if table else view
    display.line(f"{what}: {keys} keys repaired  (C {repaired['cut']})")
