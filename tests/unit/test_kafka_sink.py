"""The producer of a failed session is freed with it, even if its last records are unacknowledged."""

from __future__ import annotations

import gc
import weakref

import pytest

from tailrace.schemas.config.model import Kafka
from tailrace.schemas.errors import SinkError
from tailrace.sinks.kafka.producer import KafkaSink


def test_an_abandoned_producer_is_freed() -> None:
    sink = KafkaSink(Kafka(bootstrap="127.0.0.1:1", prefix="x"), None, "progress")
    sink.outbox.produce("t", 0, (b"key", b"value", []), sink.delivered)
    sink.abandon()
    left = weakref.ref(sink)
    del sink
    gc.collect()
    assert left() is None


def test_a_record_too_large_for_the_producer_is_not_a_row_too_large() -> None:
    """TR-304 is about a row of a table; this record may be the pipeline's own."""
    sink = KafkaSink(Kafka(bootstrap="127.0.0.1:1", prefix="x", max_message_bytes=1_048_576), None, "progress")
    with pytest.raises(SinkError, match=r'TR-307.*topic "t".*\n.*2000000 bytes'):
        sink.outbox.produce("t", 0, (b"key", b"v" * 2_000_000, []), sink.delivered)
    sink.abandon()
