"""Compare, swap, roll back or drop generations of a view, even while `follow` runs.

    python -m tailrace.spark_jobs.jobs.generations compare|swap|rollback|drop [--config tailrace.toml] [--json] VIEW

Prints its result on stdout and its log as JSON lines on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import FoundError, TailraceError
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.read.which_generation import before_in, check_drop
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.jobs.command import opened, parser, run
from tailrace.spark_jobs.jobs.compare import Comparison, compare
from tailrace.spark_jobs.jobs.swap import alone, catch_up, held, keep, live_of, staged_of, swap_in
from tailrace.spark_jobs.log import result
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.percolate import PercolateBatch


def main(arguments: Sequence[str]) -> int:
    given = _arguments(arguments)

    def job(config: Config) -> None:
        with opened(config, [given.view]) as shared:
            view = open_view(shared, given.view)
            if given.command == "compare":
                found = compare(shared, view, given.limit)
                _print(given.json, found.to_dict(), found.lines())
                _refuse(found)
            elif given.command == "drop":
                _print(given.json, *_dropped(view, drop(shared, view, given.generation, given.confirm)))
            elif given.command == "swap":
                _print(given.json, *_live(view, swap(shared, view)))
            else:
                _print(given.json, *_rolled_back(shared, view, rollback(shared, view)))

    return run(job, given.config)


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    options = parser("Compare, swap, roll back, drop generations of a view.")
    options.add_argument("--json", action="store_true", help="one JSON object")
    options.add_argument("--limit", type=int, default=20, help="compare: differing keys to list")
    options.add_argument("--generation", type=int, help="drop: this one; default: all")
    options.add_argument("--confirm", metavar="VIEW", help="drop: the view's name, to drop what readers see")
    options.add_argument("command", choices=("compare", "swap", "rollback", "drop"))
    options.add_argument("view", metavar="VIEW")
    return options.parse_args(arguments)


def swap(shared: Shared, view: KeptView) -> Applied:
    """Bring the staged generation to the newest cut and make it live: no reader sees an older state.

    StateError (TR-571) if none is staged; TR-526, TR-548 and others if it can no longer be brought forward.
    """
    with alone(shared, view):
        found = view.batch.target.generations()
        live = live_of(view)
        staged = staged_of(view, found, live)
        view.check_tombstones(staged, staged.level_since_ms, shared.cuts.wait(view.declared))
        applied = swap_in(shared, view, catch_up(shared, view, staged))
        keep(shared, view, live.generation)
        return applied


def rollback(shared: Shared, view: KeptView) -> Applied:
    """Make the previous generation live again, at its own cut; `follow` brings it forward from there.

    The generation that was live stays beside it, for `swap`. StateError (TR-572) if there is no previous one.
    """
    target = view.batch.target
    with alone(shared, view), held(view):
        before = before_in(view.declared.name, target.generations(), live_of(view))
        target.swap(before, target.key(before))
        applied = live_of(view)
        view.publish(applied, applied.level_since_ms)
        return applied


def what_may_refuse(shared: Shared, view: KeptView, applied: Applied) -> TailraceError | None:
    """Return the error of the next batch of a generation, if what it needs was deleted in the meantime.

    A batch whose lookups still have the rows as of the generation's cut does not need the deleted state.
    """
    try:
        view.check_tombstones(applied, applied.level_since_ms, shared.cuts.wait(view.declared))
        view.batch.check_inputs(applied)
    except TailraceError as error:
        return error
    return None


def drop(shared: Shared, view: KeptView, generation: int | None, confirmed: str | None) -> list[int]:
    """Drop one generation beside the live one, or all if `confirmed` is the view's name.

    Returns the numbers of the dropped ones. The topic of a percolate view stays: other programs may use its matches.
    """
    name, target = view.declared.name, view.batch.target
    with alone(shared, view), held(view):
        found = target.generations()
        live = live_of(view)
        check_drop(name, found, live, generation, confirmed)
        if generation is not None and generation != live.generation:
            target.keep([number for number in found if number != generation])
            return [generation]
        target.remove()
        if isinstance(view.batch, PercolateBatch):
            view.batch.remove_queries()
        shared.views_topic.forget(name)
        return sorted(found)


def _live(view: KeptView, applied: Applied) -> tuple[dict[str, Any], list[str]]:
    name, lsn = view.declared.name, format_lsn(applied.cut.flushed_lsn)
    lines = [f"{name}: generation {applied.generation} is live, at {lsn}"]
    fits = applied.definition == view.declared.definition
    if not fits:
        lines.append(
            "It was built from another query or layout; `follow` continues it once the configuration has that one."
        )
    return {"view": name, "generation": applied.generation, "lsn": lsn, "fits_configuration": fits}, lines


def _rolled_back(shared: Shared, view: KeptView, applied: Applied) -> tuple[dict[str, Any], list[str]]:
    found, lines = _live(view, applied)
    error = what_may_refuse(shared, view, applied)
    if error is not None:
        lines.append(f"The next batch may be refused: {error.code}, {error.message}.")
        lines.append(f"If it is: tailrace views rebuild {view.declared.name}")
    return {**found, "may_be_refused": error.code if error else None}, lines


def _dropped(view: KeptView, generations: list[int]) -> tuple[dict[str, Any], list[str]]:
    name = view.declared.name
    return {"view": name, "dropped": generations}, [f"{name}: dropped {', '.join(map(str, generations))}"]


def _refuse(found: Comparison) -> None:
    if found.different:
        raise FoundError(
            "TR-573",
            f'generations {found.live} and {found.staged} of view "{found.view}" differ',
            detail=f"Differing keys: {found.counts.total}, at {found.lsn}.",
            hint="If the difference is intended: tailrace views swap " + found.view,
        )


def _print(as_json: bool, value: dict[str, Any], lines: Iterable[str]) -> None:
    result(orjson.dumps(value, default=str).decode() if as_json else "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
