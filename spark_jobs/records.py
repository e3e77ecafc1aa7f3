"""The newest records of each topic between two cuts, read once for all views that ask for the same span."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from schemas.config import Kafka
from schemas.errors import SinkError
from schemas.topics import Topics
from sinks.one_task import in_one_task
from sinks.progress import read_schemas
from sinks.schema_topic import StoredSchema
from sinks.temp_views import drop_global_temp_view
from spark_jobs.events import EventFacts, positioned
from spark_jobs.events import facts as event_facts
from spark_jobs.latest import Facts, facts, marked, newest, newest_marks
from spark_jobs.shapes import TableShapes, table_shapes
from spark_jobs.source import FEW_RECORDS, records, records_between

_MANY: Final = 100_000
"""Records of a span from which on its values stay where they were read."""


@dataclass(frozen=True, slots=True)
class Latest:
    """A span of a topic in Spark's cache; `name` is a global view, which every session sees."""

    name: str
    facts: Facts

    def rows(self, session: SparkSession) -> DataFrame:
        return session.table(f"global_temp.{self.name}")


@dataclass(frozen=True, slots=True)
class Every:
    """The same with all records, as `spark_jobs.events.positioned` gives them."""

    name: str
    facts: EventFacts

    def records(self, session: SparkSession) -> DataFrame:
        return session.table(f"global_temp.{self.name}")


class Records:
    """What all views share: the cached spans of one round, the schemas, the session that holds the cache.

    Views that are kept at the same time take turns here: what one has read is there for the next.
    """

    def __init__(self, session: SparkSession, kafka: Kafka) -> None:
        self._session = session
        self._kafka = kafka
        self._topics = Topics(kafka.prefix)
        self._spans: dict[object, Latest | None] = {}
        self._wholes: dict[object, Every | None] = {}
        self._made: dict[object, str] = {}
        self._cached: list[DataFrame] = []
        self._names: list[str] = []
        self._stored: list[StoredSchema] = []
        self._shapes: dict[str, TableShapes] = {}
        self._count = 0
        self._lock = threading.RLock()

    def latest(self, topic: str, start: Sequence[int], end: Sequence[int]) -> Latest | None:
        """Return the newest record of each key in a span, all read when this returns; None if it is empty."""
        with self._lock:
            span = (topic, tuple(start), tuple(end))
            if span not in self._spans:
                raw, count = records(self._session, self._kafka, topic, start, end), records_between(start, end)
                with in_one_task(self._session, few=count < FEW_RECORDS):
                    self._spans[span] = None if raw is None else self._read(raw, count)
            return self._spans[span]

    def every(self, topic: str, start: Sequence[int], end: Sequence[int]) -> Every | None:
        """Return all records of a span, read when this returns; None if it is empty. What is too large goes to disk."""
        with self._lock:
            span = (topic, tuple(start), tuple(end))
            if span not in self._wholes:
                raw = records(self._session, self._kafka, topic, start, end, ("timestamp", "headers"))
                self._wholes[span] = None if raw is None else self._read_whole(raw)
            return self._wholes[span]

    def once(self, what: object, make: Callable[[], DataFrame]) -> str:
        """Return the name of a global view: who asks for `what` first in a round has it made."""
        with self._lock:
            if what not in self._made:
                self._made[what] = f"global_temp.{self._named(make())}"
            return self._made[what]

    def keep(self, frame: DataFrame) -> DataFrame:
        """Put a frame into Spark's cache until the round ends."""
        self._cached.append(frame.persist())
        return frame

    def _read(self, raw: DataFrame, count: int) -> Latest:
        if count < _MANY:
            frame = self.keep(newest(raw))
        else:
            whole = self.keep(raw)
            frame = marked(whole, self.keep(newest_marks(whole)))
        return Latest(self._named(frame), facts(frame))

    def _read_whole(self, raw: DataFrame) -> Every | None:
        frame = self.keep(positioned(raw))
        name = self._named(frame)
        known = event_facts(frame)
        return None if known is None else Every(name, known)

    def _named(self, frame: DataFrame) -> str:
        self._count += 1
        name = f"tailrace_span_{self._count}"
        frame.createOrReplaceGlobalTempView(name)
        self._names.append(name)
        return name

    def release(self) -> None:
        """Let go of the cached spans; called after each round."""
        for name in self._names:
            drop_global_temp_view(self._session, name)
        self._names.clear()
        self._wholes.clear()
        for frame in self._cached:
            frame.unpersist()
        self._spans.clear()
        self._made.clear()
        self._cached.clear()

    def forget_shapes(self) -> None:
        """Read the topic of schemas anew for who asks next."""
        self._shapes.clear()

    def newest_shapes(self, topic: str) -> TableShapes:
        """Return the shapes of a topic as the topic of schemas has them now."""
        self.forget_shapes()
        return self.shapes(topic)

    def shapes(self, topic: str, ids: frozenset[int] = frozenset()) -> TableShapes:
        """Return the shapes of a topic with at least the schemas `ids`; the topic of schemas is read if need be.

        An id that is not the newest may be so by now: a registry gives a shape that comes back its old one.
        """
        with self._lock:
            known = self._shapes.get(topic)
            if known is None or not ids <= known.newest:
                self._stored = read_schemas(self._kafka, self._topics)
                known = self._shapes[topic] = table_shapes(self._session, topic, self._stored)
            if missing := sorted(ids - known.ids):
                raise SinkError(
                    "TR-523",
                    f'topic "{topic}": schema {missing[0]} of its records is not on the schemas topic',
                    detail=f"There are {len(self._stored)} schemas, {len(known.ids)} of them for this topic.",
                    hint="Does kafka.prefix in the configuration name the pipeline that wrote the topic?",
                )
            return known
