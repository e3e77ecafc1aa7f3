"""One batch of a view, from its applied state to a cut: the steps that all kinds of views share.

A rebuild is the same with nothing applied. The kinds: `table_batch`, `query_batch`, `history_batch`, `percolate`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from tailrace.schemas.config.model import Config, Kafka
from tailrace.schemas.errors import RebuildError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Cut
from tailrace.schemas.shapes import SHAPES
from tailrace.sinks.control.views_topic import now_ms
from tailrace.sinks.spark.cached_size import cached_bytes
from tailrace.sinks.target.protocol import Applied, Commit, HistoryFrom, Target
from tailrace.sinks.target.spooled_rows import SpooledRows
from tailrace.spark_jobs.maintain.waiting import waits_for_tables
from tailrace.spark_jobs.topics.cuts import Cuts, SeenCut, advanced
from tailrace.spark_jobs.topics.records import Records
from tailrace.spark_jobs.views import Declared

_NEWER_CUTS = 5
"""Maximum number of cuts that a batch reads up to, if reading takes longer than the compaction lag."""

FEW_ROWS = 10_000
"""Up to this many changed rows, more tasks would cost more than the rows do."""

_FEW_BYTES = 32 << 20
"""Up to this many bytes in Spark's cache, changed rows also fit into the driver, which may write them itself."""

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
class Content:
    """The whole content of a generation; `history_from` if it retains the past.

    With `spooled`, these are the rows, and `rows` is empty.
    """

    columns: Mapping[str, DataType]
    rows: DataFrame
    key: Sequence[str]
    history_from: HistoryFrom | None = None
    spooled: SpooledRows | None = None


@dataclass(slots=True)
class ViewBatch(ABC, Generic[R]):
    """Batches of one view. `session` is the view's own; `R` is what a kind of view reads for a batch."""

    view: Declared
    target: Target
    session: SparkSession
    config: Config
    records: Records
    cuts: Cuts
    _cached: list[DataFrame] = field(default_factory=list, init=False)

    @abstractmethod
    def layout(self) -> tuple[Mapping[str, DataType], Sequence[str]]:
        """Return the columns and the key that a rebuild has."""

    @abstractmethod
    def read(self, applied: Applied | None, seen: SeenCut) -> tuple[SeenCut, R]:
        """Read what changed since `applied`, or all; return the cut that was read up to, `seen` or a newer one."""

    @abstractmethod
    def whole(self, found: R, seen: SeenCut, report: Report) -> Content:
        """Return the whole content as of the cut, from what was read with nothing applied."""

    def first(self, found: R, seen: SeenCut, report: Report) -> Content:
        """Return the rows that a new generation begins with: the content, and what its target retains beside that."""
        return self.whole(found, seen, report)

    @abstractmethod
    def change(self, applied: Applied, found: R, seen: SeenCut, report: Report) -> Applied:
        """Bring the generation of `applied` to the cut by what was read since."""

    def continued(self, generation: int, report: Report) -> Applied | None:
        """Return the state that a new generation begins with; None: it is built from nothing."""
        return None

    def prepare(self, applied: Applied | None, seen: SeenCut, generation: int | None) -> tuple[Applied | None, SeenCut]:
        """Prepare the inputs; return the state to continue from, None if that is impossible, and the cut to reach."""
        return applied, seen

    def inputs_read(self) -> Mapping[str, int]:
        """Return the generations of the views that this view reads, by name."""
        return {}

    def check_inputs(self, applied: Applied) -> None:
        """Raise RebuildError (TR-551) if a state of an input that the next batch compares with is gone."""

    def finish(self, applied: Applied) -> None:
        """Complete a batch after its commit, also one that an earlier process did not complete."""

    def superseded(self) -> None:
        """Forget what another process may have changed, which has held the view's lease since the last batch."""

    def advance(
        self, applied: Applied | None, seen: SeenCut, report: Report, *, generation: int | None = None
    ) -> Applied:
        """Bring a generation from `applied` to the cut, or a newer one; a cut at or before it changes nothing.

        With nothing applied, build the whole content: in `generation`, or in a new one, which becomes live.
        """
        done = self._advanced(applied, seen, report, generation)
        self.finish(done)
        return done

    def _advanced(self, applied: Applied | None, seen: SeenCut, report: Report, generation: int | None) -> Applied:
        if applied is None and generation is not None:
            applied = self.continued(generation, report)
        into = generation if applied is None else applied.generation
        if applied is not None:
            check_definition(self.view, applied)
            if not advanced(applied, seen.cut):
                _check_same_log(self.view, applied.cut, seen.cut)
                return applied
        since, seen = self.prepare(applied, seen, generation)
        if since is not None:
            _check_same_log(self.view, since.cut, seen.cut)
            if since.unfinished is None and own_cut(self.view, seen).offsets == since.cut.offsets:
                return self.unchanged(since, seen)
        try:
            seen, found = self.read(since, seen)
            report.stage("read")
            if since is None:
                report.replaced = True
                content = self.first(found, seen, report)
                return fill(self.target, content, self.commit(seen, content.history_from), into)
            return self.change(since, found, seen, report)
        finally:
            self.release()
            report.stage("apply")

    def commit(self, seen: SeenCut, history_from: HistoryFrom | None = None) -> Commit:
        """Return the facts that are stored with a write at the cut."""
        return Commit(own_cut(self.view, seen), seen.level_ms, self.inputs_read(), history_from)

    def unchanged(self, applied: Applied, seen: SeenCut) -> Applied:
        """Return the applied state at a cut that changes no row."""
        return self.target.unchanged(applied, self.commit(seen, applied.history_from))

    def release(self) -> None:
        """Release the frames that a batch, or a computation outside of one, has persisted."""
        for frame in self._cached:
            frame.unpersist()
        self._cached.clear()

    def persist_until_batch_end(self, frame: DataFrame) -> DataFrame:
        """Persist a frame that a batch uses more than once; the end of the batch releases it."""
        self._cached.append(frame.persist())
        return frame


