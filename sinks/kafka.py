"""Records into Kafka transactions, each of which ends with a progress record that names its cut.

The cut comes from the delivery reports of our own records, never from asking for the end of the log: the answer to a
commit comes before its markers are on every partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from schemas.config import Kafka
from schemas.errors import SinkError
from sinks.admin import kafka_error
from sinks.options import client_options
from sinks.outbox import Destination, Outbox

_COMMIT_TIMEOUT_S = 30.0
"""Under the broker's transaction.timeout.ms: when it passes, the outcome is not known."""

_MARKERS_S = 0.005
"""About how long the markers of a transaction take after the answer to its commit.

Until then Kafka does not let the next one begin, and librdkafka, once refused, asks again after 20 ms.
"""


class KafkaSink:
    """A transactional producer. After any error it is of no more use: `abandon` it and make a new one, which fences it.

    Records go in through `outbox`. librdkafka's queue bounds the memory: when it is full, sending waits.
    """

    def __init__(self, kafka: Kafka, transactional_id: str, progress_topic: str) -> None:
        self._kafka = kafka
        self._progress_topic = progress_topic
        self._failed: KafkaError | None = None
        self._committed_at = 0.0
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
                "queue.buffering.max.kbytes": 16_384,
            }
        )
        self.outbox = Outbox(self._producer, self._begin, self._again)
        try:
            self._producer.init_transactions(_COMMIT_TIMEOUT_S)
        except KafkaException as error:
            raise kafka_error(kafka, error.args[0]) from None

    @property
    def pending(self) -> bool:
        """Whether a Kafka transaction is open."""
        return self.outbox.open

    @property
    def pending_bytes(self) -> int:
        """How large the open transaction is."""
        return self.outbox.pending_bytes

    def send_plain(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Put a record on a one-partition topic that no cut speaks of."""
        self._open()
        self.outbox.produce(topic, 0, (key, value, []), None)

    def commit(self, progress: Callable[[dict[str, int]], tuple[bytes, bytes]]) -> None:
        """End the transaction with the record that `progress` makes from the counts per topic.

        When it is called, the `next_offsets` of all destinations are those of the cut. Returns once Kafka has answered;
        any SinkError means that the outcome is not known.
        """
        self._open()
        counts = self.outbox.flush(self._report)
        try:
            left = self._flush()
            if left or self._failed:
                raise self._error(self._failed)
            key, value = progress(counts)
            self.outbox.produce(self._progress_topic, 0, (key, value, []), None)
            self._producer.commit_transaction(_COMMIT_TIMEOUT_S)
        except KafkaException as error:
            raise self._error(error.args[0]) from None
        self._committed_at = time.monotonic()
        self.outbox.close()

    def _flush(self) -> int:
        """Return how many records have no answer after the time-out."""
        try:
            return self._producer.flush(_COMMIT_TIMEOUT_S)
        except SystemError:
            # confluent-kafka 2.16 runs delivery reports while the error of a fenced producer is set, and loses it;
            # this names it again, and is itself refused in any case
            self._producer.begin_transaction()
            raise

    def abandon(self) -> None:
        """Let go of the producer without a word to the broker: an open transaction is aborted by whoever comes next."""
        self._producer.purge(blocking=False)
        self.outbox.forget()

    def _open(self) -> None:
        if not self.outbox.open:
            self._begin()
            self.outbox.open = True

    def _begin(self) -> None:
        if (left := self._committed_at + _MARKERS_S - time.monotonic()) > 0:
            time.sleep(left)
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._error(error.args[0]) from None

    def _again(self, error: Exception, topic: str, value: bytes | None, *more: Any) -> None:
        """Send a record once librdkafka's queue has room; raise if it was refused for another reason."""
        deadline = time.monotonic() + _COMMIT_TIMEOUT_S
        while isinstance(error, BufferError):
            if time.monotonic() > deadline:
                raise self._error(None) from None
            self._producer.poll(0.05)
            try:
                self._producer.produce(topic, value, *more)
                return
            except (BufferError, KafkaException) as next_error:
                error = next_error
        if not isinstance(error, KafkaException):
            raise error
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
