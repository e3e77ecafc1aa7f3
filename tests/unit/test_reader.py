"""The end of reading a small topic; a stub, as no test can make a leader lag behind its own log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError

from tailrace.schemas.config.model import Kafka
from tailrace.sinks.control.positions import Reader


@dataclass
class _Message:
    at: int
    code: int | None = None

    def offset(self) -> int:
        return self.at

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code)


class _Client:
    def __init__(self, *messages: _Message) -> None:
        self._messages = iter(messages)

    def assign(self, _: Any) -> None: ...

    def poll(self, _: float) -> _Message | None:
        return next(self._messages, None)

    def close(self) -> None: ...


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Reader(Kafka(bootstrap="127.0.0.1:1"), "topic", timeout=0.2) as found:
        yield found


@pytest.mark.parametrize("last", [4, 3], ids=["ends with a record", "ends with a marker"])
def test_an_end_before_the_requested_one_does_not_end_the_read(reader: Reader, last: int) -> None:
    """A new leader reports how much is committed before it knows of all."""
    end = KafkaError._PARTITION_EOF
    reader.consumer.close()
    reader.consumer = _Client(  # type: ignore[assignment]
        _Message(0), _Message(1), _Message(2, end), *map(_Message, range(2, last + 1)), _Message(5, end)
    )
    assert [message.offset() for message in reader.span(0, 5)] == list(range(last + 1))
