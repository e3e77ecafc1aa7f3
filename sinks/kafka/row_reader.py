# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Fast path for a whole topic: from librdkafka's memory into columns, without a Python object for each record.

confluent-kafka's `consume` makes one of each, which costs several times what the decoding does. `RowReader.ready` is
false where `sinks.kafka.direct.Direct.ready` would be; then Spark reads the topic.
https://docs.confluent.io/platform/current/clients/librdkafka/html/rdkafka_8h.html
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.schemas.decode.key_table import KeyTable
from tailrace.schemas.decode.rows import ColumnBuffers, RowDecoder
from tailrace.schemas.encode.shared_library import function_address
from tailrace.schemas.envelope import FRAMING_SIZE, framing
from tailrace.sinks.kafka.known_client import has_handle

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcmp

_AT_ONCE = cython.declare(cython.Py_ssize_t, 10_000)
_FRAMING = cython.declare(cython.size_t, FRAMING_SIZE)
_PARTITION_EOF = cython.declare(cython.int, -191)
_BITS = cython.declare(cython.Py_ssize_t, 32)
_ROW = cython.declare(cython.longlong, 0xFFFFFFFF)
"""A place is the number of a chunk, and in the lower bits that of a row in it."""


class UnexpectedRecord(Exception):
    """A record that is no row of the expected schemas: of other ones, without a key, or a truncate."""


