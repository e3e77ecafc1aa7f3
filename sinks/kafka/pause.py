"""Pause partitions of a producer by librdkafka; confluent-kafka offers this for consumers only.

While a partition's records wait behind an unanswered request and their linger time has passed, librdkafka polls its
socket in a busy loop: a frozen broker costs a whole core. librdkafka sends nothing to paused partitions, so it sleeps;
it still receives the answers to requests in flight.
https://docs.confluent.io/platform/current/clients/librdkafka/html/rdkafka_8h.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from tailrace.schemas.encode.shared_library import function_address
from tailrace.sinks.kafka.known_client import has_handle

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
    """Pause these partitions for the block; do nothing if librdkafka's functions are not available."""
    if not (all(_ADDRESSES) and has_handle(producer)):
        yield
        return
    pause, resume, new, add, destroy = (kind(address) for kind, address in zip(_KINDS, _ADDRESSES, strict=True))
    # the handle follows PyObject_HEAD, as in direct.pxd
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