def are_few(rows: int, frame: DataFrame) -> bool:
    """Whether `rows` changed rows, which a persisted frame holds, need no more than one task."""
    return rows <= FEW_ROWS and cached_bytes(frame) <= _FEW_BYTES


def fill(target: Target, content: Content, commit: Commit, generation: int | None) -> Applied:
    """Make `content` the whole content of `generation`, or of a new one, which becomes live."""
    rows, key = content.spooled or content.rows, content.key
    if generation is not None:
        return target.replace(generation, rows, key, commit)
    done = target.replace(target.stage(content.columns, key), rows, key, commit)
    target.swap(done.generation, key)
    return done


def own_cut(view: Declared, seen: SeenCut) -> Cut:
    """Return the cut with the view's topics only: each batch stores it, and there may be many topics."""
    offsets = {topic: seen.cut.offsets[topic] for topic in view.topics if topic in seen.cut.offsets}
    return replace(seen.cut, offsets=offsets)


def read_whole(
    view: Declared,
    kafka: Kafka,
    newest_cut: Callable[[Declared], SeenCut],
    seen: SeenCut,
    read: Callable[[SeenCut], tuple[SeenCut, R]],
) -> tuple[SeenCut, R]:
    """Read up to the cut, or to a newer one if compaction may have removed records of the cut.

    `read` returns the cut that it has read up to: the one given, or a newer one.

    Compaction drops a record only in favor of one that is older than the compaction lag: a younger cut is complete,
    and so is one that no record follows. `Waiting` if there is no newer cut, because a table is incomplete;
    StateError (TR-524) if reading takes longer than the lag each time.
    """
    for _ in range(_NEWER_CUTS):
        reached, found = read(seen)
        if now_ms() - seen.level_ms < kafka.min_compaction_lag_ms:
            return reached, found
        newer = newest_cut(view)
        if own_cut(view, newer).offsets == own_cut(view, reached).offsets:
            check_whole(view, kafka, newer)
            return reached, found
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
    """Raise RebuildError if the state was built with another layout (TR-537), query, key or shape (TR-548)."""
    if applied.definition != view.definition:
        if view.has_rows_of(applied.definition):
            raise RebuildError(
                "TR-537",
                f'view "{view.name}" was built with another layout',
                view=view.name,
                detail="Its partitions, sort order, deletes, mapping, index settings or routing are not those of the"
                " configuration.",
            )
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
    if SHAPES[view.shape].from_topics:
        raise RebuildError("TR-525", message, view=view.name, detail=reason)
    raise StateError(
        "TR-525",
        message,
        detail=reason,
        hint="Its LSNs and theirs are not of one line: let it stand, and declare another view, which begins anew.",
    )
