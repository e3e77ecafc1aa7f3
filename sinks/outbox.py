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

if cython.compiled:
    from cython.cimports.schemas.partition import partition_of
else:
    from schemas.partition import partition_of

Headers = list[tuple[str, str | bytes | None]]


@cython.cclass
class Destination:
    """A topic that we write: the offset behind the last committed record of each partition, and what is on its way."""

    def __init__(self, topic: str, next_offsets: list[int]) -> None:
        self.topic = topic
        self.next_offsets = next_offsets
        self.held: list[Any] = [None] * len(next_offsets)
        self.count = 0

    @property
    def partitions(self) -> int:
        return len(self.held)


@cython.cclass
class Outbox:
    """What one Kafka transaction sends. `open` says whether there is one; `pending_bytes` is its size so far.

    `produce` is that of the producer, with its arguments by position; `again` is called with them when librdkafka's
    queue is full or it refuses, and sends the record or raises.
    """

    def __init__(self, produce: Callable[..., None], begin: Callable[[], None], again: Callable[..., None]) -> None:
        self.open = False
        self.pending_bytes = 0
        self.touched: dict[str, Destination] = {}
        self._produce: Any = produce
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
            self.produce(to.topic, partition, before, None)
        return 0

    @cython.ccall
    @cython.exceptval(-1)
    def produce(
        self, topic: str, partition: cython.Py_ssize_t, record: tuple[bytes, bytes | None, Headers], on_delivery: object
    ) -> cython.int:
        """Hand a record to librdkafka."""
        key, value, headers = record
        try:
            self._produce(topic, value, key, partition, on_delivery, None, 0, headers)
        except Exception as error:
            self._again(error, topic, value, key, partition, on_delivery, None, 0, headers)
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
        self._produce = self._begin = self._again = None
