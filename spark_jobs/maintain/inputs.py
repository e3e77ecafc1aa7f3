"""The inputs of a query: base tables of captured tables, and other views, all at one cut.

A batch brings its inputs forward before it computes anything. So a process that maintains a view also maintains those
below it, even if another process maintains them, too; the lease of each decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tailrace.schemas.errors import RebuildError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.maintenance import rebuild_pin, verify_pin
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.target.protocol import Applied
from tailrace.spark_jobs.log import named
from tailrace.spark_jobs.lookup.known_tables import ViewLayout
from tailrace.spark_jobs.maintain.base_tables import BaseTables
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import HELD, LEASE_WAIT_S, KeptView, Shared, not_free
from tailrace.spark_jobs.maintain.waiting import Waiting, waits_for_tables
from tailrace.spark_jobs.query.catalog import is_view
from tailrace.spark_jobs.topics.cuts import SeenCut
from tailrace.spark_jobs.views import Declared

_PIN_DAYS: Final = 1


class Inputs:
    """The inputs of one view; the views among them are already open."""

    def __init__(self, shared: Shared, view: Declared) -> None:
        self._shared: Final = shared
        self._view: Final = view
        self._bases: Final = BaseTables(shared, view)
        self._reached: dict[str, Applied] = {}
        """Applied states of the input views at the last `advance`: they may be further by now."""

    def advance(self, seen: SeenCut) -> SeenCut:
        """Bring all inputs to one cut, this one or a newer one, and return it.

        `Waiting` if a view cannot continue; or if an input is past the cut already, and no newer one can be a state of
        all inputs yet: then one table is incomplete, and views of other tables have advanced.
        """
        while True:
            self._reached = {name: self.step(self._lower(name), seen) for name in self._view.views}
            reached = [*self._reached.values(), *self._bases.advance(self._view.topics_read, seen)]
            # Another process may have advanced an input further; an input never goes back.
            furthest = max(applied.cut.order for applied in reached)
            if furthest <= seen.cut.order:
                return seen
            while seen.cut.order < furthest:
                if seen.waits_for:
                    raise waits_for_tables(self._view.name, seen.waits_for, "Other tables that it reads are further.")
                seen = self._shared.cuts.newest(self._view, wait=1.0) or seen

    def take_as_they_are(self) -> None:
        """Take the live generations of the input views as reached, without bringing any forward."""
        live = {name: self._lower(name).batch.target.live() for name in self._view.views}
        self._reached = {name: applied for name, applied in live.items() if applied is not None}

    def base(self, topic: str) -> KeptView:
        """Return a topic's base table, which is maintained like a view."""
        return self._bases.view(topic)

    def renew(self, seen: SeenCut) -> SeenCut:
        """Bring all inputs to one cut, like `advance`; recreate base tables that cannot continue."""
        self._bases.renew(self._view.topics_read, seen)
        return self.advance(seen)

    def generations(self) -> dict[str, int]:
        """Return the generation of each input view, as of the last `advance`."""
        return {name: self._stands(name).generation for name in self._view.views}

    def follow_on(self, applied: Applied) -> bool:
        """Whether the states of all input views that `applied` was computed over can still be read.

        They cannot once a view was rebuilt or rolled back, or its snapshot has expired.
        """
        return applied.inputs == self.generations() and all(self.snapshot(v, applied.cut) for v in self._view.views)

    def rebuilt(self) -> Waiting:
        """Return the error for a batch during which `follow_on` has become false."""
        return Waiting(
            "TR-583",
            f'view "{self._view.name}": a view that it reads was rebuilt while its batch was under way',
            hint="The next batch begins anew by itself.",
        )

    def snapshot(self, name: str, cut: Cut) -> int | None:
        """Return the snapshot of an input at a cut that it has had; None if it does not go back that far."""
        return self._target(name).snapshot_at(cut, self._stands(name) if is_view(name) else None)

    def commit(self, view: str, cut: Cut) -> int | None:
        """Return the snapshot of the commit that made an input view's state at a cut; None if it is missing."""
        return self._target(view).commit_at(cut, self._stands(view))

    def newest(self, view: str) -> Applied:
        """Return the newest state of an input view, which may be past that of the last `advance`."""
        applied = self._target(view).live()
        assert applied is not None  # `advance` has brought it to a cut
        return applied

    def at(self, name: str, cut: Cut) -> str:
        """Return the FROM item of the rows of an input as of `cut`, without soft-deleted ones.

        RebuildError (TR-551) if that state is missing.
        """
        target, snapshot = self._target(name), self.snapshot(name, cut)
        if snapshot is None:
            raise self._gone(name, cut)
        return target.live_at(snapshot) if is_view(name) else f"{target.table()} VERSION AS OF {snapshot}"

    def _gone(self, name: str, cut: Cut) -> RebuildError:
        what = "It was rebuilt" if is_view(name) else "Its base table was made anew"
        return RebuildError(
            "TR-551",
            f'view "{self._view.name}": the state of "{name}" at {format_lsn(cut.flushed_lsn)} is gone',
            view=self._view.name,
            detail=f"{what} since this view was last brought forward.",
        )

    def rows_of(self, name: str, snapshot: int) -> Iterator[Any]:
        """Yield the rows of an input at a snapshot, as Arrow batches, without Spark."""
        return self._target(name).batches(snapshot)

    def pin(self, generation: int, cut: Cut) -> None:
        """Protect the states at a cut from expiry until this generation is live, for at most a day."""
        for name in (*self._view.tables, *self._view.views):
            if snapshot := self.snapshot(name, cut):
                self._target(name).tag(rebuild_pin(self._view.name, generation), snapshot, _PIN_DAYS)

    @contextmanager
    def pinned(self, cut: Cut) -> Iterator[None]:
        """Protect the states at a cut from expiry for the block. RebuildError (TR-551) if one is gone already."""
        tag, tagged = verify_pin(self._view.name), list[IcebergTarget]()
        try:
            for name in (*self._view.tables, *self._view.views):
                snapshot = self.snapshot(name, cut)
                if snapshot is None:
                    raise self._gone(name, cut)
                target = self._target(name)
                target.tag(tag, snapshot)
                tagged.append(target)
            yield
        finally:
            for target in tagged:
                target.untag(tag)

    @property
    def are_small(self) -> bool:
        """Whether each input is small enough to be scanned in one task."""
        return all(self._target(name).is_small for name in (*self._view.tables, *self._view.views))

    def layout(self, view: str) -> ViewLayout:
        """Return the columns and the key of an input view."""
        target = self._target(view)
        target.live()  # needed first: it tells the target the location of its generations
        return ViewLayout(target.columns(), target.key(self._stands(view).generation))

    def _target(self, name: str) -> IcebergTarget:
        if not is_view(name):
            return self._bases.target(self._view.topic_of[name])
        target = self._lower(name).batch.target
        assert isinstance(target, IcebergTarget)  # `lower_views` has checked it
        return target

    def _lower(self, name: str) -> KeptView:
        return self._shared.views[name]

    def _stands(self, name: str) -> Applied:
        return self._reached[name]

    def step(self, lower: KeptView, seen: SeenCut) -> Applied:
        """Bring an input view to the cut, unless it is there already."""
        applied = lower.applied
        if applied is not None and applied.cut.order == seen.cut.order:
            return applied
        if lower.parked:
            raise self._waits(lower)
        try:
            applied = lower.step(seen, Report(), LEASE_WAIT_S)
        except Waiting as error:
            lower.wait(error)
            raise self._waits(lower) from None
        except Exception as error:
            if isinstance(error, StateError) and error.code == HELD:
                raise
            lower.park(named(error))
            raise self._waits(lower) from None
        if applied is None:
            raise not_free(lower)
        return applied

    def _waits(self, lower: KeptView) -> Waiting:
        return Waiting(
            "TR-582",
            f'view "{self._view.name}" waits for view "{lower.declared.name}", which it reads',
            detail=(lower.error or "").partition("\n")[0].removeprefix("ERROR  "),
            hint="It goes on by itself once that one does.",
        )
