"""Command `verify`: compare source, topics and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cdc.cli import output
from tailrace.cdc.cli.display import Display
from tailrace.cdc.cli.job import ended, run_on
from tailrace.cdc.cli.options import ConfigFile, Json, lsn_of
from tailrace.schemas.verify_scope import WHOLE, Scope

if TYPE_CHECKING:
    from tailrace.cdc.operations.verify_result import Result
    from tailrace.schemas.config.file import Loaded
    from tailrace.schemas.errors import TailraceError


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
        bool,
        typer.Option("--all", help="Also compare queries, logs, matches and versions of histories; starts Spark."),
    ] = False,
    log: Annotated[
        bool, typer.Option("--log", help="Compare the topics with their position records; do not read the source.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Show how differences would be repaired, ask, do it, and compare again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do not ask.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="LSN", help="Compare with the topics only keys whose newest record is after this LSN."),
    ] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Compare with the topics only a sample of the keys: 1%.")
    ] = None,
    staged: Annotated[
        bool, typer.Option("--staged", help="Compare the staged generation of these views with the topics.")
    ] = False,
) -> None:
    """Compare source, topics and views at one LSN, row by row; exit code 7 if they differ.

    Views of queries, logs and matches are compared with their content, recomputed from the topics; so are all views
    with --since, --sample and --staged, which do not read the source.
    """
    scope = _scope(since, sample, staged=staged)
    if scope != WHOLE and (log or repair):
        raise typer.BadParameter("--since, --sample and --staged cannot be combined with --log or --repair.")
    if staged and not views:
        raise typer.BadParameter("--staged needs the names of views.")
    if yes and not repair:
        raise typer.BadParameter("--yes answers what --repair asks; it means nothing without it.")
    if log:
        if views or every or repair:
            raise typer.BadParameter(
                "--log checks the topics of all tables; do not name views, and leave out --all and --repair."
            )
        _verify_log(config, json, limit)
        return
    command = _Command(config, timeout, limit, json, scope)
    if not repair:
        command.finish(*command.compare(views or [], every=every))
        return
    from tailrace.cdc.cli.repair import carry_out, confirmed, refuse_unasked
    from tailrace.cdc.operations.repair import MOST_KEYS, plan_of

    refuse_unasked(yes=yes)
    results, late = command.compare(views or [], every=every, listed=MOST_KEYS)
    plan = plan_of(results)
    if plan is None:
        output.note("nothing to repair")
        command.finish(results, late)
    elif not confirmed(plan, yes=yes, json=json):
        command.finish(results, late)
    else:
        repaired = carry_out(plan, command.file(), timeout, limit, command.show, json=json)
        again = [result.view for result in results if result.x is not None and not result.equal]
        after, later = command.compare(again, every=False) if again else ([], [])
        command.finish([*repaired, *after], [*late, *later])


@dataclass(slots=True)
class _Command:
    """The options of one call, and what it does with them."""

    config: Path | None
    timeout: float
    limit: int
    json: bool
    scope: Scope = WHOLE
    code: int = 0
    """The exit code of the Spark job that compares views."""
    _file: Loaded | None = None

    def file(self) -> Loaded:
        """Return the configuration, read once."""
        from tailrace.schemas.config.file import read

        self._file = self._file or read(self.config)
        return self._file

    def compare(
        self, names: Sequence[str], *, every: bool, listed: int = 0
    ) -> tuple[list[Result], list[TailraceError]]:
        """Compare views, print the results, and return them and what could not be compared.

        `listed`: up to so many differing keys are in the results, even if fewer are printed.
        """
        results: list[Result] = []
        late: list[TailraceError] = []
        with Display("asking Kafka for schemas", json=self.json) as display:
            from tailrace.cdc.operations.verify import verify as compare
            from tailrace.cdc.operations.views import computed, holds_rows, not_compared
            from tailrace.schemas.errors import TailraceError

            loaded = self.file().config
            whole = self.scope == WHOLE
            by_spark = computed(loaded, names, every=every, tables=not whole)
            of_tables = [name for name in names if holds_rows(loaded.views[name])]
            if not whole:
                display.note("the source is not read: views are compared with their topics")
            for kind, left_out in not_compared(loaded, by_spark).items() if not names else ():
                display.note(f"not compared{'' if every else ' without --all'}, because they are {kind}: {left_out}")

            def on_progress(what: str, done: int, total: int | None) -> None:
                display.step(what, done, total, "rows")

            def take(result: Result) -> None:
                results.append(result)
                self.show(display, result)

            most = max(self.limit, listed)
            try:
                if whole and (of_tables or not names):
                    for result in compare(
                        loaded, of_tables, timeout_s=self.timeout, limit=most, say=display.note, on_progress=on_progress
                    ):
                        take(result)
            except TailraceError as error:
                late.append(error)
            if by_spark:
                self.code = self._compare_by_spark(display, by_spark, take)
        return results, late

    def show(self, display: Display, result: Result) -> None:
        """Print a result."""
        from tailrace.cdc.cli.verify_report import lines

        shown = result.limited(self.limit)
        for text in [output.json_text(shown.to_dict())] if self.json else lines(shown):
            for part in [text] if self.json else output.wrapped(text, output.width()):
                display.line(part)

    def finish(self, results: Sequence[Result], late: Sequence[TailraceError]) -> None:
        """Raise the error that ends the command, if views differ or could not be compared."""
        from tailrace.cdc.cli.verify_report import summary
        from tailrace.schemas.errors import all_of

        failure = summary(results)
        if failure is not None or late:
            # the exit code is that of a difference, if there is one
            raise all_of([failure, *late] if failure is not None else late)
        ended(self.code)

    def _compare_by_spark(self, display: Display, names: Sequence[str], take: Callable[[Result], None]) -> int:
        """Run the job that compares views with their recomputed content; return its exit code. It prints its errors."""
        import orjson

        from tailrace.cdc.launch.spark_job import job
        from tailrace.cdc.operations.verify_result import Result

        display.show("starting Spark", None)
        found = self.file()
        file = ["--config", str(found.path)] if found.path else []
        started = job(found.config, "verify", [f"--limit={self.limit}", *self.scope.arguments(), *file, *names])
        return run_on(display, started, lambda line: take(Result.from_dict(orjson.loads(line))))


def _scope(since: str | None, sample: str | None, *, staged: bool) -> Scope:
    """Return what the options choose; usage error if one of them is malformed."""
    share: float | None = None
    if sample is not None:
        try:
            share = float(sample.removesuffix("%")) / 100 if sample.endswith("%") else 0.0
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise typer.BadParameter(f'"{sample}" is no share of the keys: write a percentage, for example 1%.')
    return Scope(None if since is None else lsn_of(since), share, staged)


def _verify_log(config: Path | None, json: bool, limit: int) -> None:
    with Display("asking Kafka", json=json) as display:
        from tailrace.cdc.cli.log_report import lines, summary
        from tailrace.cdc.operations.verify_log import verify_log
        from tailrace.schemas.config.file import load

        loaded = load(config)

        def on_progress(what: str, done: int, total: int | None) -> None:
            display.step(what, done, total, "records")

        proof = verify_log(loaded, limit=limit, on_progress=on_progress)
    if json:
        output.json(proof.to_dict())
    else:
        for text in lines(proof):
            for part in output.wrapped(text, output.width()):
                output.line(part)
    failure = summary(proof)
    if failure is not None:
        raise failure
