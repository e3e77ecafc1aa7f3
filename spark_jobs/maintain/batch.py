"""One batch of one view: from its applied state to a cut. A rebuild is the same with nothing applied."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import RebuildError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.target.protocol import DELETED, Applied, Target
from tailrace.spark_jobs.maintain.waiting import waits_for_tables
from tailrace.spark_jobs.topics.cuts import SeenCut, advanced
from tailrace.spark_jobs.topics.latest import changes
from tailrace.spark_jobs.topics.records import Latest, Records
from tailrace.spark_jobs.topics.shapes import TableShapes
from tailrace.spark_jobs.views import Declared, check_shapes

_NEWER_CUTS = 5
"""Maximum number of cuts that a batch reads up to, if reading takes longer than the compaction lag."""

FEW_ROWS = 10_000
"""Up to this many changed rows, more tasks would cost more than the rows do."""

R = TypeVar("R")


@dataclass(slots=True)
class Report:
    """Results and timings of a batch, for its log record."""

    rows: int = 0
    late: int = 0
    replaced: bool = False
    milliseconds: dict[str, int] = field(default_factory=dict)
    _at: float = field(default_factory=time.monotonic)

    def stage(self, name: str) -> None:
        """Record the end of the stage `name` and its duration."""
        now = time.monotonic()
        self.milliseconds[name] = round((now - self._at) * 1000)
        self._at = now


@dataclass(frozen=True, slots=True)
class Batch:
    """Batches of one view. `session` is the view's own, `newest_cut` returns the newest state cut."""

    view: Declared
    target: Target
    session: SparkSession
    records: Records
    kafka: Kafka
    newest_cut: Callable[[], SeenCut]

    def advance(
        self, applied: Applied | None, seen: SeenCut, report: Report, *, generation: int | None = None
    ) -> Applied:
        """Bring a generation from `applied` to the cut; a cut at or before it changes nothing.

        With nothing applied, the whole state is read: into `generation`, or into a new one, which becomes live.
        """
        if applied is not None:
            check_definition(self.view, applied)
            done = settled(self.view, self.target, applied, own_cut(self.view, seen))
            if done is not None:
                return done
        cut, latest = self._read(applied, seen)
        report.stage("read")
        shapes = self.records.shapes(self.view.topics[0], latest.facts.schema_ids if latest else frozenset())
        check_shapes(self.view, shapes)
        report.rows = latest.facts.rows if latest else 0
        if applied is None or (latest is not None and latest.facts.truncated):
            report.replaced = True
            done = self._replace(applied, latest, shapes, cut, generation)
        elif latest is None or latest.facts.rows == 0:
            done = self.target.unchanged(applied, cut)
        else:
            rows = changes(latest.rows(self.session), latest.facts, shapes)
            few = latest.facts.rows <= FEW_ROWS
            done = self.target.merge(applied.generation, rows, shapes.key, cut, few=few)
        report.stage("apply")
        return done

    def _replace(
        self,
        applied: Applied | None,
        latest: Latest | None,
        shapes: TableShapes,
        cut: Cut,
        generation: int | None,
    ) -> Applied:
        if latest is None:
            fields = [StructField(name, kind) for name, kind in shapes.columns.items()]
            rows: DataFrame = self.session.createDataFrame([], StructType(fields))
        else:
            found = changes(latest.rows(self.session), latest.facts, shapes)
            rows = found.where(~F.col(DELETED)).drop(DELETED)
        into = generation if applied is None else applied.generation
        return fill(self.target, shapes.columns, rows, shapes.key, cut, into)

    def layout(self) -> tuple[dict[str, DataType], tuple[str, ...]]:
        """Return the view's columns and key by the newest schemas."""
        shapes = self.records.newest_shapes(self.view.topics[0])
        return shapes.columns, shapes.key

    def _read(self, applied: Applied | None, seen: SeenCut) -> tuple[Cut, Latest | None]:
        (topic,) = self.view.topics
        start = applied.cut.offsets.get(topic, []) if applied else []

        def read(seen: SeenCut) -> tuple[Cut, Latest | None]:
            cut = own_cut(self.view, seen)
            return cut, self.records.latest(topic, start, cut.offsets.get(topic, []))

        return read_whole(self.view, self.kafka, self.newest_cut, seen, read)


def settled(view: Declared, target: Target, applied: Applied, cut: Cut) -> Applied | None:
    """Return the applied state if the cut adds no records, else None.

    StateError (TR-525) if the topics are not those that the view was built from.
    """
    _check_same_log(view, applied.cut, cut)
    if not advanced(applied, cut):
        return applied
    if applied.unfinished is None and cut.offsets == applied.cut.offsets:
        return target.unchanged(applied, cut)
    return None


