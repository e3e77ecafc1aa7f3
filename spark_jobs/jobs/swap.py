"""Replace a view's live generation: catch up, swap under the lease, retain old ones as configured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from tailrace.schemas.errors import StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.read.which_generation import live_in, staged_in
from tailrace.sinks.target.lease import Lease, lease_folder
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.jobs.plan import records_up_to
from tailrace.spark_jobs.jobs.progress import progress
from tailrace.spark_jobs.log import line
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import LEASE_WAIT_S, KeptView, Shared, not_free
from tailrace.spark_jobs.topics.cuts import SeenCut

_CATCH_UPS: Final = 3
"""Maximum passes, each shorter than the last; the remainder is applied under the lease, while `follow` waits."""


@contextmanager
def alone(shared: Shared, view: KeptView) -> Iterator[None]:
    """Be the only process on this host that builds, compares or swaps generations of a view.

    StateError (TR-528) if another one is doing so.
    """
    name = view.declared.name
    only_one = Lease(lease_folder(shared.config), f"{shared.config.kafka.prefix}.{name}.rebuild")
    with only_one.held(0) as mine:
        if not mine:
            raise StateError(
                "TR-528",
                f'view "{name}" is already being rebuilt, compared or swapped',
                detail="Another process on this host holds its rebuild lease.",
                hint="Wait for the other process, or end it; then repeat the command.",
            )
        yield


@contextmanager
def held(view: KeptView) -> Iterator[None]:
    """Hold the view's lease: a running `follow` waits, and reads the target again afterwards."""
    with view.lease.held(LEASE_WAIT_S) as mine:
        if not mine:
            raise not_free(view)
        try:
            yield
        finally:
            # In this process, too: its own lease does not show that another generation is live.
            view.forget()


def advance(shared: Shared, view: KeptView, applied: Applied | None, seen: SeenCut, generation: int | None) -> Applied:
    """Bring a generation to a cut; with nothing applied, fill it from offset 0."""
    report = Report()
    count = records_up_to(shared.config.kafka, view.declared, seen.cut) if applied is None else 0
    try:
        with progress(shared.records, view.declared.name, count, report):
            done = view.batch.advance(applied, seen, report, generation=generation)
    finally:
        shared.records.release()
    line(
        event="rebuild batch applied",
        view=view.declared.name,
        lsn=format_lsn(done.cut.flushed_lsn),
        generation=done.generation,
        rows=report.rows,
        ms=report.milliseconds,
    )
    return done


def catch_up(shared: Shared, view: KeptView, applied: Applied) -> Applied:
    """Bring a generation beside the live one close to the newest cut, while `follow` continues."""
    for _ in range(_CATCH_UPS):
        before = applied
        applied = advance(shared, view, applied, shared.cuts.wait(view.declared), applied.generation)
        if applied.cut.order == before.cut.order:
            break
    return applied


def swap_in(shared: Shared, view: KeptView, applied: Applied) -> Applied:
    """Bring a generation at least to the live one's cut, so that no reader sees an older state, and swap.

    Their rows are not compared here: both are made of the same topics. `jobs/compare.py` compares them on request.
    """
    target = view.batch.target
    with held(view):
        live, _ = view.load()
        seen = shared.cuts.wait(view.declared)
        while live is not None and seen.cut.order < live.cut.order:
            seen = shared.cuts.newest(view.declared, wait=1.0) or seen
        applied = advance(shared, view, applied, seen, applied.generation)
        target.swap(applied.generation, target.key(applied.generation))
        swapped = target.live()
        assert swapped is not None
        # The cut may be past the last commit; the record has both the cut and the snapshot that it is based on.
        applied = replace(swapped, cut=applied.cut)
        view.publish(applied, seen.level_ms)
    lsn = format_lsn(applied.cut.flushed_lsn)
    line(event="generation swapped", view=view.declared.name, generation=applied.generation, lsn=lsn)
    return applied


def keep(shared: Shared, view: KeptView, previous: int) -> None:
    """After a swap, retain the previously live generation and older ones, as many as configured."""
    target, count = view.batch.target, shared.config.views[view.declared.name].keep_generations
    with held(view):
        live = target.live()
        assert live is not None
        older = sorted((n for n in target.generations() if n < live.generation and n != previous), reverse=True)
        target.keep([previous, *older][:count])


def staged_of(view: KeptView, found: Mapping[int, Applied], live: Applied) -> Applied:
    """Return the staged generation. StateError (TR-571) if there is none."""
    return staged_in(view.declared.name, found, live)


def live_of(view: KeptView) -> Applied:
    """Return the live generation. StateError (TR-512) if there is none."""
    return live_in(view.declared.name, view.batch.target.live())
