"""An independent reader of topics, with confluent-kafka, fastavro and none of the daemon's code."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fastavro
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from tailrace.schemas.envelope import POSITION_HEADER, SNAPSHOT_HEADER, TRUNCATE_KEY
from tailrace.schemas.lsn import Position


@dataclass(frozen=True)
class TopicRecord:
    """A record as a read_committed consumer sees it.

    `key` and `value` are decoded. `value` is None for a tombstone; `key` is () for a truncate, and (None,) for a record
    without a key.
    """

    partition: int
    offset: int
    key: tuple[Any, ...]
    value: dict[str, Any] | None
    position: Position
    snapshot: int | None
    tombstone: bool


_MARKERS_S = 3.0
"""Seconds to wait for transaction markers: a commit is answered before they are on every partition."""


def read_raw(bootstrap: str, topic: str, end: list[int] | None = None) -> list[Any]:
    """Return all messages of a topic up to what is committed now, or up to the offsets of a cut."""
    messages = read_all(bootstrap, [topic])[topic]
    return [message for message in messages if end is None or message.offset() < end[message.partition()]]


def read_all(bootstrap: str, topics: Iterable[str]) -> dict[str, list[Any]]:
    """Return all messages of several topics up to what is committed now; in order within each partition."""
    found = _admin(bootstrap).list_topics(timeout=10).topics
    left = {end: offset for topic in topics for end, offset in _ends(bootstrap, topic, found[topic].partitions).items()}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "test",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in left])
    messages: dict[str, list[Any]] = {topic: [] for topic in topics}
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + _MARKERS_S
    while left and (time.monotonic() < deadline or not set(left) <= ended):
        message = consumer.poll(0.1)
        if message is None:
            continue
        error, topic, partition, offset = message.error(), message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        if error:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add((topic, partition))
            if offset >= left.get((topic, partition), 0):
                left.pop((topic, partition), None)
        else:
            messages[topic].append(message)
    consumer.close()
    return messages


@lru_cache(maxsize=1)
def _admin(bootstrap: str) -> AdminClient:
    """Return a client that is used again: hundreds of tests read topics, and each client connects three times."""
    # a broker may be killed and started again before the next use
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100})


def _leaderless(error: BaseException) -> bool:
    codes = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)
    return isinstance(error, KafkaException) and error.args[0].code() in codes


# a topic may have been created just now, and its broker not know that it leads it
@retry(retry=retry_if_exception(_leaderless), wait=wait_fixed(0.1), stop=stop_after_delay(10), reraise=True)
def _ends(bootstrap: str, topic: str, partitions: Iterable[int]) -> dict[tuple[str, int], int]:
    """Return the ends of a topic's partitions, transactions in progress included."""
    latest_of = {TopicPartition(topic, each): OffsetSpec.latest() for each in partitions}  # type: ignore[no-untyped-call]
    asked = _admin(bootstrap).list_offsets(latest_of, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return {(each.topic, each.partition): int(future.result(10).offset) for each, future in asked.items()}


def schemas(bootstrap: str, prefix: str) -> dict[int, Any]:
    """Return the parsed schemas by id."""
    return parse_schemas(read_raw(bootstrap, f"{prefix}.tailrace.schemas"))


def parse_schemas(messages: Iterable[Any]) -> dict[int, Any]:
    """Return the schemas of the schemas topic by id."""
    stored = [json.loads(message.value()) for message in messages]
    return {entry["id"]: fastavro.parse_schema(json.loads(entry["schema"])) for entry in stored}


def read_topic(bootstrap: str, prefix: str, table: str, end: list[int] | None = None) -> list[TopicRecord]:
    """Return all records of a table's topic in the order of their partitions."""
    topic, stored = f"{prefix}.{table}", f"{prefix}.tailrace.schemas"
    read = read_all(bootstrap, [topic, stored])
    messages = [message for message in read[topic] if end is None or message.offset() < end[message.partition()]]
    by_id = parse_schemas(read[stored])
    if not {_schema_id(message.value()) for message in messages if message.value()} <= by_id.keys():
        by_id = schemas(bootstrap, prefix)  # the last records came after the last schema had been read
    return decode(messages, by_id)


def _schema_id(raw: bytes) -> int:
    return int.from_bytes(raw[1:5], "big")


def decode(messages: Iterable[Any], by_id: dict[int, Any]) -> list[TopicRecord]:
    """Return messages of a table's topic as records."""

    def fields(raw: bytes) -> Any:
        assert raw[0] == 0
        return fastavro.schemaless_reader(io.BytesIO(raw[5:]), by_id[_schema_id(raw)], None)

    records = []
    for message in messages:
        headers = dict(message.headers())
        key = message.key()
        value = message.value()
        records.append(
            TopicRecord(
                partition=message.partition(),
                offset=message.offset(),
                key=() if key == TRUNCATE_KEY else (None,) if key is None else tuple(fields(key).values()),
                value=None if value is None else fields(value),
                position=Position.from_bytes(headers[POSITION_HEADER]),
                snapshot=int.from_bytes(headers[SNAPSHOT_HEADER], "big") if SNAPSHOT_HEADER in headers else None,
                tombstone=value is None,
            )
        )
    return records


def latest(records: list[TopicRecord]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the state of each key: what a log-compacted topic holds."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    partitions: dict[tuple[Any, ...], int] = {}
    for record in records:
        if record.key == ():
            for key in [key for key, partition in partitions.items() if partition == record.partition]:
                rows.pop(key, None)
            continue
        partitions[record.key] = record.partition
        if record.value is None or record.value["op"] == "d":
            rows.pop(record.key, None)
        else:
            rows[record.key] = record.value["after"]
    return rows


def assert_once_in_order(records: list[TopicRecord]) -> None:
    """Assert that no position repeats (a truncate is in each partition), and that they rise by partition."""
    seen = Counter((record.position, record.partition if record.key == () else -1) for record in records)
    twice = [position for position, count in seen.items() if count > 1]
    assert not twice, f"{len(twice)} positions more than once, the first is {twice[0]}"
    newest: dict[int, Position] = {}
    for record in records:
        before = newest.get(record.partition)
        assert before is None or before < record.position, f"{record.position} behind {before}"
        newest[record.partition] = record.position


def all_bytes(bootstrap: str, prefix: str) -> bytes:
    """Return keys, values and headers of every committed record on every topic of a prefix, in one piece."""
    topics = [topic for topic in _admin(bootstrap).list_topics(timeout=10).topics if topic.startswith(f"{prefix}.")]
    parts: list[bytes] = []
    for message in (each for messages in read_all(bootstrap, topics).values() for each in messages):
        parts += [message.key() or b"", message.value() or b"", *(value or b"" for _, value in message.headers() or [])]
    return b"\n".join(parts)
