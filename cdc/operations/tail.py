"""Follow a table's topic and show each change in readable form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import TIMEOUT, read_schemas
from tailrace.sinks.kafka.options import client_options
from tailrace.snapshot.topic import PASSING, Decoder, Record, open_consumer, record_of
from tailrace.snapshot.verify.canonical import Canon, row_of
from tailrace.snapshot.verify.value_kinds import key_fields, row_fields

_WIDTH: Final = 40


@dataclass(frozen=True, slots=True)
class Line:
    """A change. `before` is None if the source does not log old values (no REPLICA IDENTITY FULL)."""

    table: str
    record: Record
    op: str
    key: dict[str, Canon]
    before: dict[str, Canon] | None
    after: dict[str, Canon] | None
    latency_ms: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; values are in PostgreSQL's text form."""
        position = self.record.position
        return {
            "table": self.table,
            "epoch": position.epoch,
            "commit_lsn": format_lsn(position.commit_lsn),
            "ordinal": position.ordinal,
            "partition": self.record.partition,
            "offset": self.record.offset,
            "op": self.op,
            "key": self.key,
            "before": self.before,
            "after": self.after,
            "latency_ms": self.latency_ms,
        }

    def __str__(self) -> str:
        position = self.record.position
        latency = "" if self.latency_ms is None else f"  ({self.latency_ms} ms)"
        place = f"{format_lsn(position.commit_lsn)}:{position.ordinal}"
        return f"{place:<18} {self.op} {self.table} {_words(self.key)}{self._changes()}{latency}"

    def _changes(self) -> str:
        if self.after is None:
            return ""
        old, key = self.before, self.key
        if old is None:
            changes = {name: _short(value) for name, value in self.after.items() if name not in key}
        else:
            changes = {
                name: f"{_short(old.get(name))} -> {_short(value)}"
                for name, value in self.after.items()
                if old.get(name) != value
            }
        return "".join(f"  {name}: {change}" for name, change in changes.items())


def tail(config: Config, table: str, *, from_start: bool) -> Iterator[Line]:
    """Yield the changes of a table as they are committed to Kafka, without end.

    Raises ConfigError TR-111 if the table has no topic, SinkError TR-330 if Kafka cannot be read.
    """
    topics = Topics(config.kafka.prefix)
    candidates = _topics(topics, table)
    topic = candidates[0]
    decoder = Decoder(lambda: {stored.id: stored.schema for stored in read_schemas(config.kafka, topics)})
    consumer = open_consumer(client_options(config.kafka))
    try:
        for topic in candidates:
            found = consumer.list_topics(topic, timeout=TIMEOUT).topics[topic]
            if found.error is None and found.partitions:
                break
        else:
            raise _no_topic(table, candidates[0])
        start = OFFSET_BEGINNING if from_start else OFFSET_END
        consumer.assign([TopicPartition(topic, partition, start) for partition in found.partitions])
        while True:
            for message in consumer.consume(500, timeout=0.2):
                error = message.error()
                if error is None:
                    line = change(table, decoder, record_of(message))
                    if line is not None:
                        yield line
                elif error.code() not in (*PASSING, KafkaError._PARTITION_EOF) and not error.retriable():
                    raise KafkaException(error)
    except KafkaException as error:
        raise SinkError(
            "TR-330",
            f'Kafka at "{config.kafka.bootstrap}" cannot be read',
            detail=f'Topic "{topic}": {error.args[0].str()}.',
            hint="Is the broker running, and does kafka.bootstrap name it?",
        ) from None
    finally:
        consumer.close()


def _topics(topics: Topics, table: str) -> list[str]:
    """Return the candidate topics: names of schemas and of tables may contain dots, too."""
    dots = [n for n, character in enumerate(table) if character == "."]
    names = [(table[:dot], table[dot + 1 :]) for dot in dots if 0 < dot < len(table) - 1]
    return [topics.table(schema, name) for schema, name in [*names, ("public", table)]]


def change(table: str, decoder: Decoder, record: Record) -> Line | None:
    """Return the change of a record; None for a tombstone: the record before it reports the delete."""
    if record.key == TRUNCATE_KEY:
        return Line(table, record, "t", {}, None, None, None)
    if record.value is None:
        return None
    envelope = decoder.decode(record.value)
    fields = _row_fields(decoder.schema(record.value))
    committed_ms = envelope["source"]["ts_ms"] if envelope["op"] != "r" else 0
    return Line(
        table,
        record,
        envelope["op"],
        _key(decoder, record.key) if record.key else {},
        _row(fields, envelope["before"]),
        _row(fields, envelope["after"]),
        max(0, record.timestamp_ms - committed_ms) if committed_ms else None,
    )


_row_fields = lru_cache(maxsize=256)(row_fields)


def _key(decoder: Decoder, raw: bytes) -> dict[str, Canon]:
    fields = key_fields(decoder.schema(raw))
    return _row(fields, decoder.decode(raw)) or {}


def _row(fields: Sequence[Any], values: dict[str, Any] | None) -> dict[str, Canon] | None:
    if values is None:
        return None
    return {field.column: value for field, value in zip(fields, row_of(fields, values), strict=True)}


def _words(values: dict[str, Canon]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Canon) -> str:
    text = "NULL" if value is None else value if isinstance(value, str) else str(value)
    # a line break inside a value must not end the line
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: _WIDTH + 1])
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _no_topic(table: str, topic: str) -> ConfigError:
    return ConfigError(
        "TR-111",
        f'table "{table}" has no topic',
        detail=f'Topic "{topic}" does not exist.',
        hint='Is the table captured (source.tables), and has `tailrace run` been started? Write "schema.table".',
    )
