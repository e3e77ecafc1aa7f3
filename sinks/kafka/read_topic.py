"""Read a table's topic up to a cut; decode records without losing values that Python's types lack."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tailrace.schemas.avro import without_logical_types
from tailrace.schemas.envelope import FRAMING_SIZE, POSITION_HEADER, schema_id_of
from tailrace.schemas.errors import SinkError
from tailrace.schemas.lsn import Position

_BATCH = 5000
NOT_OURS: Final = "TR-331"
"""Error code for a record that was not written by a Tailrace daemon."""

WAIT_AT_END: Final = {"fetch.wait.max.ms": 10}
"""Options for a span: its end is often a transaction marker, behind which the broker would wait for more."""

PASSING: Final = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)
"""Errors after which the client retries; a deadline limits the wait."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a table's topic; `value` is None for a tombstone."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    position: Position


class Decoder:
    """Decodes framed Avro by schema id; logical types stay plain numbers and bytes.

    `read` is called again for an unknown id: a table may have been altered meanwhile.
    """

    def __init__(self, read: Callable[[], Mapping[int, str]]) -> None:
        self._read = read
        self._texts: dict[int, str] = {}
        self._readers: dict[int, Callable[[io.BytesIO], object]] = {}

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Return the fields of a framed key or value."""
        schema_id = self._id(raw)
        read = self._readers.get(schema_id)
        if read is None:
            # a start of the daemon decodes nothing: its first change would wait for the import
            from fastavro import parse_schema, schemaless_reader

            plain = without_logical_types(orjson.loads(self._texts[schema_id]))
            read = partial(schemaless_reader, writer_schema=parse_schema(plain), reader_schema=None)
            self._readers[schema_id] = read
        fields = read(io.BytesIO(raw[FRAMING_SIZE:]))
        assert isinstance(fields, dict)
        return fields

    def schema(self, raw: bytes) -> str:
        """Return the stored text of the schema of a framed key or value."""
        return self._texts[self._id(raw)]

    def _id(self, raw: bytes) -> int:
        try:
            schema_id = schema_id_of(raw)
        except ValueError as error:
            raise SinkError(NOT_OURS, "a record was not written by Tailrace", detail=f"It is {error}.") from None
        if schema_id not in self._texts:
            self._texts.update(self._read())
        if schema_id not in self._texts:
            raise SinkError(
                "TR-332",
                f"schema {schema_id} is not on the schemas topic",
                detail="Records written with it cannot be decoded.",
                hint="tailrace config show  # kafka.prefix must be that of the pipeline that wrote the topic",
            )
        return schema_id


def open_consumer(options: Mapping[str, Any]) -> Consumer:
    """Return a consumer that reads only committed records, joins no group and stores no offsets."""
    return Consumer(
        {
            **options,
            "group.id": "tailrace-reader",  # the client requires one; no offsets are committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "log_level": 0,  # important problems are returned as errors
        }
    )


def read_to(
    options: Mapping[str, Any],
    topic: str,
    ends: Sequence[int],
    starts: Sequence[int] = (),
    idle_s: float = 30.0,
    batch: int = _BATCH,
) -> Iterator[list[Record]]:
    """Yield the records of a table's topic, as `messages_to` does."""
    for messages in messages_to(options, topic, ends, starts, idle_s, batch):
        yield [record_of(each) for each in messages]


def messages_to(
    options: Mapping[str, Any],
    topic: str,
    ends: Sequence[int],
    starts: Sequence[int] = (),
    idle_s: float = 30.0,
    batch: int = _BATCH,
) -> Iterator[list[Message]]:
    """Yield the committed records of `topic` from `starts` (or the first record) to before `ends`.

    Both are offsets by partition. A cut's last record may have been compacted away, so a partition is done at the first
    message or end-of-partition event that is at or past its end. Memory: `batch` records, and librdkafka's queue.
    Raises SinkError (TR-333) if no message arrives for `idle_s` seconds.
    """
    begins = [*starts, *[0] * (len(ends) - len(starts))]
    missing = {partition: end for partition, end in enumerate(ends) if end > begins[partition]}
    consumer = open_consumer(options)
    try:
        consumer.assign([TopicPartition(topic, partition, begins[partition]) for partition in missing])
        yield from drained(consumer, topic, missing, idle_s, batch)
    except KafkaException as error:
        raise _unreadable(topic, error.args[0]) from None
    finally:
        consumer.close()


