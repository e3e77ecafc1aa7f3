"""Records into Kafka transactions, each of which ends with a progress record that names its cut.

The cut comes from the delivery reports of our own records, never from asking for the end of the log: the answer to a
commit comes before its markers are on every partition. So that not every record needs a report, one record per
partition is held back; only the last one of a transaction has an `on_delivery`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.config import Kafka
from schemas.errors import SinkError
from schemas.partition import partition_of
from sinks.admin import kafka_error
from sinks.options import client_options

Headers = list[tuple[str, str | bytes | None]]
_Held = tuple[bytes, bytes | None, Headers]

_COMMIT_TIMEOUT_S = 30.0
"""Under the broker's transaction.timeout.ms: when it passes, the outcome is not known."""


@dataclass(slots=True)
class Destination:
    """A topic that we write: the offset behind the last committed record of each partition, and what is on its way."""

    topic: str
    next_offsets: list[int]
    held: list[_Held | None] = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.held = [None] * len(self.next_offsets)


class KafkaSink:
    """A transactional producer. After any error it is of no more use: `abandon` it and make a new one, which fences it.

    librdkafka's queue bounds the memory: when it is full, `send` waits.
    """

    def __init__(self, kafka: Kafka, transactional_id: str, progress_topic: str) -> None:
        self._kafka = kafka
        self._progress_topic = progress_topic
        self._touched: dict[str, Destination] = {}
        self._failed: KafkaError | None = None
        self._open = False
        self.pending_bytes = 0
        self._producer = Producer(
            client_options(kafka)
            | {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "compression.type": "lz4",
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "message.max.bytes": kafka.max_message_bytes,
                "queue.buffering.max.messages": 500_000,
                "queue.buffering.max.kbytes": 65_536,
            }
        )
        try:
            self._producer.init_transactions(_COMMIT_TIMEOUT_S)
        except KafkaException as error:
            raise kafka_error(kafka, error.args[0]) from None

    @property
    def pending(self) -> bool:
        """Whether a Kafka transaction is open."""
        return self._open

    def send(self, to: Destination, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Put a record on the partition of its key, in order; it is safe only after `commit`."""
        self.send_to(to, partition_of(key, len(to.held)), key, value, headers)

    def send_to(self, to: Destination, partition: int, key: bytes, value: bytes | None, headers: Headers) -> None:
        """Put a record on a given partition."""
        if not self._open:
            self._begin()
        before = to.held[partition]
        to.held[partition] = (key, value, headers)
        if to.count == 0:
            self._touched[to.topic] = to
        to.count += 1
        self.pending_bytes += len(key) + (len(value) if value else 0)
        if before is not None:
            self._produce(to.topic, partition, before)

    def send_progress(self, key: bytes, value: bytes | None) -> None:
        """Put a record on the progress topic beside the position record, in the same transaction."""
        if not self._open:
            self._begin()
        self._produce(self._progress_topic, 0, (key, value, []))

    def send_plain(self, topic: str, key: bytes, value: bytes) -> None:
        """Put a record on a one-partition topic that no cut speaks of."""
        if not self._open:
            self._begin()
        self._produce(topic, 0, (key, value, []))

    def commit(self, progress: Callable[[dict[str, int]], tuple[bytes, bytes]]) -> None:
        """End the transaction with the record that `progress` makes from the counts per topic.

        When it is called, the `next_offsets` of all destinations are those of the cut. Returns once Kafka has answered;
        any SinkError means that the outcome is not known.
        """
        if not self._open:
            self._begin()
        counts = {topic: to.count for topic, to in self._touched.items()}
        for to in self._touched.values():
            for partition, held in enumerate(to.held):
                if held is not None:
                    to.held[partition] = None
                    self._produce(to.topic, partition, held, self._report(to, partition))
            to.count = 0
        self._touched = {}
        try:
            left = self._producer.flush(_COMMIT_TIMEOUT_S)
            if left or self._failed:
                raise self._error(self._failed)
            key, value = progress(counts)
            self._produce(self._progress_topic, 0, (key, value, []))
            self._producer.commit_transaction(_COMMIT_TIMEOUT_S)
        except KafkaException as error:
            raise self._error(error.args[0]) from None
        self._open = False
        self.pending_bytes = 0

    def abandon(self) -> None:
        """Let go of the producer without a word to the broker: an open transaction is aborted by whoever comes next."""
        self._producer.purge(blocking=False)

    def _begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._error(error.args[0]) from None
        self._open = True

    def _produce(
        self,
        topic: str,
        partition: int,
        record: _Held,
        on_delivery: Callable[[KafkaError | None, Message], None] | None = None,
    ) -> None:
        key, value, headers = record
        deadline = 0.0
        while True:
            try:
                self._producer.produce(topic, value, key, partition, on_delivery, headers=headers)
                return
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + _COMMIT_TIMEOUT_S
                if now > deadline:
                    raise self._error(None) from None
                self._producer.poll(0.05)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise _too_large(topic, value, self._kafka.max_message_bytes) from None
                raise self._error(error.args[0]) from None

    def _report(self, to: Destination, partition: int) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None or offset < 0:
                self._failed = error or self._failed or KafkaError(KafkaError._STATE)
            else:
                to.next_offsets[partition] = offset + 1

        return delivered

    def _error(self, error: KafkaError | None) -> SinkError:
        return kafka_error(self._kafka, error or KafkaError(KafkaError._TIMED_OUT))


def _too_large(topic: str, value: bytes | None, limit: int) -> SinkError:
    return SinkError(
        "TR-304",
        f'a record for topic "{topic}" is larger than Kafka may take',
        detail=f"{len(value or b'')} bytes; kafka.max_message_bytes is {limit}.",
        hint="Raise kafka.max_message_bytes and the topic's max.message.bytes.",
    )
