"""Build views anew from offset 0 beside the live ones, then swap; `follow` may run meanwhile.

    python spark_jobs/rebuild.py [--config tailrace.toml] VIEW ...

A plain script for spark-submit, too. Prints one JSON line per batch on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from schemas.config import Config
from schemas.errors import StateError
from schemas.lsn import format_lsn
from sinks.changes import Applied
from sinks.lease import Lease, lease_folder
from spark_jobs.batch import Report
from spark_jobs.command import line, opened, parser, run
from spark_jobs.cuts import SeenCut
from spark_jobs.kept import SWAP_WAIT_S, KeptView, Shared
from spark_jobs.open_view import open_view
from spark_jobs.views.lower import in_order

_CATCH_UPS: Final = 3
"""Each is shorter than the one before; what is left is done under the lease, while follow waits."""


def main(arguments: Sequence[str]) -> int:
    options = parser("Build views anew from offset 0 and swap them in.")
    options.add_argument("views", nargs="+", metavar="VIEW")
    given = options.parse_args(arguments)

    def job(config: Config) -> None:
        with opened(config) as shared:
            for name in in_order(config, given.views):
                rebuild(shared, open_view(shared, name))

    return run(job, given.config)


def rebuild(shared: Shared, view: KeptView) -> Applied:
    """Fill a new generation, catch up, and swap under the lease; return what is live then.

    Until the swap nothing of it is seen; killed at any moment, it leaves only what the next rebuild drops.
    """
    name = view.declared.name
    only_one = Lease(lease_folder(shared.config), f"{shared.config.kafka.prefix}.{name}.rebuild")
    with only_one.held(0) as mine:
        if not mine:
            raise StateError(
                "TR-528",
                f'view "{name}" is being rebuilt already',
                detail="Another process on this host holds its rebuild lease.",
                hint="Wait for it, or end it; then repeat the command.",
            )
        if view.batch.target.live() is None:
            return _first(shared, view)
        columns, key = view.batch.layout()
        generation = view.batch.target.stage(columns, key)
        applied = _advance(shared, view, None, shared.cuts.wait(), generation)
        for _ in range(_CATCH_UPS):
            before = applied
            applied = _advance(shared, view, applied, shared.cuts.wait(), applied.generation)
            if applied.cut.order == before.cut.order:
                break
        with view.lease.held(SWAP_WAIT_S) as mine:
            if not mine:
                raise StateError(
                    "TR-529",
                    f'view "{name}": another process has held its lease for {SWAP_WAIT_S:.0f} s',
                    hint=f"The live view is as it was. Repeat: tailrace views rebuild {name}",
                )
            return _swap(shared, view, applied, key)


def _first(shared: Shared, view: KeptView) -> Applied:
    """There is nothing to stand beside: the same as the first batch of follow."""
    with view.lease.held(SWAP_WAIT_S):
        live, _ = view.load()
        applied = live or _advance(shared, view, None, shared.cuts.wait(), None)
        view.publish(applied)
        return applied


def _swap(shared: Shared, view: KeptView, applied: Applied, key: Sequence[str]) -> Applied:
    """Catch up to the live generation's cut at least, so that no reader sees an older state, and swap."""
    live, _ = view.load()
    seen = shared.cuts.wait()
    while live is not None and seen.cut.order < live.cut.order:
        seen = shared.cuts.newest(wait=1.0) or seen
    applied = _advance(shared, view, applied, seen, applied.generation)
    view.batch.target.swap(applied.generation, key)
    swapped = view.batch.target.live()
    assert swapped is not None
    # The cut may have moved past the last commit; the record says so, and on which snapshot it rests.
    applied = replace(swapped, cut=applied.cut)
    view.publish(applied)
    view.forget()
    line(
        event="swapped",
        view=view.declared.name,
        generation=applied.generation,
        lsn=format_lsn(applied.cut.flushed_lsn),
    )
    return applied


def _advance(shared: Shared, view: KeptView, applied: Applied | None, seen: SeenCut, generation: int | None) -> Applied:
    report = Report()
    try:
        done = view.batch.advance(applied, seen, report, generation=generation)
    finally:
        shared.records.release()
    line(
        event="rebuild",
        view=view.declared.name,
        lsn=format_lsn(done.cut.flushed_lsn),
        generation=done.generation,
        rows=report.rows,
        ms=report.milliseconds,
    )
    return done


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
