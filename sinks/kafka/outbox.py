# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Send queue of the open Kafka transaction; it holds back the last record of each partition.

Only the last record of each partition gets an `on_delivery`: it gives the offset of the cut, and a delivery report
costs half as much as sending. Compiled by Cython where possible, because every record passes through here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.schemas.envelope import POSITION_HEADER, SNAPSHOT_HEADER

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.tailrace.schemas.encode.buffer import Buffer
    from cython.cimports.tailrace.schemas.encode.partition import partition_at, partition_of
    from cython.cimports.tailrace.sinks.kafka.direct import Direct
else:
    from tailrace.schemas.encode.buffer import Buffer
    from tailrace.schemas.encode.partition import partition_of
    from tailrace.sinks.kafka.direct import Direct

Headers = bytes | list[tuple[str, str | bytes | None]]
"""Headers of a record; bytes are the position header's value, followed by the snapshot header's if there is one."""

_POSITION_SIZE = cython.declare(cython.Py_ssize_t, 20)

_SLOT_BYTES = cython.declare(cython.Py_ssize_t, 4096)
"""Larger records are not held back and get their own reports, because a slot never shrinks."""

_MOST_HELD = cython.declare(cython.Py_ssize_t, 2048)
"""Limit of held records, and so of partitions with slots; at the limit all held records are sent, with reports."""

_LARGE = cython.declare(cython.Py_ssize_t, 1_048_576)
"""Before a larger record is copied, librdkafka's queue is drained. Bytes."""


@cython.cclass
class Slot:
    """Reusable buffers for the held record of a partition, so that the next record needs no new objects."""

    def __init__(self) -> None:
        self.key, self.value, self.position = Buffer(), Buffer(), Buffer()

    @cython.ccall
    def record(self) -> Any:
        """Return the held record as a tuple of key, value and headers."""
        return (self.key.whole(), self.value.whole(), self.position.whole())


@cython.cclass
class Destination:
    """A topic that we write: the next offset of each partition after the last flush, and its held records.

    `handle` is librdkafka's topic handle for the producer with the number `producer`.
    """

    def __init__(self, topic: str, next_offsets: list[int]) -> None:
        self.topic = topic
        self.c_topic = topic.encode()
        self.producer = 0
        self.handle = 0
        self.next_offsets = next_offsets
        self.held: list[Any] = [None] * len(next_offsets)
        self.slots: list[Any] = [None] * len(next_offsets)
        self.count = 0

    @property
    def partitions(self) -> int:
        return len(self.held)