def drained(
    consumer: Consumer, topic: str, missing: dict[int, int], idle_s: float, batch: int = _BATCH
) -> Iterator[list[Message]]:
    """Yield the records of an assigned consumer to before `missing`, the end of each partition; empty it meanwhile.

    Raises KafkaException, or SinkError (TR-333) if no message arrives for `idle_s` seconds.
    """
    partitions, deadline = len(missing), time.monotonic() + idle_s
    while missing:
        # consume() alone would wait until it has a whole batch, or for all of its time
        first = consumer.poll(0.5)
        if first is None:
            if time.monotonic() > deadline:
                raise _nothing_arrives(consumer, topic, f"{len(missing)} of {partitions}", idle_s)
            continue
        deadline = time.monotonic() + idle_s
        messages = [first, *consumer.consume(batch - 1, timeout=0)]
        if records := [message for message in messages if _is_before(message, missing)]:
            yield records


def _nothing_arrives(consumer: Consumer, topic: str, missing: str, idle_s: float) -> SinkError:
    """Return the error of a topic that was read in vain; it says so if the topic was deleted."""
    found = consumer.list_topics(topic, timeout=idle_s).topics[topic]
    is_there = found.error is None
    return SinkError(
        "TR-333",
        f'no record arrived from topic "{topic}" for {idle_s:.0f} s',
        detail=f"{missing} partitions have not been read up to the cut."
        if is_there
        else f"{found.error.str()}: the topic was deleted.",
        hint="kcat -b HOST:PORT -L  # do the brokers of kafka.bootstrap run? Has each partition a leader?"
        if is_there
        else "tailrace table list  # how to continue (TR-424), once `tailrace run` has noticed it",
    )


def _is_before(message: Message, missing: dict[int, int]) -> bool:
    """Whether it is a record before its partition's end; at the end, remove the partition from `missing`."""
    partition, offset, error = message.partition(), message.offset(), message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        if error.retriable() or error.code() in PASSING:
            return False
        raise KafkaException(error)
    assert partition is not None
    assert offset is not None
    end = missing.get(partition)
    if end is None:
        return False
    # the offset of an end is that of the next record: markers of transactions have offsets, too
    if offset + (error is None) >= end:
        del missing[partition]
    return error is None and offset < end


def record_of(message: Message) -> Record:
    """Return the record of a message. SinkError if it has no position, because it is then not ours."""
    headers: dict[str, Any] = dict(message.headers() or [])
    partition, offset, raw = message.partition(), message.offset(), headers.get(POSITION_HEADER)
    assert partition is not None
    assert offset is not None
    if raw is None:
        raise SinkError(
            NOT_OURS,
            f'topic "{message.topic()}" has a record that Tailrace did not write',
            detail=f'Partition {partition}, offset {offset} has no header "{POSITION_HEADER}".',
            hint="Another program writes to the topic. Stop it, or give this pipeline its own kafka.prefix.",
        )
    key, value = message.key(), message.value()
    return Record(
        partition,
        offset,
        message.timestamp()[1],
        b"" if key is None else bytes(key),
        None if value is None else bytes(value),
        Position.from_bytes(raw),
    )


def _unreadable(topic: str, error: KafkaError) -> SinkError:
    return SinkError(
        "TR-333",
        f'topic "{topic}" cannot be read',
        detail=f"{error.name()}: {error.str()}.",
        hint="kcat -b HOST:PORT -L  # do the brokers of kafka.bootstrap run? Has each partition a leader?",
    )
