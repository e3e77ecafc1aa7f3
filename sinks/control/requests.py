"""Requests to the daemon over Kafka: a command sends one and awaits the answer, the daemon reads it."""

from __future__ import annotations

import time
import uuid
from typing import Final

import orjson
from confluent_kafka import Message

from tailrace.schemas.closes import Closes
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.records.requests import Outcome, Request, RequestRecord, request_key
from tailrace.schemas.records.topics import REQUESTS, Topics
from tailrace.sinks.control.positions import Reader
from tailrace.sinks.kafka.admin import TopicSpec, ensure_topics
from tailrace.sinks.kafka.one_shot import send_alone

_LOOK_S: Final = 0.2
"""Minimum time between two polls by the daemon, in seconds."""


class RequestTail(Closes):
    """The unanswered requests of a slot, in their order; `answered` has the keys of the answered ones.

    Memory: the unanswered requests, and the keys in `answered`.
    """

    def __init__(self, kafka: Kafka, slot: str) -> None:
        self._reader = Reader(kafka, Topics(kafka.prefix).requests)
        self._slot = slot
        self._open: dict[bytes, Request] = {}
        self._looked_at = time.monotonic()
        self.answered: set[bytes] = set()
        for message in self._reader.all():
            self._take(message)

    @property
    def asks_for_recovery(self) -> bool:
        """True if a person has requested recovery, which repairs the topics whatever they lack."""
        return any(request.is_recovery for request in self._open.values())

    @property
    def waiting(self) -> tuple[Request, ...]:
        """The unanswered requests."""
        return tuple(self._open.values())

    def next(self) -> tuple[bytes, Request] | None:
        """Remove and return the next unanswered request with its record key; the caller must answer it."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            for message in self._reader.more(0.0):
                self._take(message)
        key = next(iter(self._open), None)
        return None if key is None else (key, self._open.pop(key))

    def _take(self, message: Message) -> None:
        key, value = message.key(), message.value()
        if not isinstance(key, bytes) or orjson.loads(key)[0] != self._slot:
            return
        record = RequestRecord.from_json(value) if isinstance(value, bytes) else None
        if record is None or record.answer is not None:
            self._open.pop(key, None)
            if record is not None:
                self.answered.add(key)
        else:
            self._open[key] = record.request

    def close(self) -> None:
        self._reader.close()


class Ask(Closes):
    """One request of a command: `send`, then `wait` for the answer."""

    def __init__(self, kafka: Kafka, slot: str) -> None:
        """Create the topic if the pipeline has none yet."""
        topic = Topics(kafka.prefix).requests
        ensure_topics(kafka, [TopicSpec(topic, 1, REQUESTS)])
        self._kafka = kafka
        self._topic = topic
        self.id = uuid.uuid4().hex[:12]
        self._key = request_key(slot, self.id)
        self._reader = Reader(kafka, topic)

    def close(self) -> None:
        self._reader.close()

    def send(self, request: Request) -> None:
        """Send the request and wait for Kafka's acknowledgement. SinkError without one."""
        send_alone(self._kafka, {self._topic: {self._key: RequestRecord(request).to_json()}})

    def wait(self, seconds: float) -> tuple[Outcome, ...] | None:
        """Return the daemon's answer, None if there is none within `seconds`."""
        deadline = time.monotonic() + seconds
        for message in self._reader.all():
            if (answer := self._answer(message)) is not None:
                return answer
        while (left := deadline - time.monotonic()) > 0:
            for message in self._reader.more(min(left, 0.2)):
                if (answer := self._answer(message)) is not None:
                    return answer
        return None

    def _answer(self, message: Message) -> tuple[Outcome, ...] | None:
        value = message.value()
        return RequestRecord.from_json(value).answer if message.key() == self._key and value is not None else None
