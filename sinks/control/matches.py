"""Publish the matches of a percolate view to its topic, exactly once, even if a process is killed.

The topic is ``{prefix}.tailrace.matches.{view}``: the key is the query, the value JSON, the header `tailrace.position`;
the matches of one query are in the order of the changes. Each Kafka transaction also has a record on
``{prefix}.tailrace.published`` (compacted, key ``[view]`` in JSON) with its last match. So a new publisher fences the
previous one and continues after the last committed match. A match that a repair adds later is out of order, and its
value has ``"repaired": true``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, Self

import orjson

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.encode.partition import partition_of
from tailrace.schemas.errors import StateError
from tailrace.schemas.lsn import Position, format_lsn, parse_lsn
from tailrace.schemas.records.topics import Topics, messages
from tailrace.sinks.control.positions import Reader
from tailrace.sinks.kafka.admin import TopicSpec, ensure_topics
from tailrace.sinks.kafka.offsets import topic_bounds
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.outbox import Destination
from tailrace.sinks.kafka.producer import KafkaSink
from tailrace.sinks.kafka.read_topic import messages_to

PAGE: Final = 10_000
"""Matches per Kafka transaction, and the limit in memory; each is an id, a key and some numbers."""

_SETTINGS: Final = {"cleanup.policy": "compact"}
_REPAIRED: Final = "repaired"


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """The place of a match in the order of a view's matches: by position of the change, then by query."""

    position: Position
    query: str

    def to_json(self) -> bytes:
        position = (self.position.epoch, format_lsn(self.position.commit_lsn), self.position.ordinal)
        return orjson.dumps({"position": position, "query": self.query})

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        epoch, commit_lsn, ordinal = value["position"]
        return cls(Position(epoch, parse_lsn(commit_lsn), ordinal), value["query"])


@dataclass(frozen=True, slots=True)
class Match:
    """A change that matches a stored query.

    `query` and `key` are canonical keys (JSON arrays), or an index's `_id`. `query_version` is the position of the
    query's newest record as of the cut, or `_version` in an index of the user.
    """

    query: str
    query_version: str
    key: str
    position: Position
    cut_lsn: int

    @property
    def mark(self) -> Mark:
        return Mark(self.position, self.query)

    def to_json(self, *, repaired: bool = False) -> bytes:
        return orjson.dumps(
            {
                "query": self.query,
                "query_version": self.query_version,
                "key": self.key,
                "position": str(self.position),
                "cut_lsn": format_lsn(self.cut_lsn),
                **({_REPAIRED: True} if repaired else {}),
            }
        )


Pages = Callable[[Mark | None, int], Sequence[Match]]
"""Returns the committed matches after a mark, in order, up to a number."""


class Publisher:
    """Forwards the matches of one view; creates topics and producer at the first `forward`."""

    def __init__(self, kafka: Kafka, view: str) -> None:
        self._kafka = kafka
        self._view = view
        self._topics = Topics(kafka.prefix)
        self._key = orjson.dumps([view])
        self._sink: KafkaSink | None = None
        self._to = Destination("", [])
        self._mark: Mark | None = None

    def forward(self, pages: Pages, end: Position) -> int:
        """Forward all matches after the last forwarded one; return their number. None of them is after `end`.

        After a SinkError the outcome of the last transaction is unknown; the next call finds it out. StateError
        (TR-595) if the last forwarded match is after `end`: it belongs to earlier topics.
        """
        count = 0
        try:
            sink = self._open()
            if self._mark is not None and self._mark.position > end:
                raise StateError(
                    "TR-595",
                    f'the matches topic of view "{self._view}" is ahead of the view',
                    detail=f"Last match: {self._mark.position}; view: {end}. The pipeline's topics were recreated.",
                    hint="Declare the view under another name: its matches get a topic of their own.",
                )
            while found := pages(self._mark, PAGE):
                for match in found:
                    sink.outbox.send(self._to, match.query.encode(), match.to_json(), match.position.to_bytes())
                sink.flush()
                mark = found[-1].mark
                sink.commit(self._key, mark.to_json())
                self._mark = mark
                count += len(found)
        except BaseException:
            self.close()
            raise
        return count

    def add(self, matches: Iterable[Match]) -> int:
        """Send those of `matches` before the last forwarded one that the topic lacks; return their number.

        A match is left out if retention may have removed it from the topic. After a SinkError the outcome is unknown;
        the next call finds it out. Memory: a page of matches.
        """
        count = 0
        try:
            sink, last, each = self._open(), self._mark, iter(matches)
            while last is not None and (page := list(islice(each, PAGE))):
                earlier = {match.mark: match for match in page if match.mark <= last}
                for mark in sorted(self._lacking(earlier)) if earlier else ():
                    match = earlier[mark]
                    value, position = match.to_json(repaired=True), match.position.to_bytes()
                    sink.outbox.send(self._to, match.query.encode(), value, position)
                    count += 1
                if sink.pending:
                    sink.flush()
                    sink.commit(self._key, last.to_json())
        except BaseException:
            self.close()
            raise
        return count

    def close(self) -> None:
        """Release the producer; the next one aborts its open transaction."""
        if self._sink is not None:
            self._sink.abandon()
            self._sink = None

    def _open(self) -> KafkaSink:
        if self._sink is None:
            kafka, topic, published = self._kafka, self._topics.matches(self._view), self._topics.published
            specs = [
                TopicSpec(topic, kafka.partitions, messages(kafka.max_message_bytes)),
                TopicSpec(published, 1, _SETTINGS),
            ]
            partitions = ensure_topics(kafka, specs)[topic]
            self._to = Destination(topic, [0] * partitions)
            self._sink = KafkaSink(kafka, f"tailrace-{kafka.prefix}-{self._view}-matches", published)
            # Read after fencing: the previous producer's transaction is committed or aborted by now.
            self._mark = self._published()
        return self._sink

    def _published(self) -> Mark | None:
        found = None
        with Reader(self._kafka, self._topics.published) as reader:
            for record in reader.all():
                raw = record.value()
                if record.key() == self._key and raw is not None:
                    found = Mark.from_json(raw)
        return found

    def _lacking(self, wanted: Collection[Mark]) -> set[Mark]:
        """Return those of `wanted` that the topic has never had, by reading it.

        In a partition without its first records, these are only the ones after its first match that was forwarded in
        order: nothing after that one has been removed.
        """
        topic = self._to.topic
        bounds = topic_bounds(self._kafka, [topic]).topics[topic]
        left, begins = set(wanted), dict[int, Mark]()
        first, end = [each.first for each in bounds], [each.end for each in bounds]
        for record in chain.from_iterable(messages_to(client_options(self._kafka), topic, end, first)):
            partition, key, value = record.partition(), record.key(), record.value()
            assert partition is not None
            assert key is not None
            assert value is not None
            found = orjson.loads(value)
            mark = Mark(_position(found["position"]), key.decode())
            left.discard(mark)
            if _REPAIRED not in found:
                begins.setdefault(partition, mark)
        for mark in list(left):
            partition = partition_of(mark.query.encode(), len(bounds))
            begin = begins.get(partition)
            if bounds[partition].first and (begin is None or mark <= begin):
                left.remove(mark)
        return left


def _position(text: str) -> Position:
    epoch, lsn, ordinal = text.split(":")
    return Position(int(epoch), parse_lsn(lsn), int(ordinal))
