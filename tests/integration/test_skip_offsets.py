"""Offsets that a topic which is created again must not use."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.model import Kafka
from tailrace.sinks.kafka.offsets import topic_bounds
from tailrace.sinks.kafka.read_topic import messages_to
from tailrace.sinks.kafka.skip_offsets import Fill, skip_offsets


def test_no_record_is_visible_before_the_offsets_that_are_skipped(servers: Servers, prefix: str) -> None:
    kafka = Kafka(bootstrap=servers.bootstrap, prefix=prefix)
    options: dict[str, str | int | float | bool] = {"bootstrap.servers": servers.bootstrap}
    empty, used = f"{prefix}.empty", f"{prefix}.used"
    topics = [NewTopic(name, 2, 1, config={"cleanup.policy": "compact"}) for name in (empty, used)]
    admin = AdminClient(options)
    for future in admin.create_topics(topics).values():
        future.result()
    producer = Producer(options)
    producer.produce(used, b"v", b"k", 1)
    producer.flush()
    ends = {empty: [120_001, 0], used: [5, 5]}
    fills: list[Fill] = []

    def seen(fill: Fill) -> bool:
        fills.append(fill)
        return len(fills) != 2

    assert skip_offsets(kafka, ends, f"tailrace-{prefix}", seen) == set(), "it was stopped"
    assert fills == [Fill(empty, 0, 120_001), Fill(empty, 50_000, 120_001)]
    rest = 120_001 - topic_bounds(kafka, ends).topics[empty][0].end
    assert 69_900 < rest <= 70_001
    fills.append(Fill("", 0, 0))
    assert skip_offsets(kafka, ends, f"tailrace-{prefix}", seen) == {empty}
    assert fills[3:] == [Fill(empty, 0, rest), Fill(empty, 50_000, rest)]
    for _ in range(2):  # a later attempt finds only aborted records, and nothing to do
        assert skip_offsets(kafka, ends, f"tailrace-{prefix}") == {empty}
        found = topic_bounds(kafka, ends).topics
        assert [each.first for each in found[empty]] == [0, 0]
        assert 120_001 <= found[empty][0].end < 120_100
        assert [each.end for each in found[used]] == [0, 1], "another program may need its record"
    assert found[empty][1].end == 0
    assert list(messages_to(options, empty, [each.end for each in found[empty]])) == []
    higher = {empty: [150_000, 7]}
    assert skip_offsets(kafka, higher, f"tailrace-{prefix}") == {empty}, "an attempt that was ended half done"
    reached = topic_bounds(kafka, higher).topics[empty]
    assert all(each.end >= end for each, end in zip(reached, higher[empty], strict=True))
