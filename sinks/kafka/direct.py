# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Fast path for row records: call librdkafka's `rd_kafka_producev` directly from C.

confluent-kafka's `produce` parses its arguments and builds a C list of headers for every record, which costs as much as
decoding and encoding a row. It still sends all other records, and all records while `Direct.ready` is false: in
interpreted mode, with another packaging of librdkafka, or with a confluent-kafka version of unknown object layout.
https://docs.confluent.io/platform/current/clients/librdkafka/html/rdkafka_8h.html
"""

from __future__ import annotations

from itertools import count

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.schemas.encode.shared_library import function_address
from tailrace.schemas.envelope import POSITION_HEADER, SNAPSHOT_HEADER
from tailrace.sinks.kafka.known_client import has_handle

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING

POSITION_SIZE = cython.declare(cython.Py_ssize_t, 20)
_POSITION_NAME = cython.declare(bytes, POSITION_HEADER.encode())
_SNAPSHOT_NAME = cython.declare(bytes, SNAPSHOT_HEADER.encode())

# rd_kafka_vtype_t
_END = cython.declare(cython.int, 0)
_RKT = cython.declare(cython.int, 2)
_PARTITION = cython.declare(cython.int, 3)
_VALUE = cython.declare(cython.int, 4)
_KEY = cython.declare(cython.int, 5)
_FLAGS = cython.declare(cython.int, 7)
_HEADER = cython.declare(cython.int, 9)

_numbers = count(1)

_COPY = cython.declare(cython.int, 2)
"""RD_KAFKA_MSG_F_COPY: librdkafka copies the data, so we may reuse our buffers when the call returns."""


@cython.cclass
class Direct:
    """Passes records to the librdkafka of a `Producer`, kept alive until `close`. `number` is unique."""

    def __init__(self, producer: object) -> None:
        self._producer = producer
        self._topics: list[int] = []
        self.number = next(_numbers)
        self.ready = False
        if cython.compiled:
            produce: cython.size_t = _address("rd_kafka_producev")
            new: cython.size_t = _address("rd_kafka_topic_new")
            destroy: cython.size_t = _address("rd_kafka_topic_destroy")
            if produce != 0 and new != 0 and destroy != 0 and has_handle(producer):
                self._producev = cython.cast(Producev, produce)  # noqa: F821
                self._topic_new = cython.cast(TopicNew, new)  # noqa: F821
                self._topic_destroy = cython.cast(TopicDestroy, destroy)  # noqa: F821
                self._rk = cython.cast(cython.pointer[Handle], cython.cast(cython.p_void, producer)).rk  # noqa: F821
                self.ready = True

    @cython.cfunc
    def topic(self, name: bytes) -> cython.size_t:
        """Return librdkafka's handle of a topic, valid until `close`; 0 if there is none.

        Call it once per topic: librdkafka searches through all topics.
        """
        if cython.compiled:
            handle: cython.size_t = cython.cast(
                cython.size_t, self._topic_new(self._rk, PyBytes_AS_STRING(name), cython.NULL)
            )
            if handle != 0:
                self._topics.append(handle)
            return handle
        return 0

    def close(self) -> None:
        """Release the topic handles, as librdkafka requires before the producer ends, and the producer."""
        if cython.compiled:
            handle: cython.size_t
            for handle in self._topics:
                self._topic_destroy(cython.cast(cython.p_void, handle))
        self.ready = False
        self._topics.clear()
        self._producer = None

    @cython.cfunc
    @cython.exceptval(check=False)
    def produce(
        self,
        topic: cython.size_t,
        partition: cython.Py_ssize_t,
        key: cython.p_const_uchar,
        key_size: cython.Py_ssize_t,
        value: cython.p_const_uchar,
        value_size: cython.Py_ssize_t,
        headers: cython.p_const_uchar,
        headers_size: cython.Py_ssize_t,
    ) -> cython.bint:
        """Enqueue a record for `topic` without a delivery report; return False if librdkafka refuses it.

        `headers` holds the value of the position header (20 bytes), then optionally that of the snapshot header. A NULL
        value makes a tombstone.

        Call this only if `ready`. To learn why librdkafka refused, send the record through confluent-kafka's `produce`.
        """
        if cython.compiled:
            if topic == 0:
                return False
            # Kafka has null for an empty key
            if key_size == 0:
                key = cython.NULL
            return not self._producev(
                self._rk,
                _RKT,
                cython.cast(cython.p_void, topic),
                _PARTITION,
                cython.cast(cython.int, partition),
                _FLAGS,
                _COPY,
                _KEY,
                key,
                cython.cast(cython.size_t, key_size),
                _VALUE,
                value,
                cython.cast(cython.size_t, value_size),
                _HEADER,
                PyBytes_AS_STRING(_POSITION_NAME),
                headers,
                cython.cast(cython.Py_ssize_t, POSITION_SIZE),
                _HEADER if headers_size > POSITION_SIZE else _END,
                PyBytes_AS_STRING(_SNAPSHOT_NAME),
                headers + POSITION_SIZE,
                cython.cast(cython.Py_ssize_t, headers_size - POSITION_SIZE),
                _END,
            )
        return False


def _address(function: str) -> int:
    return function_address("confluent_kafka", "librdkafka", function)
