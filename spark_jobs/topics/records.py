"""Records of topics between two cuts, read once for all views that need the same span."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame, SparkSession

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_schemas
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.kafka.offsets import records_lost, topic_bounds
from tailrace.sinks.spark.one_task import set_one_task
from tailrace.sinks.spark.temp_views import drop_global_temp_view
from tailrace.sinks.target.few_rows import FewRows
from tailrace.sinks.target.spooled_rows import SpooledRows
from tailrace.spark_jobs.topics.decoded import decoded
from tailrace.spark_jobs.topics.events import EventFacts, commit_lsn, positioned
from tailrace.spark_jobs.topics.events import facts as event_facts
from tailrace.spark_jobs.topics.latest import (
    LSN,
    Facts,
    changes,
    facts,
    marked,
    newest,
    newest_marks,
    newest_with_deletions,
)
from tailrace.spark_jobs.topics.shapes import TableShapes, table_shapes
from tailrace.spark_jobs.topics.small_span import NewestRecords, SmallSpanReader
from tailrace.spark_jobs.topics.source import FEW_RECORDS, records, records_between, spans
from tailrace.spark_jobs.topics.whole_topic import MOST_RECORDS, newest_rows, row_schema

R = TypeVar("R")

MANY_RECORDS: Final = 100_000
"""Number of records in a span from which on values are not moved to find the newest ones (`newest_marks`)."""

_NUMBERS: Final = count(1)
"""Numbers of global views, which all sessions of the process share."""


class Latest:
    """The newest records of a span: in this process (`here`), as its rows (`spooled`), or in Spark's cache.

    `name` is a global view of them, visible to all sessions; of records that are here, the first use creates it. Of
    spooled rows there is none.
    """

    def __init__(
        self,
        name: str,
        facts: Facts,
        here: NewestRecords | None = None,
        show: Callable[[], None] | None = None,
        spooled: SpooledRows | None = None,
    ) -> None:
        self.name = name
        self.facts = facts
        self.here = here
        self.spooled = spooled
        self._show = show
        self._lock = threading.Lock()

    def rows(self, session: SparkSession) -> DataFrame:
        """Return the records as `latest.newest` does."""
        with self._lock:
            if self._show is not None:
                self._show()
                self._show = None
        return session.table(f"global_temp.{self.name}")


@dataclass(frozen=True, slots=True)
class Every:
    """All records of a span in Spark's cache, as `spark_jobs.topics.events.positioned` returns them."""

    name: str
    facts: EventFacts

    def records(self, session: SparkSession) -> DataFrame:
        return session.table(f"global_temp.{self.name}")


class _Once:
    """Values that are computed by the first thread that needs them; others wait for that value only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[object, Any] = {}
        self._locks: dict[object, threading.Lock] = {}

    def get(self, what: object, make: Callable[[], R]) -> R:
        with self._lock:
            its_own = self._locks.setdefault(what, threading.Lock())
        with its_own:
            if what not in self._made:
                self._made[what] = make()
            found: R = self._made[what]
            return found


class Spans:
    """The DataFrames that one round has in Spark's cache, for the views of the round.

    A later round has its own, even while a long batch of this one still runs: the inputs of a cached plan must exist
    for as long as that plan.
    """

    def __init__(self) -> None:
        self.once = _Once()
        self.cached: list[DataFrame] = []
        self.names: list[str] = []
        self.spooled: list[SpooledRows] = []


@dataclass(slots=True)
class _State:
    """The state of a job's records: sessions, locks, shapes, and the spans outside of rounds."""

    few: SparkSession
    small: SmallSpanReader
    reading: Mapping[bool, threading.Lock]
    outside: Spans
    thread: threading.local
    stored: list[StoredSchema]
    shapes: dict[str, TableShapes]
    lock: threading.RLock

    @classmethod
    def of(cls, session: SparkSession, kafka: Kafka) -> _State:
        few = session.newSession()
        set_one_task(few)
        locks = {True: threading.Lock(), False: threading.Lock()}
        return cls(few, SmallSpanReader(kafka), locks, Spans(), threading.local(), [], {}, threading.RLock())


