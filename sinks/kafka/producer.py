"""Send records in Kafka transactions, each of which ends with a record that names its cut: the position record.

The cut comes from the delivery reports of our own records, never from asking for the end of the log: the answer to a
commit comes before its markers are on every partition.
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
"""For an answer, or for one more record to get through: when it passes, the outcome is not known."""

_ROUND_S = 0.5
_PAUSE_S = 1.0
"""When nothing has got through for a round, nothing more is sent for so long."""

_TRY_S = 0.02
"""Then for so long: what was paused may be what is waited for."""

TRANSACTION_TIMEOUT_MS = 300_000
"""A slow link may need long for a transaction. One of a producer that is gone is ended by the next producer."""

QUEUE_BYTES = 50_331_648

_MESSAGE_BYTES = 420
"""What librdkafka takes for a record beside key and value."""

_PURGE_S = 2.0
"""For librdkafka to report what it has given up; it waits for nobody then."""

_MARKERS_S = 0.005
"""About how long the markers of a transaction take after the answer to its commit.

Until then Kafka does not let the next one begin, and librdkafka, once refused, asks again after 20 ms.
"""


class KafkaSink:
    """A transactional producer. After any error it is of no more use: `abandon` it and make a new one, which fences it.

    Records go in through `outbox`. librdkafka's queue bounds the memory: when it is full, sending waits.
    """

    def __init__(
        self, kafka: Kafka, transactional_id: str | None, progress_topic: str, queue_bytes: int = QUEUE_BYTES
    ) -> None:
        """Without a `transactional_id` records are written as they come, in order; what followed the last `commit` may
        come again from whoever goes on, and nobody is fenced. `queue_bytes` is what records on their way may take.
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
                # the requests of a commit, one a partition, would each wait for the answer to the one before
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
        """Whether a Kafka transaction is open."""
        return self.outbox.open

    @property
    def pending_bytes(self) -> int:
        """How large the open transaction is."""
        return self.outbox.pending_bytes

    def send_plain(self, topic: str, key: bytes, value: bytes | None) -> None:
        """Put a record on a one-partition topic that no cut speaks of.

        Kafka has it at the next commit: without transactions behind all that was sent before, so that nothing is called
        read that is not there. What is held back meanwhile is bounded by the chunks of a plan, in memory as well.
        """
        self._open()
        if self._transactional:
            self.outbox.produce(topic, 0, (key, value, []), None)
        else:
            self._behind.append((topic, key, value))

    def send_ahead(self, topic: str, key: bytes, value: bytes) -> None:
        """The same for one that Kafka has ahead of all that is sent after it, as a schema must be."""
        self._open()
        self.outbox.produce(topic, 0, (key, value, []), self.delivered)
        if not self._transactional:
            self._drain()

    def flush(self) -> dict[str, int]:
        """Return the records of the open transaction per topic, once Kafka has all of them.

        The `next_offsets` of all destinations are those of the cut then. SinkError means that the outcome is not known.
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
        """End the flushed transaction with its position record, `key` and `value`; return once Kafka has answered.

        SinkError means that the outcome is not known.
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
        """SinkError if Kafka does not answer within so many seconds. Any thread may ask."""
        try:
            self.producer.list_topics(self._progress_topic, timeout=seconds)
        except KafkaException as error:
            raise kafka_error(self._kafka, error.args[0]) from None

    def _drain(self) -> None:
        """Return when Kafka has all records that were handed over, however slow it is."""
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
        """Return how many records are left then."""
        try:
            return self.producer.flush(seconds)
        except KafkaException as error:
            raise self._error(error.args[0]) from None
        except SystemError:
            # confluent-kafka 2.16 runs delivery reports while the error of a fenced producer is set, and loses it;
            # this names it again, and is itself refused in any case
            self._begin()
            raise

    def abandon(self) -> None:
        """Let go of the producer without a word to the broker: an open transaction is aborted by whoever comes next."""
        self.producer.purge(blocking=False)
        # until its report has been given, a record on its way keeps us, and so the producer with all its threads
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
            # an answer makes room, but for a large record one may not be enough
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
        """Take the delivery report of a record; the first error fails the transaction."""
        self._failed = error or self._failed

    def _error(self, error: KafkaError | None) -> SinkError:
        return kafka_error(self._kafka, error or KafkaError(KafkaError._TIMED_OUT))


def _too_large(topic: str, value: bytes | None, limit: int) -> SinkError:
    return SinkError(
        "TR-307",
        f'a record for topic "{topic}" is larger than Kafka may take',
        detail=f"{len(value or b'')} bytes; kafka.max_message_bytes is {limit}.",
        hint="Raise kafka.max_message_bytes and the topic's max.message.bytes.",
    )