@cython.cclass
class Outbox:
    """Send queue of one transaction; `open`: there is a transaction, `pending_bytes`: its size so far.

    `producer` is confluent-kafka's. If its `produce` fails (queue full, record refused), `again` gets the error and the
    same positional arguments, and sends the record or raises. `begin` opens a transaction. `report` makes the
    `on_delivery` for the last record of a partition; `drain` returns when librdkafka's queue is empty.
    """

    def __init__(
        self,
        producer: Any,
        begin: Callable[[], None],
        again: Callable[..., None],
        report: Callable[[Destination, int], Any],
        drain: Callable[[], object],
    ) -> None:
        self.open = False
        self._held_count = 0
        self.pending_bytes = 0
        self.touched: dict[str, Destination] = {}
        self._direct = Direct(producer)
        self.direct = self._direct.ready
        self._produce: Any = producer.produce
        self._begin: Any = begin
        self._again: Any = again
        self._report: Any = report
        self._drain: Any = drain

    @cython.ccall
    @cython.exceptval(-1)
    def send(self, to: Destination, key: bytes, value: bytes | None, headers: Headers) -> cython.int:
        """Send a record to the partition of its key, in order; all empty keys share one partition."""
        return self.send_to(to, partition_of(key, len(to.held)), key, value, headers)

    @cython.ccall
    @cython.exceptval(-1)
    def send_to(
        self, to: Destination, partition: cython.Py_ssize_t, key: bytes, value: bytes | None, headers: Headers
    ) -> cython.int:
        """Send a record to a given partition."""
        size: cython.Py_ssize_t = len(key) + (0 if value is None else len(value))
        self._make_room(to, partition, size)
        return self._keep(to, partition, size, (key, value, headers))

    @cython.cfunc
    @cython.exceptval(-1)
    def _keep(self, to: Destination, partition: cython.Py_ssize_t, size: cython.Py_ssize_t, record: Any) -> cython.int:
        """Hold a record back, or send it at once if it is large."""
        if size > _SLOT_BYTES:
            return self.produce(to.topic, partition, record, self._report(to, partition))
        to.held[partition] = record
        self._held_count += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def send_encoded(
        self, to: Destination, key: Buffer, value: Buffer, position: bytes, ordinal: cython.longlong, run: bytes
    ) -> cython.int:
        """Send the record in these buffers to the partition of its key.

        Compiled, this creates no Python object for a small record. Its headers are `position` (12 bytes) with the
        ordinal, and for a snapshot row also `run` (4 bytes).
        """
        if cython.compiled:
            partition: cython.Py_ssize_t = partition_at(key.at, key.size, len(to.held))
            self._make_room(to, partition, key.size + value.size)
            slot: Slot = to.slots[partition]
            if slot is None:
                slot = to.slots[partition] = Slot()
            slot.position.clear()
            slot.position.put_all(position)
            slot.position.put_be64(ordinal)
            slot.position.put_all(run)
            if key.size + value.size > _SLOT_BYTES:
                record = (key.whole(), value.whole(), slot.position.whole())
                if value.size > _LARGE:
                    value.clear()
                return self._keep(to, partition, _SLOT_BYTES + 1, record)
            slot.key.clear()
            slot.key.put_from(key, 0, key.size)
            slot.value.clear()
            slot.value.put_from(value, 0, value.size)
            return self._keep(to, partition, 0, slot)
        return self.send(to, key.whole(), value.whole(), position + ordinal.to_bytes(8, "big") + run)

    @cython.cfunc
    @cython.exceptval(-1)
    def _make_room(self, to: Destination, partition: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.int:
        """Make room for a record of `size` bytes: send the partition's held one, open a transaction if needed."""
        if size > _LARGE:
            self._drain()
        if not self.open:
            self._begin()
            self.open = True
        if to.count == 0:
            self.touched[to.topic] = to
        to.count += 1
        self.pending_bytes += size
        held = to.held[partition]
        if held is not None:
            to.held[partition] = None
            self._held_count -= 1
            if cython.compiled and self.direct:
                return self._hand_over(to, partition, held)
            self.produce(to.topic, partition, held, None)
        elif self._held_count >= _MOST_HELD:
            self._release()
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _hand_over(self, to: Destination, partition: cython.Py_ssize_t, held: Any) -> cython.int:
        """Enqueue a record in librdkafka directly, without a delivery report."""
        if cython.compiled:
            if to.producer != self._direct.number:
                to.producer, to.handle = self._direct.number, self._direct.topic(to.c_topic)
            if isinstance(held, Slot):
                slot: Slot = held
                if self._direct.produce(
                    to.handle,
                    partition,
                    slot.key.at,
                    slot.key.size,
                    slot.value.at,
                    slot.value.size,
                    slot.position.at,
                    slot.position.size,
                ):
                    return 0
                held = slot.record()
            elif isinstance(held[2], bytes) and self._direct.produce(
                to.handle,
                partition,
                _at(held[0]),
                len(held[0]),
                _at(held[1]),
                _size(held[1]),
                _at(held[2]),
                len(held[2]),
            ):
                return 0
        return self.produce(to.topic, partition, held, None)

    @cython.ccall
    @cython.exceptval(-1)
    def produce(
        self, topic: str, partition: cython.Py_ssize_t, record: tuple[bytes, bytes | None, Headers], on_delivery: object
    ) -> cython.int:
        """Enqueue a record through confluent-kafka; an empty key becomes null in Kafka."""
        key, value, headers = record
        named = _named(headers) if isinstance(headers, bytes) else headers
        try:
            self._produce(topic, value, key or None, partition, on_delivery, None, 0, named)
        except Exception as error:
            self._again(error, topic, value, key or None, partition, on_delivery, None, 0, named)
        return 0

    def flush(self) -> dict[str, int]:
        """Enqueue the held records, each with a delivery report; return the number of records per topic."""
        counts = {}
        to: Destination
        self._release()
        for to in self.touched.values():
            counts[to.topic] = to.count
            to.count = 0
        return counts

    @cython.cfunc
    @cython.exceptval(-1)
    def _release(self) -> cython.int:
        to: Destination
        many: cython.bint = self._held_count >= _MOST_HELD
        for to in self.touched.values():
            for partition, held in enumerate(to.held):
                if held is not None:
                    to.held[partition] = None
                    record = held.record() if isinstance(held, Slot) else held
                    self.produce(to.topic, partition, record, self._report(to, partition))
                if many:
                    to.slots[partition] = None
        self._held_count = 0
        return 0

    def close(self) -> None:
        """Mark the transaction as ended."""
        self.open = False
        self.pending_bytes = 0
        self.touched = {}

    def forget(self) -> None:
        """Release the producer; nothing can be sent afterwards."""
        self.direct = False
        self._direct.close()
        self._produce = self._begin = self._again = self._report = self._drain = None


def _named(headers: bytes) -> list[tuple[str, str | bytes | None]]:
    named: list[tuple[str, str | bytes | None]] = [(POSITION_HEADER, headers[:_POSITION_SIZE])]
    if len(headers) > _POSITION_SIZE:
        named.append((SNAPSHOT_HEADER, headers[_POSITION_SIZE:]))
    return named


@cython.cfunc
@cython.exceptval(check=False)
def _at(raw: bytes | None) -> cython.p_const_uchar:
    """Return a pointer to the bytes, NULL for None."""
    return cython.NULL if raw is None else cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(raw))


@cython.cfunc
@cython.exceptval(check=False)
def _size(raw: bytes | None) -> cython.Py_ssize_t:
    return 0 if raw is None else len(raw)
