# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""The records of the open Kafka transaction on their way to librdkafka, one per partition held back.

Only the last record of each partition gets an `on_delivery`: it names the offset of the cut, and reports cost half of
what sending costs. Compiled by Cython where possible: every record passes through here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from schemas import cython_shim as cython

from schemas.envelope import POSITION_HEADER

if cython.compiled:
    from cython.cimports.schemas.partition import partition_of
    from cython.cimports.sinks.direct import Direct
else:
    from schemas.partition import partition_of
    from sinks.direct import Direct

Headers = bytes | list[tuple[str, str | bytes | None]]
"""Of a record; bytes are the position header alone, as most records have it."""


@cython.cclass
class Destination:
    """A topic that we write: the offset behind the last committed record of each partition, and what is on its way."""

    def __init__(self, topic: str, next_offsets: list[int]) -> None:
        self.topic = topic
        self.c_topic = topic.encode()
        self.next_offsets = next_offsets
        self.held: list[Any] = [None] * len(next_offsets)
        self.count = 0

    @property
    def partitions(self) -> int:
        return len(self.held)


@cython.cclass
class Outbox:
    """What one Kafka transaction sends. `open` says whether there is one; `pending_bytes` is its size so far.

    `producer` is confluent-kafka's; `again` is called with the arguments of its `produce`, by position, when
    librdkafka's queue is full or it refuses, and sends the record or raises.
    """

    def __init__(self, producer: Any, begin: Callable[[], None], again: Callable[..., None]) -> None:
        self.open = False
        self.pending_bytes = 0
        self.touched: dict[str, Destination] = {}
        self._direct = Direct(producer)
        self._produce: Any = producer.produce
        self._begin: Any = begin
        self._again: Any = again

    @cython.ccall
    @cython.exceptval(-1)
    def send(self, to: Destination, key: bytes, value: bytes | None, headers: Headers) -> cython.int:
        """Put a record on the partition of its key, in order."""
        return self.send_to(to, partition_of(key, len(to.held)), key, value, headers)

    @cython.ccall
    @cython.exceptval(-1)
    def send_to(
        self, to: Destination, partition: cython.Py_ssize_t, key: bytes, value: bytes | None, headers: Headers
    ) -> cython.int:
        """Put a record on a given partition."""
        if not self.open:
            self._begin()
            self.open = True
        before = to.held[partition]
        to.held[partition] = (key, value, headers)
        if to.count == 0:
            self.touched[to.topic] = to
        to.count += 1
        self.pending_bytes += len(key)
        if value is not None:
            self.pending_bytes += len(value)
        if before is not None:
            self._hand_over(to, partition, before)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _hand_over(
        self, to: Destination, partition: cython.Py_ssize_t, record: tuple[bytes, bytes | None, Headers]
    ) -> cython.int:
        """Hand a record to librdkafka, without asking for a report."""
        direct: Direct = self._direct
        headers = record[2]
        if not (
            direct.ready
            and isinstance(headers, bytes)
            and direct.produce(to.c_topic, partition, record[0], record[1], headers)
        ):
            self.produce(to.topic, partition, record, None)
        return 0

    @cython.ccall
    @cython.exceptval(-1)
    def produce(
        self, topic: str, partition: cython.Py_ssize_t, record: tuple[bytes, bytes | None, Headers], on_delivery: object
    ) -> cython.int:
        """Hand a record to librdkafka by way of confluent-kafka."""
        key, value, headers = record
        named = [(POSITION_HEADER, headers)] if isinstance(headers, bytes) else headers
        try:
            self._produce(topic, value, key, partition, on_delivery, None, 0, named)
        except Exception as error:
            self._again(error, topic, value, key, partition, on_delivery, None, 0, named)
        return 0

    def flush(self, report: Callable[[Destination, int], Any]) -> dict[str, int]:
        """Hand over what is held, each with the `on_delivery` that `report` makes; return the records per topic."""
        counts = {}
        to: Destination
        for to in self.touched.values():
            counts[to.topic] = to.count
            for partition, record in enumerate(to.held):
                if record is not None:
                    to.held[partition] = None
                    self.produce(to.topic, partition, record, report(to, partition))
            to.count = 0
        self.touched = {}
        return counts

    def close(self) -> None:
        """Say that the transaction has ended."""
        self.open = False
        self.pending_bytes = 0

    def forget(self) -> None:
        """Let go of the producer."""
        self._produce = self._begin = self._again = self._direct = None
