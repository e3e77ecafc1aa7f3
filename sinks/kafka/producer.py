"""Send records in Kafka transactions, each of which ends with a position record that names its cut.

The cut comes from the delivery reports of our own records, never from a query for the end offsets: Kafka answers a
commit before its markers are on every partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import SinkError
from tailrace.sinks.kafka.admin import kafka_error
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.outbox import Destination, Outbox
from tailrace.sinks.kafka.pause import paused

_TIMEOUT_S = 30.0
"""Time limit for an answer, or for the delivery of one more record; after it, the outcome is not known."""

_ROUND_S = 0.5
_PAUSE_S = 1.0
"""If no record was delivered in a round, partitions are paused for this long."""

_TRY_S = 0.02
"""Time to send between two pauses, because we may be waiting for the paused records themselves."""

TRANSACTION_TIMEOUT_MS = 300_000
"""Long, because a transaction may need it on a slow link. The next producer ends an abandoned transaction earlier."""

QUEUE_BYTES = 50_331_648

_MESSAGE_BYTES = 420
"""librdkafka's memory per record in addition to key and value."""

_PURGE_S = 2.0
"""Time for librdkafka to report the purged records; it does not wait for brokers then."""

_MARKERS_S = 0.005
"""Approximate time between the answer to a commit and the last transaction marker.

Until then Kafka does not let the next transaction begin, and librdkafka retries only after 20 ms.
"""


