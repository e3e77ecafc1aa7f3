"""Topics of the captured tables: check them, create missing ones, and track their offsets."""

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
    """The topics being written, with the offsets for the next cut. Bounded by the number of tables."""

    def __init__(
        self,
        kafka: Kafka,
        keys: Keys,
        relations: Iterable[Relation],
        partitions: Mapping[str, int],
        offsets: Mapping[str, list[int]],
    ) -> None:
        """`relations` are the tables with topics, `partitions` the partition counts of all existing topics,
        `offsets` those of the cut to resume from.
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
        """Return the topic of a table; create it for a table that was published after the start.

        ConfigError if the table cannot have a topic of its own.
        """
        if (relation.schema, relation.name) not in self._tables:
            refuse_clashes(self._topics, {*self._tables, (relation.schema, relation.name)})
            self._tables.add((relation.schema, relation.name))
        topic = self._topics.table(relation.schema, relation.name)
        if topic not in self._partitions:
            self._partitions |= make_topics(self._kafka, [relation], self._keys)
        return topic

    def of(self, topic: str) -> Destination:
        """Return the destination of an existing topic; records sent to it count in the cut."""
        if topic not in self._by_topic:
            known = self._offsets.get(topic, [])
            self._by_topic[topic] = Destination(topic, known + [0] * (self._partitions[topic] - len(known)))
        return self._by_topic[topic]

    def beside(self, topic: str) -> Destination:
        """Return the destination of a one-partition topic that is not a table's; it counts in the cut, too."""
        return self._by_topic.setdefault(topic, Destination(topic, list(self._offsets.get(topic, [0]))))


def record_limit(kafka: Kafka) -> int:
    """Return the maximum bytes of a record's key and value; the rest of a message is overhead."""
    return kafka.max_message_bytes - _OVERHEAD_BYTES


def make_topics(
    kafka: Kafka, relations: Collection[Relation], keys: Keys, keyed: Mapping[str, bool] | None = None
) -> dict[str, int]:
    """Check the topics of a pipeline and its tables, create missing ones; return partition counts.

    `keyed` says, for tables whose topics have records, whether these records have keys. A table that has gained or
    lost its key since is refused at its next record, without affecting others. ConfigError if topic names clash.
    """
    refuse_clashes(Topics(kafka.prefix), {(relation.schema, relation.name) for relation in relations})
    return ensure_topics(kafka, topic_specs(kafka, relations, keys, keyed))


def topic_specs(
    kafka: Kafka, relations: Collection[Relation], keys: Keys, keyed: Mapping[str, bool] | None = None
) -> list[TopicSpec]:
    """Return the topics of a pipeline and its tables, as `make_topics` needs them."""
    topics = Topics(kafka.prefix)
    specs = own_topic_specs(kafka)
    for relation in relations:
        topic = topics.table(relation.schema, relation.name)
        has_key = bool(keys.of(relation))
        has_key = (keyed or {}).get(relation.qualified_name, has_key)
        # without a key, only the order across the whole table gives an update or a truncate its place
        specs.append(table_spec(kafka, topic, kafka.partitions if has_key else 1, has_key=has_key))
    return specs


def table_spec(kafka: Kafka, topic: str, partitions: int, *, has_key: bool) -> TopicSpec:
    """Return the topic of a table whose records have keys, or have none."""
    return TopicSpec(topic, partitions, _compacted(kafka) if has_key else kept(kafka.max_message_bytes))


def own_topic_specs(kafka: Kafka) -> list[TopicSpec]:
    """Return the topics of a pipeline that are not a table's."""
    topics = Topics(kafka.prefix)
    specs = [TopicSpec(name, 1, _compacted(kafka)) for name in (topics.progress, topics.schemas, topics.tables)]
    specs.append(TopicSpec(topics.requests, 1, REQUESTS))
    specs.append(TopicSpec(topics.message, kafka.partitions, messages(kafka.max_message_bytes)))
    return specs


def _compacted(kafka: Kafka) -> dict[str, str]:
    return compacted(kafka.min_compaction_lag_ms, kafka.delete_retention_ms, kafka.max_message_bytes)


def refuse_clashes(topics: Topics, tables: Collection[tuple[str, str]]) -> None:
    """Raise ConfigError for shared topics, tables with our own topics, and too long topic names."""
    for _, error in clash_errors(topics, tables):
        raise error


def clash_errors(topics: Topics, tables: Collection[tuple[str, str]]) -> list[tuple[tuple[str, ...], ConfigError]]:
    """Return each group of tables (``schema.table``) that cannot have topics of their own, with its error."""
    found = [(clash, _clash(clash)) for clash in topics.clashes(tables)]
    return found + [
        ((f"{schema}.{table}",), _too_long(f"{schema}.{table}", len(topic)))
        for schema, table in sorted(tables)
        if len(topic := topics.table(schema, table)) > LONGEST
    ]


def _clash(clash: tuple[str, ...]) -> ConfigError:
    alone = len(clash) == 1
    return ConfigError(
        "TR-125",
        f'table "{clash[0]}" would use a topic that Tailrace reserves'
        if alone
        else f'tables "{clash[0]}" and "{clash[1]}" would have the same topic',
        detail="In topic names, characters other than letters, digits, _ and - are written as _xHH, and Kafka"
        " treats . and _ as equal.",
        hint=f'tables = [..., "!{clash[-1]}"]  # under [source]: leaves it out; or rename it',
    )


def _too_long(name: str, size: int) -> ConfigError:
    return ConfigError(
        "TR-126",
        f'table "{name}" would have a topic name that is too long',
        detail=f"It has {size} characters; Kafka allows {LONGEST}.",
        hint=f'tables = [..., "!{name}"]  # under [source]: leaves it out; or rename it',
    )
