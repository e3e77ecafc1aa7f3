"""Base tables: each captured table that a query reads, as it was at every cut that its views have stood at.

They live in the namespace ``_base`` of the warehouse, one for each topic, and are kept as single-table views are. Their
snapshots are the states that queries are computed over: the topics do not keep the old image of a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from pyspark.sql import SparkSession

from schemas.errors import StateError
from schemas.progress import Cut
from sinks.iceberg import IcebergTarget
from spark_jobs.batch import Batch, Report
from spark_jobs.cuts import SeenCut
from spark_jobs.kept import KeptView, Shared
from spark_jobs.views import Declared

NAMESPACE: Final = "_base"
_HELD: Final = "TR-529"
_LEASE_WAIT_S: Final = 600.0
"""How long a batch waits for another process that brings the same base table forward."""


class BaseTables:
    """The base tables that the views of one job share, as one of these views sees them."""

    def __init__(self, shared: Shared, view: str) -> None:
        self._shared = shared
        self._view = view

    def advance(self, topics: Iterable[str], seen: SeenCut) -> SeenCut:
        """Bring the base tables of `topics` to one cut, this one or a newer one, and return it."""
        kept = [self._kept(topic) for topic in topics]
        while True:
            for base in kept:
                self._step(base, seen)
            # Another process may have gone further; a base table does not go back.
            furthest = max(base.applied.cut.order for base in kept if base.applied is not None)
            if furthest <= seen.cut.order:
                return seen
            while seen.cut.order < furthest:
                seen = self._shared.cuts.newest(wait=1.0) or seen

    def renew(self, topics: Iterable[str], seen: SeenCut) -> None:
        """Bring base tables to the cut, too; one that cannot go on from where it stands is made anew.

        With the same columns it keeps its old states. Other views that need one that is gone say so (TR-551).
        """
        for base in map(self._kept, topics):
            try:
                self._step(base, seen)
            except StateError as error:
                if error.code == _HELD:
                    raise
                self._make_anew(base, seen)

    def _step(self, base: KeptView, seen: SeenCut) -> None:
        if base.applied is not None and base.applied.cut.order == seen.cut.order:
            return
        try:
            mine = base.step(seen, Report(), _LEASE_WAIT_S)
        except StateError as error:
            base.forget()
            # A base table has no name that a command takes; its views' rebuild makes it anew.
            hint = re.sub(r"views rebuild \S+", f"views rebuild {self._view}", error.hint)
            raise StateError(error.code, error.message, detail=error.detail, hint=hint) from None
        except Exception:
            base.forget()
            raise
        if not mine:
            raise _held(base)

    def _make_anew(self, base: KeptView, seen: SeenCut) -> None:
        with base.lease.held(_LEASE_WAIT_S) as mine:
            if not mine:
                raise _held(base)
            batch = base.batch
            columns, key = batch.layout()
            done = batch.advance(None, seen, Report(), generation=batch.target.stage(columns, key))
            batch.target.swap(done.generation, key)
            live = batch.target.live()
            assert live is not None
            base.publish(live)
            base.forget()

    def at(self, topic: str, cut: Cut) -> str | None:
        """Return what stands for a base table as of `cut` in FROM; None if it does not go so far back."""
        target = self._kept(topic).batch.target
        assert isinstance(target, IcebergTarget)
        snapshot = target.snapshot_at(cut)
        return None if snapshot is None else f"{target.table()} VERSION AS OF {snapshot}"

    def _kept(self, topic: str) -> KeptView:
        known = self._shared.bases.get(topic)
        if known is None:
            known = self._shared.bases[topic] = _open(self._shared, topic)
        return known


def _held(base: KeptView) -> StateError:
    return StateError(
        _HELD,
        f'base table "{base.declared.name}": another process has held its lease for {_LEASE_WAIT_S:.0f} s',
        hint="Is another `tailrace views follow` or `rebuild` stuck?",
    )


def _open(shared: Shared, topic: str) -> KeptView:
    # Kafka takes a dot and an underscore in a topic's name for the same, so no two tables share this one.
    declared = Declared(f"{NAMESPACE}.{topic}", "warehouse", (topic,), None)

    def open_batch(session: SparkSession) -> Batch:
        assert shared.config.warehouse is not None  # `declare` has checked it
        warehouse = shared.config.warehouse.model_copy(update={"namespace": NAMESPACE})
        target = IcebergTarget(session, warehouse, topic.replace(".", "_"))
        return Batch(declared, target, session, shared.records, shared.config.kafka, shared.cuts.wait)

    return KeptView(shared, declared, open_batch)
