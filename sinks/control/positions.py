"""Read the small topics of a pipeline (positions, schemas): for daemon, jobs, status and verify.

All reading uses read_committed and terminates: at the partition's end as reported by the broker, or with an error at a
deadline. No read waits for the last offset, because that may be a transaction marker or an aborted record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin._metadata import ClusterMetadata
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from tailrace.schemas.closes import Closes
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.config.secret import kafka_secrets
from tailrace.schemas.errors import SinkError
from tailrace.schemas.records.position import PositionRecord, position_key
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.kafka.options import client_options, unusable

TIMEOUT: Final = 15.0
"""Seconds until an unanswered request to a broker is an error."""

_FIRST_STEP: Final = 64
_STEP_GROWTH: Final = 8


def read_position(kafka: Kafka, topics: Topics, slot: str, timeout: float = TIMEOUT) -> PositionRecord | None:
    """Return the newest position record of `slot`, or None if there is none (or no topic) yet."""
    with PositionTail(kafka, topics, slot, timeout, once=True) as tail:
        return tail.newest()


def read_schemas(kafka: Kafka, topics: Topics, timeout: float = TIMEOUT) -> list[StoredSchema]:
    """Return all schemas of the pipeline, each subject's newest last; none if there is no topic yet."""
    found: dict[int, StoredSchema] = {}
    with Reader(kafka, topics.schemas, timeout, once=True) as reader:
        for record in reader.all():
            if (raw := record.value()) is not None:
                stored = StoredSchema.from_value(raw)
                found.pop(stored.id, None)  # a schema that came back is newer than those in between
                found[stored.id] = stored
    return list(found.values())


class Reader(Closes):
    """A consumer of a one-partition topic, without group offsets.

    These topics have only partition 0, because the order across keys matters.
    """

    def __init__(self, kafka: Kafka, topic: str, timeout: float = TIMEOUT, *, once: bool = False) -> None:
        """Create the consumer. `once`: only existing records are needed, so the broker reports the end soon."""
        self._bootstrap = kafka.bootstrap
        self._topic = topic
        self._timeout = timeout
        self._trouble: KafkaError | None = None
        self._reached = 0  # all committed records before this offset have been read
        options = {
            **client_options(kafka),
            "group.id": "tailrace-reader",  # needed by the client; nothing is ever committed to it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": _END_MS if once else _NEWS_MS,
            "log_level": 0,  # problems are returned as errors
            "error_cb": self._hear,
        }
        try:
            self.consumer = Consumer(options)
        except KafkaException as error:
            raise unusable(error.args[0], kafka_secrets(kafka)) from None

    def close(self) -> None:
        self.consumer.close()

    def bounds(self) -> tuple[int, int] | None:
        """Return the first offset and the end of the committed records, or None if the topic does not exist."""
        try:
            return self._bounds()
        except KafkaException as error:
            raise self._failed(error.args[0]) from None

    @retry(
        retry=retry_if_exception(lambda error: leaderless(error)),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(TIMEOUT),
        reraise=True,
    )
    def _bounds(self) -> tuple[int, int] | None:
        found = self._ask().topics[self._topic]
        if found.error is not None:
            if found.error.code() in _NO_TOPIC:
                return None
            raise KafkaException(found.error)
        low, high = self.consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=self._timeout)
        return low, high

    def _ask(self) -> ClusterMetadata:
        """Request the topic's metadata, with a timeout that doubles at each attempt, until the deadline.

        The client reports a rejected connection only between requests, and one long request would retry until the
        deadline. A broker that has just started may reject us at first, but accepts us by the end of a step.
        """
        deadline = time.monotonic() + self._timeout
        step = _FIRST_ASK_S
        while True:
            try:
                found: ClusterMetadata = self.consumer.list_topics(self._topic, timeout=min(step, self._timeout))
                return found
            except KafkaException:
                self.consumer.poll(0)  # calls `_hear`
                refused = self._trouble is not None and self._trouble.code() in _REFUSED
                if refused or time.monotonic() + step > deadline:
                    raise
                step *= 2

    def _hear(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which gives no cause
            self._trouble = error

    def all(self) -> Iterator[Message]:
        """Yield every record from the first offset to the end."""
        bounds = self.bounds()
        if bounds is not None:
            yield from self.span(*bounds)

    def span(self, start: int, end: int) -> Iterator[Message]:
        """Yield the records from `start` to at least `end`, an end offset returned by `bounds`.

        It does not follow the moving end, because a busy daemon may write faster than we read. Later calls of `more`
        continue from there. SinkError (TR-330) if no record arrives for the timeout.
        """
        self.consumer.assign([TopicPartition(self._topic, 0, start)])
        self._reached = start
        if start >= end:
            return
        deadline = time.monotonic() + self._timeout
        while True:
            record = self.consumer.poll(0.1)
            if record is None:
                if time.monotonic() > deadline:
                    raise self._failed(None)
                continue
            if self._is_record(record):
                yield record
            if self._reached >= end:
                return
            # reset after the yield, because the caller may need long for a record
            deadline = time.monotonic() + self._timeout

    def more(self, wait: float) -> Iterator[Message]:
        """Yield the new records: wait up to `wait` seconds for the first, then yield all available ones."""
        while True:
            record = self.consumer.poll(wait)
            if record is None:
                return
            if self._is_record(record):
                wait = 0.0
                yield record

    def rest(self, wait: float) -> Iterator[Message]:
        """Yield the new records up to the present end, but stop after `wait` seconds."""
        bounds = self.bounds()
        deadline = time.monotonic() + wait
        while bounds is not None and self._reached < bounds[1]:
            record = self.consumer.poll(max(0.0, deadline - time.monotonic()))
            if record is None:
                return
            if self._is_record(record):
                yield record

    def _is_record(self, record: Message) -> bool:
        """Return whether it is a record, not an error; raise errors that are not transient."""
        error = record.error()
        if error is None:
            self._reached = (record.offset() or 0) + 1
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            # after a transaction marker, which is no record; or before the end from `bounds`, if a leader that was just
            # elected does not know yet how much of its log is committed
            self._reached = record.offset() or 0
        elif error.code() not in _PASSING and not error.retriable():
            raise self._failed(error)
        return False

    def _failed(self, error: KafkaError | None) -> SinkError:
        reason = error.str() if error is not None else f"no answer within {self._timeout:.0f} s"
        if self._trouble is not None:
            reason = f"{self._trouble.str()}; {reason}"
        return SinkError(
            "TR-330",
            f'Kafka at "{self._bootstrap}" cannot be read',
            detail=f'Topic "{self._topic}": {reason}.',
            hint=f"kcat -b {self._bootstrap} -L  # is the broker running, and reachable from this host?\n"
            "       The address is kafka.bootstrap; credentials are in kafka.options and kafka.secret_options.\n"
            "       openssl s_client -connect HOST:PORT -CAfile FILE </dev/null  # checks the certificate",
        )


_NEWS_MS: Final = 100
_END_MS: Final = 10
"""Milliseconds for which the broker waits for new records before it sends an empty answer."""

_FIRST_ASK_S: Final = 1.0

_REFUSED: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
"""Errors for a connection that the broker rejects, or that we reject."""

_NO_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)

