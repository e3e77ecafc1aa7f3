"""The producer of a session that has failed goes with it, though nobody has answered for its last records."""

from __future__ import annotations

import gc
import weakref

from schemas.config import Kafka
from sinks.kafka import KafkaSink


def test_an_abandoned_producer_is_free() -> None:
    sink = KafkaSink(Kafka(bootstrap="127.0.0.1:1", prefix="x"), None, "progress")
    sink.outbox.produce("t", 0, (b"key", b"value", []), sink._delivered)
    sink.abandon()
    left = weakref.ref(sink)
    del sink
    gc.collect()
    assert left() is None