def fill(
    target: Target,
    columns: Mapping[str, DataType],
    rows: DataFrame,
    key: Sequence[str],
    cut: Cut,
    generation: int | None,
) -> Applied:
    """Make `rows` the whole content of `generation`, or of a new one, which becomes live."""
    if generation is not None:
        return target.replace(generation, rows, key, cut)
    done = target.replace(target.stage(columns, key), rows, key, cut)
    target.swap(done.generation, key)
    return done


def own_cut(view: Declared, seen: SeenCut) -> Cut:
    """Return the cut with the view's topics only: each batch stores it, and there may be many topics."""
    offsets = {topic: seen.cut.offsets[topic] for topic in view.topics if topic in seen.cut.offsets}
    return replace(seen.cut, offsets=offsets)


def read_whole(
    view: Declared,
    kafka: Kafka,
    newest_cut: Callable[[], SeenCut],
    seen: SeenCut,
    read: Callable[[SeenCut], tuple[Cut, R]],
) -> tuple[Cut, R]:
    """Read up to the cut, or to a newer one if compaction may have removed records of the cut.

    Compaction drops a record only in favor of one that is older than the compaction lag: a younger cut is complete,
    and so is one that no record follows. `Waiting` if there is no newer cut, because a table is incomplete;
    StateError (TR-524) if reading takes longer than the lag each time.
    """
    for _ in range(_NEWER_CUTS):
        cut, found = read(seen)
        if now_ms() - seen.level_ms < kafka.min_compaction_lag_ms:
            return cut, found
        newer = newest_cut()
        if own_cut(view, newer).offsets == cut.offsets:
            check_whole(view, kafka, newer)
            return cut, found
        seen = newer
    raise StateError(
        "TR-524",
        f'view "{view.name}": reading takes longer than the compaction lag',
        detail=f"kafka.min_compaction_lag_ms is {kafka.min_compaction_lag_ms} ms; {_NEWER_CUTS} cuts in "
        "a row were older when their records had been read.",
        hint="Raise kafka.min_compaction_lag_ms and the topics' min.compaction.lag.ms, e.g. to 21600000.",
    )


def check_whole(view: Declared, kafka: Kafka, seen: SeenCut) -> None:
    """Raise `Waiting` if compaction may have removed records of the cut and no newer state is possible."""
    if seen.waits_for and not seen.is_end and now_ms() - seen.level_ms >= kafka.min_compaction_lag_ms:
        raise waits_for_tables(
            view.name,
            seen.waits_for,
            f"Its newest state, at {format_lsn(seen.cut.flushed_lsn)}, is older than kafka.min_compaction_lag_ms "
            f"({kafka.min_compaction_lag_ms // 60_000} min), so it may not be whole on the topics any more.",
        )


def check_definition(view: Declared, applied: Applied) -> None:
    """Raise RebuildError (TR-548) if the state was built from another query or key, or of another shape."""
    if applied.definition != view.definition:
        raise RebuildError(
            "TR-548",
            f'view "{view.name}" was built from another query or key, or of another shape',
            view=view.name,
            detail="What it holds cannot be turned into the rows of this one.",
            after=" (it loses its history; or give the new one another name)" if applied.history_from else "",
        )


def _check_same_log(view: Declared, applied: Cut, cut: Cut) -> None:
    """Raise StateError (TR-525) if the topics are not those that the view was built from."""
    same = (applied.system_identifier, applied.position.epoch) == (cut.system_identifier, cut.position.epoch)
    shrunk = cut.order > applied.order and any(
        now < before
        for topic, offsets in applied.offsets.items()
        for before, now in zip(offsets, cut.offsets.get(topic, [0] * len(offsets)), strict=False)
    )
    if same and not shrunk:
        return
    reason = (
        "The topics are shorter than what it has applied: they were made anew."
        if same
        else f"It was made from system {applied.system_identifier}, epoch {applied.position.epoch}; the topics hold "
        f"system {cut.system_identifier}, epoch {cut.position.epoch}."
    )
    message = f'view "{view.name}" cannot go on from {format_lsn(applied.flushed_lsn)}'
    if view.shape == "current":
        raise RebuildError("TR-525", message, view=view.name, detail=reason)
    raise StateError(
        "TR-525",
        message,
        detail=reason,
        hint="Its LSNs and theirs are not of one line: let it stand, and declare another view, which begins anew.",
    )