class KafkaSink:
    """A transactional producer. After any error, `abandon` it and make a new one, which fences it.

    Send records through `outbox`. librdkafka's queue bounds the memory: when it is full, sending waits.
    """

    def __init__(
        self, kafka: Kafka, transactional_id: str | None, progress_topic: str, queue_bytes: int = QUEUE_BYTES
    ) -> None:
        """Create the producer; `queue_bytes` limits the memory of records in flight.

        Without a `transactional_id`, records are written at once, in order, and no other producer is fenced; the next
        producer may write the records after the last `commit` again.
        """
        self._kafka = kafka
        self._progress_topic = progress_topic
        self._transactional = transactional_id is not None
        record_bytes = max(queue_bytes // 2, kafka.max_message_bytes)
        self._failed: KafkaError | None = None
        self._committed_at = 0.0
        self._behind: list[tuple[str, bytes, bytes | None]] = []
        self.producer = Producer(
            client_options(kafka)
            | (
                {"transactional.id": transactional_id, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
                if self._transactional
                else {"enable.idempotence": True, "enable.gapless.guarantee": True, "message.timeout.ms": 0}
            )
            | {
                "compression.type": "lz4",
                "linger.ms": 20,
                # otherwise each of a commit's requests, one per partition, waits for the answer to the previous one
                "socket.nagle.disable": True,
                "batch.size": 1_000_000,
                "message.max.bytes": kafka.max_message_bytes,
                "queue.buffering.max.messages": max((queue_bytes - record_bytes) // _MESSAGE_BYTES, 1000),
                "queue.buffering.max.kbytes": record_bytes // 1024 + 1,
            }
        )
        self.outbox = Outbox(self.producer, self._begin, self._again, self._report, self._drain)
        try:
            if self._transactional:
                self.producer.init_transactions(_TIMEOUT_S)
        except KafkaException as error:
            self.abandon()
            raise kafka_error(kafka, error.args[0]) from None

    @property
    def pending(self) -> bool:
        """True while a Kafka transaction is open."""
        return self.outbox.open

    @property
    def pending_bytes(self) -> int:
        """Size of the open transaction so far, in bytes."""
        return self.outbox.pending_bytes

    def send_plain(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Send a record to a one-partition topic that is not part of any cut.

        Kafka has it at the next commit. Without transactions it is held in memory and sent after all earlier records,
        so that it never reports a chunk as read before its rows are there. The chunks of a plan bound this memory.
        """
        self._open()
        if self._transactional:
            self.outbox.produce(topic, 0, (key, value, []), None)
        else:
            self._behind.append((topic, key, value))

    def send_ahead(self, topic: str, key: bytes, value: bytes) -> None:
        """Like `send_plain`, but Kafka has the record before all that follow it, as is necessary for a schema."""
        self._open()
        self.outbox.produce(topic, 0, (key, value, []), self.delivered)
        if not self._transactional:
            self._drain()

    def flush(self) -> dict[str, int]:
        """Wait until Kafka has all records of the open transaction; return their number per topic.

        Then the `next_offsets` of all destinations are those of the cut. After a SinkError the outcome is unknown.
        """
        self._open()
        counts = self.outbox.flush()
        self._drain()
        for topic, key, plain in self._behind:
            self.outbox.produce(topic, 0, (key, plain, []), self.delivered)
        if self._behind:
            self._drain()
            self._behind.clear()
        return counts

    def commit(self, key: bytes, value: bytes) -> None:
        """End the flushed transaction with its position record, `key` and `value`.

        Returns once Kafka has answered. After a SinkError the outcome is unknown.
        """
        self._open()
        self.outbox.produce(self._progress_topic, 0, (key, value, []), self.delivered)
        if self._transactional:
            try:
                self.producer.commit_transaction(_TIMEOUT_S)
            except KafkaException as error:
                raise self._error(error.args[0]) from None
            self._committed_at = time.monotonic()
        else:
            self._drain()
        self.outbox.close()

    def ping(self, seconds: float) -> None:
        """Raise SinkError if Kafka does not answer within `seconds`. Thread-safe."""
        try:
            self.producer.list_topics(self._progress_topic, timeout=seconds)
        except KafkaException as error:
            raise kafka_error(self._kafka, error.args[0]) from None

    def _drain(self) -> None:
        """Wait until Kafka has all enqueued records; SinkError if it makes no progress for `_TIMEOUT_S`."""
        left, stuck = self._flush(_ROUND_S), False
        deadline = time.monotonic() + _TIMEOUT_S
        while left:
            before = left
            if stuck:
                with self._paused():
                    left = self._flush(_PAUSE_S)
            if left == before:
                left = self._flush(_TRY_S if stuck else _ROUND_S)
            stuck = left == before
            if not stuck:
                deadline = time.monotonic() + _TIMEOUT_S
            elif time.monotonic() > deadline:
                raise self._error(None)
        if self._failed:
            raise self._error(self._failed)

    def _paused(self) -> AbstractContextManager[None]:
        touched = self.outbox.touched.values()
        return paused(self.producer, [(to.topic, partition) for to in touched for partition in range(to.partitions)])

    def _flush(self, seconds: float) -> int:
        """Flush for at most `seconds`; return the number of records that are still in the queue."""
        try:
            return self.producer.flush(seconds)
        except KafkaException as error:
            raise self._error(error.args[0]) from None
        except SystemError:
            # confluent-kafka 2.16 runs delivery reports while the error of a fenced producer is set, and loses it;
            # this call fails in any case, and raises that error again
            self._begin()
            raise

    def abandon(self) -> None:
        """Release the producer without contact to the broker; the next producer aborts an open transaction."""
        self.producer.purge(blocking=False)
        # until its delivery report, a record in flight refers to us, and so keeps the producer and all its threads
        with suppress(KafkaException, SystemError):
            self.producer.flush(_PURGE_S)
        self.outbox.forget()

    def _open(self) -> None:
        if not self.outbox.open:
            self._begin()
            self.outbox.open = True

    def _begin(self) -> None:
        if not self._transactional:
            return
        if (left := self._committed_at + _MARKERS_S - time.monotonic()) > 0:
            time.sleep(left)
        try:
            self.producer.begin_transaction()
        except KafkaException as error:
            raise self._error(error.args[0]) from None

    def _again(self, error: Exception, topic: str, value: bytes | None, *more: Any) -> None:
        """Send a record once librdkafka's queue has room; raise if it was refused for another reason."""
        deadline, stuck = time.monotonic() + _TIMEOUT_S, False
        while isinstance(error, BufferError):
            if stuck:
                with self._paused():
                    time.sleep(_PAUSE_S)
            # an answer makes room, but a large record may need several
            stuck = not self.producer.poll(_TRY_S if stuck else _ROUND_S)
            if not stuck:
                deadline = time.monotonic() + _TIMEOUT_S
            elif time.monotonic() > deadline:
                raise self._error(None) from None
            try:
                self.producer.produce(topic, value, *more)
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

    def delivered(self, error: KafkaError | None, _: Message) -> None:
        """Delivery report callback for a record; any error fails the transaction."""
        self._failed = error or self._failed

    def _error(self, error: KafkaError | None) -> SinkError:
        if error is not None and error.code() == KafkaError._FATAL and self._transactional:
            # a record is refused without the reason, which every call that concerns the transaction raises
            try:
                self.producer.begin_transaction()
            except KafkaException as reason:
                error = reason.args[0]
        return kafka_error(self._kafka, error or KafkaError(KafkaError._TIMED_OUT))


def _too_large(topic: str, value: bytes | None, limit: int) -> SinkError:
    return SinkError(
        "TR-307",
        f'a record for topic "{topic}" is too large for Kafka',
        detail=f"{len(value or b'')} bytes; kafka.max_message_bytes is {limit}.",
        hint="Raise kafka.max_message_bytes and the topic's max.message.bytes.",
    )