@cython.final
@cython.cclass
class RowReader:
    """Reads the newest rows of an assigned consumer's partitions, in chunks, each of at most `most_rows`.

    Whether a row is still the newest of its key is known at the end (`gone`). Memory: one chunk, the keys (`KeyTable`),
    a bit for each row, and librdkafka's queue. `error` is librdkafka's code of the last event that was no record.
    """

    def __init__(
        self,
        consumer: object,
        ends: Sequence[int],
        schema_ids: tuple[int, int],
        kinds: Sequence[int],
        keys: KeyTable,
        most_rows: int,
        most_bytes: int,
    ) -> None:
        """`ends` are the partitions' ends, 0 for one that is not read; `schema_ids` those of the keys and of the
        values, `kinds` as for `RowDecoder`. A chunk has some `most_bytes` of records.
        """
        self._consumer = consumer
        self._rows, self._keys = RowDecoder(kinds), keys
        self._key_framing, self._value_framing = map(framing, schema_ids)
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self._gone = [bytearray(most_rows // 8 + 1)]
        self._chunk = self._next = self._count = self.error = 0
        self._partitions = len(ends)
        self.missing = sum(end > 0 for end in ends)
        self._end_offsets, self._fetched = bytearray(8 * len(ends)), bytearray(8 * _AT_ONCE)
        self.ready = False
        if cython.compiled:
            self._ends = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self._end_offsets))
            for number, end in enumerate(ends):
                self._ends[number] = end
            fetched: cython.p_char = PyByteArray_AS_STRING(self._fetched)
            self._messages = cython.cast(cython.pointer[cython.pointer[Message]], fetched)  # noqa: F821
            self._queue = cython.NULL
            poll: cython.size_t = _address("rd_kafka_consumer_poll")
            consume: cython.size_t = _address("rd_kafka_consume_batch_queue")
            queue_of: cython.size_t = _address("rd_kafka_queue_get_consumer")
            destroy: cython.size_t = _address("rd_kafka_message_destroy")
            destroy_queue: cython.size_t = _address("rd_kafka_queue_destroy")
            if 0 not in (poll, consume, queue_of, destroy, destroy_queue) and has_handle(consumer):
                self._poll = cython.cast(Poll, poll)  # noqa: F821
                self._consume = cython.cast(ConsumeBatch, consume)  # noqa: F821
                self._destroy_message = cython.cast(Destroy, destroy)  # noqa: F821
                self._destroy_queue = cython.cast(Destroy, destroy_queue)  # noqa: F821
                self._rk = cython.cast(cython.pointer[Handle], cython.cast(cython.p_void, consumer)).rk  # noqa: F821
                self._queue = cython.cast(QueueOf, queue_of)(self._rk)  # noqa: F821
                self.ready = self._queue != cython.NULL

    def close(self) -> None:
        """Release librdkafka's memory; call it before the consumer is closed."""
        if cython.compiled and self.ready:
            while self._next < self._count:
                self._destroy_message(self._messages[self._next])
                self._next += 1
            self._destroy_queue(self._queue)
        self.ready = False
        self._consumer = None

    def read(self, wait_ms: int) -> bool:
        """Read what has arrived, until the chunk is full; return whether anything has within `wait_ms`.

        UnexpectedRecord, Malformed and TooManyKeys end the reading. `error` is set by an event that is an error.
        """
        if cython.compiled:
            wait: cython.int = wait_ms
            first = cython.declare(cython.pointer[Message])  # noqa: F821
            more: cython.Py_ssize_t
            if self._next == self._count:
                with cython.nogil:
                    first = self._poll(self._rk, wait)
                    more = 0
                    if first != cython.NULL:
                        self._messages[0] = first
                        more = 1 + max(0, self._consume(self._queue, 0, self._messages + 1, _AT_ONCE - 1))
                self._next, self._count = 0, more
            came: cython.bint = self._next < self._count
            while self._next < self._count and not self.is_full:
                self._next += 1
                try:
                    self._take(self._messages[self._next - 1])
                finally:
                    self._destroy_message(self._messages[self._next - 1])
            return came
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """Whether the chunk is to be taken before more is read."""
        return self._rows.rows >= self._most_rows or self._rows.size >= self._most_bytes

    @property
    def rows(self) -> int:
        """The number of rows in the chunk."""
        return self._rows.rows

    def take(self) -> list[ColumnBuffers]:
        """Return the chunk's columns, and begin the next chunk."""
        self._chunk += 1
        self._gone.append(bytearray(self._most_rows // 8 + 1))
        return self._rows.take()

    def gone(self, chunk: int) -> bytearray:
        """Return a bitmap of the rows of a chunk that are not the newest of their keys, the least bit first."""
        return self._gone[chunk]

    @cython.cfunc
    @cython.exceptval(-1)
    def _take(self, message: cython.pointer[Message]) -> cython.int:  # noqa: F821
        """Take a record, or another event."""
        if cython.compiled:
            number: cython.Py_ssize_t = message.partition
            if message.err != 0 and message.err != _PARTITION_EOF:
                self.error = message.err
                return 0
            if number < 0 or number >= self._partitions or self._ends[number] == 0:
                return 0
            offset: cython.longlong = message.offset
            if message.err == 0 and offset < self._ends[number]:
                if message.key_size < _FRAMING or memcmp(message.key, PyBytes_AS_STRING(self._key_framing), _FRAMING):
                    raise UnexpectedRecord("key")
                place: cython.longlong = -1  # `NOWHERE`
                if message.value != cython.NULL:
                    framed: cython.bint = message.value_size >= _FRAMING
                    if not framed or memcmp(message.value, PyBytes_AS_STRING(self._value_framing), _FRAMING):
                        raise UnexpectedRecord("value")
                    place = (self._chunk << _BITS) | self._rows.rows
                    if not self._rows.append(message.value + _FRAMING, message.value_size - _FRAMING):
                        place = -1
                self._leave(self._keys.put(message.key, message.key_size, place))
            # the offset of an end is that of the next record: markers of transactions have offsets, too
            if offset + (message.err == 0) >= self._ends[number]:
                self._ends[number] = 0
                self.missing -= 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _leave(self, place: cython.longlong) -> cython.int:
        """Note that the row at a place is not the newest of its key, if there is one."""
        if cython.compiled and place >= 0:
            bits: bytearray = self._gone[place >> _BITS]
            row: cython.longlong = place & _ROW
            at: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(bits))
            at[row >> 3] |= 1 << (row & 7)
        return 0


def _address(function: str) -> int:
    return function_address("confluent_kafka", "librdkafka", function)
