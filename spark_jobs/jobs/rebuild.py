"""Rebuild views from offset 0 beside the live ones, then swap; `follow` may run meanwhile.

    python -m tailrace.spark_jobs.jobs.rebuild [--config tailrace.toml] [--no-swap | --dry-run] [--json] VIEW ...

spark-submit accepts this file, too. Prints JSON lines on stderr: one per batch, and the progress of long batches;
with --json, one JSON object per view on stdout when its generation is complete.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.jobs.command import opened, parser, run
from tailrace.spark_jobs.jobs.plan import plan
from tailrace.spark_jobs.jobs.swap import advance, alone, catch_up, held, keep, swap_in
from tailrace.spark_jobs.log import line, result
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.percolate import PercolateBatch
from tailrace.spark_jobs.topics.cuts import Cuts
from tailrace.spark_jobs.views import declare
from tailrace.spark_jobs.views.lower import in_order

_FIRST_CUT_S: Final = 5.0


def main(arguments: Sequence[str]) -> int:
    options = parser("Rebuild views from offset 0 and swap them in.")
    options.add_argument("--no-swap", action="store_true", help="leave the new generation beside the live one")
    options.add_argument("--dry-run", action="store_true", help="print what would be read, without starting Spark")
    options.add_argument("--json", action="store_true", help="with --dry-run: one JSON object per view")
    options.add_argument("views", nargs="+", metavar="VIEW")
    given = options.parse_args(arguments)

    def job(config: Config) -> None:
        if given.dry_run:
            foretell(config, dict.fromkeys(given.views), as_json=given.json)
            return
        done: list[str] = []
        try:
            with opened(config, given.views) as shared:
                for name in in_order(config, given.views):
                    view = open_view(shared, name)
                    found = _as_json(view, rebuild(shared, view, swap=not given.no_swap))
                    if given.json:
                        result(orjson.dumps(found).decode())
                    state = "live" if found["live"] else "staged"
                    done.append(f"{name}: generation {found['generation']} is {state} at {found['lsn']}")
        finally:
            # also of those before one that failed
            for text in done if not given.json else ():
                result(text)

    return run(job, given.config)


def foretell(config: Config, names: Iterable[str], *, as_json: bool) -> None:
    """Print what rebuilds would read and how long they would take."""
    with Cuts(config) as cuts:
        cuts.look(_FIRST_CUT_S)
        newest = {name: cuts.seen(declare(config, name)) for name in names}
    for name, seen in newest.items():
        if seen is None:
            raise StateError(
                "TR-579",
                f'the topics have no state yet to build view "{name}" from',
                detail="The first snapshot is not complete, or the daemon has not run.",
                hint="tailrace status",
            )
        found = plan(config, name, seen.cut)
        result(orjson.dumps(found.to_dict()).decode() if as_json else "\n".join(found.lines()))


def rebuild(shared: Shared, view: KeptView, *, swap: bool = True) -> Applied:
    """Fill a new generation, catch up, swap under the lease; return it, live or (without `swap`) staged.

    Readers see nothing of it before the swap; if killed at any moment, it leaves only data that the next rebuild drops.
    The first generation of all is live at once, because there is no other one.
    """
    with alone(shared, view):
        target = view.batch.target
        live = target.live()
        if live is None:
            return _first(shared, view)
        if isinstance(view.batch, PercolateBatch):
            return _go_on(shared, view, view.batch)
        with held(view):
            # Generations that were staged or rolled back from are replaced by the new one.
            target.keep([number for number in target.generations() if number < live.generation])
        columns, key = view.batch.layout()
        generation = target.stage(columns, key)
        applied = catch_up(shared, view, advance(shared, view, None, shared.cuts.wait(view.declared), generation))
        if swap:
            applied = swap_in(shared, view, applied)
            keep(shared, view, live.generation)
        else:
            lsn = format_lsn(applied.cut.flushed_lsn)
            line(event="generation staged", view=view.declared.name, generation=applied.generation, lsn=lsn)
        return applied


def _as_json(view: KeptView, applied: Applied) -> dict[str, object]:
    live = view.batch.target.live()
    return {
        "view": view.declared.name,
        "generation": applied.generation,
        "lsn": format_lsn(applied.cut.flushed_lsn),
        "live": live is not None and live.generation == applied.generation,
    }


def _first(shared: Shared, view: KeptView) -> Applied:
    """Build the first generation, like the first batch of `follow`: there is no live one to build beside."""
    with held(view):
        live, level_ms = view.load()
        if live is None:
            seen = shared.cuts.wait(view.declared)
            live, level_ms = advance(shared, view, None, seen, None), seen.level_ms
        view.publish(live, level_ms)
        return live


def _go_on(shared: Shared, view: KeptView, batch: PercolateBatch) -> Applied:
    """Continue a percolate view from its cut, or from the newest cut if that is impossible.

    Its matches are of changes that the topics do not retain, so they cannot be rebuilt.
    """
    with held(view):
        live, level_ms = view.load()
        assert live is not None
        seen = shared.cuts.wait(view.declared)
        try:
            view.check_tombstones(live, level_ms, seen)
            applied = advance(shared, view, live, seen, None)
        except StateError as error:
            applied = batch.begin_anew(live, seen)
            without = [format_lsn(state.cut.flushed_lsn) for state in (live, applied)]
            line(event="changes skipped", level="warning", view=view.declared.name, code=error.code, without=without)
        view.publish(applied, seen.level_ms)
        return applied


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
