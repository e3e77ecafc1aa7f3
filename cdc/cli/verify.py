"""Command `verify`: compare source, topics and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.job import ended, run_on
from tailrace.cdc.cli.options import ConfigFile, Json

if TYPE_CHECKING:
    from tailrace.cdc.operations.verify_result import Result
    from tailrace.schemas.config.model import Config


def verify(
    views: Annotated[
        list[str] | None, typer.Argument(metavar="VIEW...", help="Default: all views of one table; with --all, all.")
    ] = None,
    config: ConfigFile = None,
    json: Json = False,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Maximum wait for a transaction or a view.")
    ] = 120,
    limit: Annotated[
        int, typer.Option(min=0, metavar="N", help="Maximum differing keys, or findings, to print per comparison.")
    ] = 20,
    every: Annotated[
        bool, typer.Option("--all", help="Also compare queries, logs and all versions of histories; starts Spark.")
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Compare the topics with their position records; do not read the source.")
    ] = False,
) -> None:
    """Compare source, topics and views at one LSN, row by row; exit code 7 if they differ.

    Views of queries and logs are compared with their content, recomputed from the topics.
    """
    if log:
        if views or every:
            raise typer.BadParameter("--log checks the topics of all tables; do not name views, and leave out --all.")
        _verify_log(config, json, limit)
        return
    results: list[Result] = []
    with Display("asking Kafka for schemas", json=json) as display:
        from tailrace.cdc.cli.verify_report import lines, summary
        from tailrace.cdc.operations.verify import verify as compare
        from tailrace.cdc.operations.views import computed, holds_rows, not_compared
        from tailrace.schemas.config.file import read
        from tailrace.schemas.errors import TailraceError, all_of

        file = read(config)
        loaded, names = file.config, views or []
        by_spark = computed(loaded, names, every=every)
        of_tables = [name for name in names if holds_rows(loaded.views[name])]
        for kind, left_out in not_compared(loaded, by_spark).items() if not names else ():
            display.note(f"not compared{'' if every else ' without --all'}, because they are {kind}: {left_out}")

        def told(what: str, done: int, total: int | None) -> None:
            display.step(what, done, total, "rows")

        def take(result: Result) -> None:
            results.append(result)
            for text in [output.json_text(result.to_dict())] if json else lines(result):
                for part in [text] if json else output.wrapped(text, output.width()):
                    display.line(part)

        late: list[TailraceError] = []
        try:
            if of_tables or not names:
                for result in compare(loaded, of_tables, timeout_s=timeout, limit=limit, say=display.note, told=told):
                    take(result)
        except TailraceError as error:
            late.append(error)
        code = _compare_by_spark(display, loaded, file.path, by_spark, limit, take) if by_spark else 0
    failure = summary(results)
    if failure is not None or late:
        # the exit code is that of a difference, if there is one
        raise all_of([failure, *late] if failure is not None else late)
    ended(code)


def _compare_by_spark(
    display: Display,
    config: Config,
    path: Path | None,
    names: Sequence[str],
    limit: int,
    take: Callable[[Result], None],
) -> int:
    """Run the job that compares views with their recomputed content; return its exit code. It prints its errors."""
    import orjson

    from tailrace.cdc.launch.spark_job import job
    from tailrace.cdc.operations.verify_result import Result

    display.show("starting Spark", None)
    file = ["--config", str(path)] if path else []
    started = job(config, "verify", [f"--limit={limit}", *file, *names])
    return run_on(display, started, lambda line: take(Result.from_dict(orjson.loads(line))))


def _verify_log(config: Path | None, json: bool, limit: int) -> None:
    with Display("asking Kafka", json=json) as display:
        from tailrace.cdc.cli.log_report import lines, summary
        from tailrace.cdc.operations.verify_log import verify_log
        from tailrace.schemas.config.file import load

        loaded = load(config)

        def told(what: str, done: int, total: int | None) -> None:
            display.step(what, done, total, "records")

        proof = verify_log(loaded, limit=limit, told=told)
    if json:
        output.json(proof.to_dict())
    else:
        for text in lines(proof):
            for part in output.wrapped(text, output.width()):
                output.line(part)
    failure = summary(proof)
    if failure is not None:
        raise failure
