"""librdkafka's pause of partitions, which confluent-kafka has for consumers only.

While a partition's records wait behind a request that nobody answers, librdkafka asks its socket without a break, for
their time to linger has passed: a whole core for a broker that is frozen. Of paused partitions nothing is sent, so it
sleeps; answers to what is on its way come in as ever.
https://docs.confluent.io/platform/current/clients/librdkafka/html/rdkafka_8h.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tailrace.schemas.encode.shared_library import function_address
from tailrace.sinks.kafka.direct import is_known

_NAMES = (
    "rd_kafka_pause_partitions",
    "rd_kafka_resume_partitions",
    "rd_kafka_topic_partition_list_new",
    "rd_kafka_topic_partition_list_add",
    "rd_kafka_topic_partition_list_destroy",
)
_ADDRESSES = [function_address("confluent_kafka", "librdkafka", name) for name in _NAMES]
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_KINDS = (
    ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER),
    ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER),
    ctypes.CFUNCTYPE(_POINTER, _INT),
    ctypes.CFUNCTYPE(_POINTER, _POINTER, ctypes.c_char_p, ctypes.c_int32),
    ctypes.CFUNCTYPE(None, _POINTER),
)


@contextmanager
def paused(producer: Producer, partitions: Iterable[tuple[str, int]]) -> Iterator[None]:
    """Have nothing sent to these partitions; nothing is done where librdkafka's functions are not to be had."""
    if not (all(_ADDRESSES) and is_known(producer)):
        yield
        return
    pause, resume, new, add, destroy = (kind(address) for kind, address in zip(_KINDS, _ADDRESSES, strict=True))
    # behind PyObject_HEAD, as in direct.pxd
    handle = _POINTER.from_address(id(producer) + 2 * ctypes.sizeof(_POINTER)).value
    listed = new(0)
    try:
        for topic, partition in partitions:
            add(listed, topic.encode(), partition)
        pause(handle, listed)
        try:
            yield
        finally:
            resume(handle, listed)
    finally:
        destroy(listed)