_NO_LEADER: Final = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    # from the leader of a topic that another broker already knows
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    # from a leader that was just elected (KIP-207)
    KafkaError.OFFSET_NOT_AVAILABLE,
)
"""Transient errors of a topic that was just created, or whose broker has just stopped."""


def leaderless(error: BaseException) -> bool:
    """Return whether a topic had no leader: it was just created, or its broker has just stopped or started."""
    return isinstance(error, KafkaException) and error.args[0].code() in _NO_LEADER


_PASSING: Final = (KafkaError._PARTITION_EOF, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)
"""The client retries after these; the deadline limits it."""


class PositionTail(Closes):
    """The newest position record of a slot, by one consumer that reads each record only once."""

    def __init__(
        self, kafka: Kafka, topics: Topics, slot: str, timeout: float = TIMEOUT, *, once: bool = False
    ) -> None:
        self._reader = Reader(kafka, topics.progress, timeout, once=once)
        self._key = position_key(slot)
        self._newest: PositionRecord | None = None
        self._assigned = False

    def close(self) -> None:
        self._reader.close()

    def newest(self, wait: float = 0.0) -> PositionRecord | None:
        """Return the record with the greatest Position.

        The first call reads to the end as of the call. Later calls, or a first one that found nothing, wait up to
        `wait` seconds for new records: a committed record becomes readable some milliseconds later.
        """
        if self._assigned:
            self._keep(self._reader.more(wait))
            return self._newest
        bounds = self._reader.bounds()
        if bounds is None:
            time.sleep(wait)
            return None
        low, high = bounds
        step = _FIRST_STEP
        while True:
            start = max(low, high - step)
            self._keep(self._reader.span(start, high))
            self._assigned = True
            if self._newest is not None or start == low:
                break
            step *= _STEP_GROWTH
        if self._newest is None and wait:
            self._keep(self._reader.more(wait))
        return self._newest

    def committed(self, wait: float) -> PositionRecord | None:
        """Return the newest record committed by now, as far as `wait` seconds suffice for reading."""
        if not self._assigned:
            return self.newest()
        self._keep(self._reader.rest(wait))
        return self._newest

    def _keep(self, records: Iterator[Message]) -> None:
        for record in records:
            raw = record.value()
            if record.key() == self._key and raw is not None:
                found = PositionRecord.from_json(raw)
                if self._newest is None or found.here.order >= self._newest.here.order:
                    self._newest = found