class Records:
    """Resources that all views share: cached spans of each round, schemas, sessions that read topics.

    Views that are maintained at the same time and need the same span read it once. Small spans (`FEW_RECORDS`) are
    read one at a time, and so are large ones; a small span never waits for a large one.
    """

    def __init__(self, session: SparkSession, kafka: Kafka, of: Records | None = None) -> None:
        """With `of`, read the rows of `of` with their commit columns; all that it holds is shared with it."""
        self.session = session
        self.with_commits = of is not None
        """Whether rows have commit columns (`spark_jobs.query.catalog.COMMITS`)."""
        self._kafka = kafka
        self._topics = Topics(kafka.prefix)
        self._state = _State.of(session, kafka) if of is None else of.state

    @property
    def state(self) -> _State:
        """What all readers of a job share."""
        return self._state

    def commits(self) -> Records:
        """Return these records, with rows that have their commit columns."""
        return Records(self.session, self._kafka, self)

    @contextmanager
    def within(self, spans: Spans) -> Iterator[None]:
        """Assign the records that this thread reads in the block to a round."""
        self._state.thread.spans = spans
        try:
            yield
        finally:
            self._state.thread.spans = None

    @property
    def _spans(self) -> Spans:
        return getattr(self._state.thread, "spans", None) or self._state.outside

    def latest(self, topic: str, start: Sequence[int], end: Sequence[int], *, deletions: bool = False) -> Latest | None:
        """Return the newest record of each key in a span, already read; None if the span is empty.

        With `deletions`, a deleted row has the time of its deletion. A large span then takes longer: values are moved.
        """
        size = records_between(start, end)
        few = size < FEW_RECORDS
        session = self._state.few if few else self.session

        def read() -> Latest | None:
            # Spark alone reads what tells deletions and commits
            here = 0 < size < FEW_RECORDS and not deletions and not self.with_commits
            found = self._read_here(topic, start, end) if here else None
            if found is None:
                with self._state.reading[few]:
                    more = ["timestamp"] * deletions + ["headers"] * self.with_commits
                    raw = records(session, self._kafka, topic, start, end, more)
                    if raw is not None:
                        found = self._read_deletions(raw) if deletions else self._read(self._positioned(raw), size)
            self._check_beginnings(topic, start, end)
            return found

        return self._spans.once.get(("latest", topic, tuple(start), tuple(end), deletions, self.with_commits), read)

    def spooled(self, topic: str, end: Sequence[int]) -> Latest | None:
        """Return the newest record of each key of a topic as spooled rows, without a Spark job; None if that is not
        possible, or Spark is faster.
        """
        master = self.session.sparkContext.master or ""
        is_local = master.startswith("local") and not master.startswith("local-cluster")
        if self.with_commits or not is_local or not FEW_RECORDS <= records_between([], end) <= MOST_RECORDS:
            return None
        spans = self._spans

        def read() -> Latest | None:
            shapes = self.newest_shapes(topic)
            if not (shapes.rows and shapes.keys):
                return None
            spooled = SpooledRows(self.session, row_schema(shapes))
            spans.spooled.append(spooled)
            with self._state.reading[False]:
                found = newest_rows(self._kafka, topic, end, shapes, spooled)
            if found is None:
                spans.spooled.remove(spooled)
                spooled.close()
                return None
            self._check_beginnings(topic, [], end)
            return Latest("", found, spooled=spooled)

        return spans.once.get(("spooled", topic, tuple(end)), read)

    def spooling(self) -> SpooledRows | None:
        """Return the rows that were last begun to be spooled outside of rounds, and not yet released."""
        return next(reversed(self._state.outside.spooled), None)

    def latest_after(self, topic: str, end: Sequence[int], lsn: int) -> Latest | None:
        """Return the newest record of each key that has one after an LSN, up to `end`; None if there are no records.

        The topic is read from its beginning, but only records after the LSN are retained.
        """
        few = records_between([], end) < FEW_RECORDS
        session = self._state.few if few else self.session

        def read() -> Latest | None:
            with self._state.reading[few]:
                raw = records(session, self._kafka, topic, [], end, ("headers",))
                found = None if raw is None else self._read(self._positioned(raw.where(commit_lsn() > lsn)), 0)
            self._check_beginnings(topic, [], end)
            return found

        return self._spans.once.get(("latest after", topic, lsn, tuple(end), self.with_commits), read)

    def every(self, topic: str, start: Sequence[int], end: Sequence[int]) -> Every | None:
        """Return all records of a span, already read; None if it is empty. Excess data spills to disk."""
        few = records_between(start, end) < FEW_RECORDS

        def read() -> Every | None:
            with self._state.reading[few]:
                raw = records(self.session, self._kafka, topic, start, end, ("timestamp", "headers"))
                found = None if raw is None else self._read_whole(raw)
            self._check_beginnings(topic, start, end)
            return found

        return self._spans.once.get(("every", topic, tuple(start), tuple(end)), read)

    def few(self, found: Latest, shapes: TableShapes) -> FewRows:
        """Return a few newest records, decoded into the columns of `shapes` and `DELETED`, once for all views."""
        columns = tuple((name, kind.simpleString()) for name, kind in shapes.columns.items())

        def make() -> FewRows:
            if found.here is not None and (here := decoded(found.here, found.facts, shapes)) is not None:
                return FewRows.collected(self._state.few, *here)
            return FewRows.of(changes(found.rows(self._state.few), found.facts, shapes))

        return self._spans.once.get(("few", found.name, columns), make)

    def _check_beginnings(self, topic: str, start: Sequence[int], end: Sequence[int]) -> None:
        """Raise StateError (TR-424) if a partition that was read from its beginning has lost its first records.

        Compaction does not move the first offset, and that never decreases. So a check after the read is enough.
        """
        whole = [number for number, (first, stop) in enumerate(spans(start, end)) if first == 0 < stop]
        if not whole:
            return
        found = topic_bounds(self._kafka, [topic]).topics.get(topic, [])
        for number in whole:
            if number >= len(found) or found[number].first:
                detail = f"begins at offset {found[number].first}, not 0" if number < len(found) else "is missing"
                raise records_lost(
                    topic,
                    f"Partition {number} {detail}, so a view built from it would lack rows.",
                    "tailrace run  # refuses to continue with such topics, and prints how to fill them again",
                )

    def once(self, what: object, make: Callable[[], DataFrame]) -> str:
        """Return the name of the global view for `what`; the first caller in a round creates it by `make`."""
        return self._spans.once.get(("made", what), lambda: f"global_temp.{self._named(make())}")

    def keep(self, frame: DataFrame) -> DataFrame:
        """Put a frame into Spark's cache until the round ends."""
        self._spans.cached.append(frame.persist())
        return frame

    def _read_here(self, topic: str, start: Sequence[int], end: Sequence[int]) -> Latest | None:
        here = self._state.small.newest(topic, start, end)
        if here is None:
            return None
        spans, name = self._spans, f"tailrace_span_{next(_NUMBERS)}"

        def show() -> None:
            self._state.few.createDataFrame(here.arrow()).coalesce(1).createOrReplaceGlobalTempView(name)
            spans.names.append(name)

        return Latest(name, here.facts(), here, show)

    def _read(self, raw: DataFrame, size: int) -> Latest:
        if size < MANY_RECORDS:
            frame = self.keep(newest(raw))
        else:
            whole = self.keep(raw)
            frame = marked(whole, self.keep(newest_marks(whole)))
        return Latest(self._named(frame), facts(frame))

    def _positioned(self, raw: DataFrame) -> DataFrame:
        """Replace the headers, if there are any, by what the commit columns need."""
        return (raw.withColumn(LSN, commit_lsn()) if self.with_commits else raw).drop("headers")

    def _read_deletions(self, raw: DataFrame) -> Latest:
        frame = self.keep(newest_with_deletions(raw))
        return Latest(self._named(frame), facts(frame))

    def _read_whole(self, raw: DataFrame) -> Every | None:
        frame = self.keep(positioned(raw))
        name = self._named(frame)
        known = event_facts(frame)
        return None if known is None else Every(name, known)

    def _named(self, frame: DataFrame) -> str:
        name = f"tailrace_span_{next(_NUMBERS)}"
        frame.createOrReplaceGlobalTempView(name)
        self._spans.names.append(name)
        return name

    def release(self, spans: Spans | None = None) -> None:
        """Free the cache of a round whose batches have all ended; by default, that of reads outside of rounds."""
        if spans is None:
            spans, self._state.outside = self._state.outside, Spans()
        for name in spans.names:
            drop_global_temp_view(self.session, name)
        for frame in spans.cached:
            frame.unpersist()
        for rows in spans.spooled:
            rows.close()

    def close(self) -> None:
        """Close the connection to Kafka; a later read opens another one."""
        self._state.small.close()

    def forget_shapes(self) -> None:
        """Forget all shapes, so that the next caller reads the schemas topic again."""
        self._state.shapes.clear()

    def newest_shapes(self, topic: str) -> TableShapes:
        """Read the schemas topic again and return the shapes of a topic."""
        self.forget_shapes()
        return self.shapes(topic)

    def shapes(self, topic: str, ids: frozenset[int] = frozenset()) -> TableShapes:
        """Return the shapes of a topic for records of the schemas `ids`. SinkError (TR-523) if one is missing.

        The schemas topic is read again if one of `ids` is not known as the newest. It may be the newest by now: when
        a table returns to an earlier shape, a registry returns the earlier id.
        """
        with self._state.lock:
            known = self._state.shapes.get(topic)
            if known is None or not ids <= known.newest:
                self._state.stored = read_schemas(self._kafka, self._topics)
                known = self._state.shapes[topic] = table_shapes(self.session, topic, self._state.stored)
            if missing := sorted(ids - known.ids):
                raise SinkError(
                    "TR-523",
                    f'schema {missing[0]} of topic "{topic}" is not on the schemas topic',
                    detail=f"There are {len(self._state.stored)} schemas, {len(known.ids)} of them for this topic.",
                    hint="tailrace config show  # kafka.prefix must be that of the pipeline that wrote the topic",
                )
            known = replace(known, used=ids)
            return known.with_commits() if self.with_commits else known
