"""The topics of the captured tables: checked, made where they are missing, and how far each has been written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tailrace.cdc.postgres.keys import Keys
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.records.topics import LONGEST, REQUESTS, Topics, compacted, kept, messages
from tailrace.schemas.relation import Relation
from tailrace.sinks.kafka.admin import TopicSpec, ensure_topics
from tailrace.sinks.kafka.outbox import Destination

_OVERHEAD_BYTES = 1024


class Destinations:
    """The topics that are written, each with the offsets that the next cut names; bounded by the number of tables."""

    def __init__(
        self,
        kafka: Kafka,
        keys: Keys,
        relations: Iterable[Relation],
        partitions: Mapping[str, int],
        offsets: Mapping[str, list[int]],
    ) -> None:
        """`relations` are the tables that have topics by now, `partitions` those of all topics that there are,
        `offsets` those of the cut that we go on from.
        """
        self._kafka = kafka
        self._keys = keys
        self._topics = Topics(kafka.prefix)
        self._tables = {(relation.schema, relation.name) for relation in relations}
        self._partitions = dict(partitions)
        self._offsets = offsets
        self._by_topic: dict[str, Destination] = {}

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._by_topic.values())

    def ensure(self, relation: Relation) -> str:
        """Return the topic of a table; it is made for one that came into the publication while we run.

        ConfigError if it cannot have one of its own.
        """
        if (relation.schema, relation.name) not in self._tables:
            refuse_clashes(self._topics, {*self._tables, (relation.schema, relation.name)})
            self._tables.add((relation.schema, relation.name))
        topic = self._topics.table(relation.schema, relation.name)
        if topic not in self._partitions:
            self._partitions |= make_topics(self._kafka, [relation], self._keys)
        return topic

    def of(self, topic: str) -> Destination:
        """Return one of the topics that there are; what is sent to it counts in the cut."""
        if topic not in self._by_topic:
            known = self._offsets.get(topic, [])
            self._by_topic[topic] = Destination(topic, known + [0] * (self._partitions[topic] - len(known)))
        return self._by_topic[topic]

    def beside(self, topic: str) -> Destination:
        """Return a topic of one partition beside those of the tables; it counts in the cut as they do."""
        return self._by_topic.setdefault(topic, Destination(topic, list(self._offsets.get(topic, [0]))))


def record_limit(kafka: Kafka) -> int:
    """Return how many bytes of key and value a record may have: the rest of a message is what stands beside them."""
    return kafka.max_message_bytes - _OVERHEAD_BYTES


def make_topics(
    kafka: Kafka, relations: Collection[Relation], keys: Keys, keyed: Mapping[str, bool] | None = None
) -> dict[str, int]:
    """Check the topics of a pipeline and of its tables, make those that are missing; return the partitions of each.

    `keyed` says of tables on whose topics there are records whether these have keys: a table that has got or lost its
    key since is refused when its next record comes, alone. ConfigError if two tables cannot have a topic each.
    """
    topics = Topics(kafka.prefix)
    refuse_clashes(topics, {(relation.schema, relation.name) for relation in relations})
    by_key = compacted(kafka.min_compaction_lag_ms, kafka.delete_retention_ms, kafka.max_message_bytes)
    events = kept(kafka.max_message_bytes)
    specs = [TopicSpec(name, 1, by_key) for name in (topics.progress, topics.schemas, topics.tables)]
    specs.append(TopicSpec(topics.requests, 1, REQUESTS))
    specs.append(TopicSpec(topics.message, kafka.partitions, messages(kafka.max_message_bytes)))
    for relation in relations:
        topic = topics.table(relation.schema, relation.name)
        has_key = bool(keys.of(relation))
        if (keyed or {}).get(relation.qualified_name, has_key):
            specs.append(TopicSpec(topic, kafka.partitions, by_key))
        else:
            # without a key, an update or a truncate finds its place only in the order of the whole table
            specs.append(TopicSpec(topic, 1, events))
    return ensure_topics(kafka, specs)


def refuse_clashes(topics: Topics, tables: Collection[tuple[str, str]]) -> None:
    """ConfigError if two tables would have one topic, or a table one of ours, or one that Kafka does not take."""
    for clash in topics.clashes(tables):
        alone = len(clash) == 1
        raise ConfigError(
            "TR-125",
            f'table "{clash[0]}" would have a topic of Tailrace\'s own'
            if alone
            else f'tables "{clash[0]}" and "{clash[1]}" would have the same topic',
            detail="In the name of a topic all but letters, digits, _ and - is written as _xHH, and Kafka takes a dot"
            " for an underscore.",
            hint=f'Rename it, or leave it out: tables = [..., "!{clash[-1]}"]',
        )
    for schema, table in tables:
        topic = topics.table(schema, table)
        if len(topic) > LONGEST:
            raise ConfigError(
                "TR-126",
                f'table "{schema}.{table}" would have a topic with too long a name',
                detail=f"It has {len(topic)} characters; Kafka takes {LONGEST}.",
                hint=f'Rename it, or leave it out: tables = [..., "!{schema}.{table}"]',
            )
