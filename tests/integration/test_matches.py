"""The publisher of matches, killed at every step: each match is on the topic once, in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.envelope import POSITION_HEADER
from tailrace.schemas.errors import SinkError, StateError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.matches import Mark, Match, Pages, Publisher
from tests.support.daemon import ROOT
from tests.support.topics import read_raw

_KILLED = """
import os, sys
from tailrace.schemas.config.model import Kafka
from tailrace.sinks.control import matches
from tailrace.sinks.kafka.producer import KafkaSink
from tests.integration.test_matches import END, pages

bootstrap, prefix, point, page, total = sys.argv[1:]
matches.PAGE = int(page)
real, commits = KafkaSink.commit, []

class Dying:
    def __init__(self, producer):
        self.producer = producer

    def __getattr__(self, name):
        return getattr(self.producer, name)

    def commit_transaction(self, timeout):
        self.producer.flush(10)
        os._exit(9)

def commit(self, key, value):
    commits.append(None)
    if len(commits) == 2 and point == "before the commit":
        os._exit(9)
    if len(commits) == 2 and point == "with the progress record sent":
        self.producer = Dying(self.producer)
    real(self, key, value)
    if len(commits) == 2 and point == "behind the commit":
        os._exit(9)

KafkaSink.commit = commit
matches.Publisher(Kafka(bootstrap=bootstrap, prefix=prefix, partitions=3), "alerts").forward(pages(int(total)), END)
"""
_POINTS = ("before the commit", "with the progress record sent", "behind the commit", "never")


END = Position(99, 0, 0)


def matches(total: int) -> list[Match]:
    """Return matches: several queries match each change, and each LSN has several changes."""
    return [
        Match(f"[{query}]", "0:0/64:0", f"[{n % 7}]", Position(n // 20, 100 + n // 4, n % 4), 10_000)
        for n in range(total // 3)
        for query in (1, 10, 2)
    ]


def pages(total: int) -> Pages:
    """Replace the table of matches; tests/spark tests with a real one which matches come after a mark."""
    found = sorted(matches(total), key=lambda match: match.mark)
    return lambda mark, page: [match for match in found if mark is None or match.mark > mark][:page]


def forward_and_die(servers: Servers, prefix: str, point: str, page: int, total: int) -> int:
    command = [sys.executable, "-c", _KILLED, servers.bootstrap, prefix, point, str(page), str(total)]
    return subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode


def test_each_match_is_published_once_whatever_is_killed(servers: Servers, prefix: str, tmp_path: Path) -> None:
    """The topic is compared after all kills; some pages of matches end within a change."""
    codes = [forward_and_die(servers, prefix, point, 17, 60 * (n + 1)) for n, point in enumerate(_POINTS)]
    assert codes == [9, 9, 9, 0]
    topic = Topics(prefix).matches("alerts")
    found = read_raw(servers.bootstrap, topic)
    expected = matches(240)
    assert len(found) == len(expected)
    assert {(m.key(), m.value()) for m in found} == {(m.query.encode(), m.to_json()) for m in expected}
    last: dict[bytes, Position] = {}
    for message in sorted(found, key=lambda m: (m.partition(), m.offset())):
        position = Position.from_bytes(dict(message.headers())[POSITION_HEADER])
        assert str(position) == json.loads(message.value())["position"]
        assert message.key() not in last or last[message.key()] < position
        last[message.key()] = position


def test_a_second_publisher_fences_the_first(servers: Servers, prefix: str) -> None:
    kafka = Kafka(bootstrap=servers.bootstrap, prefix=prefix, partitions=3)
    first, second = Publisher(kafka, "alerts"), Publisher(kafka, "alerts")
    try:
        assert first.forward(pages(30), END) == 30
        assert second.forward(pages(60), END) == 30
        with pytest.raises(SinkError, match="fenced"):
            first.forward(pages(90), END)
        assert first.forward(pages(90), END) == 30
        with pytest.raises(StateError, match="TR-595"):
            second.forward(pages(90), Position(0, 99, 0))
    finally:
        first.close()
        second.close()
    assert len(read_raw(servers.bootstrap, Topics(prefix).matches("alerts"))) == 90


def test_a_match_that_the_topic_lacks_is_added_once(servers: Servers, prefix: str) -> None:
    """Only those before the last forwarded one, and not those that retention may have removed."""
    kafka, topic = Kafka(bootstrap=servers.bootstrap, prefix=prefix, partitions=3), Topics(prefix).matches("alerts")
    lost = [each for n, each in enumerate(matches(90)) if n in (4, 5, 30, 76)]

    def found_pages(total: int) -> Pages:
        every = pages(total)
        return lambda mark, page: [match for match in every(mark, page) if match not in lost]

    first, second = Publisher(kafka, "alerts"), Publisher(kafka, "alerts")
    try:
        assert first.add(matches(60)) == 0, "without a forwarded one, `forward` sends all"
        assert first.forward(found_pages(60), END) == 57
        assert first.add(matches(90)) == 3
        assert second.add(matches(90)) == 0
        found = [json.loads(message.value()) for message in read_raw(servers.bootstrap, topic)]
        assert {each["position"] for each in found if each.get("repaired")} == {str(m.position) for m in lost[:3]}
        sent = sorted((each["position"], each["query"]) for each in found)
        assert sent == sorted((str(match.position), match.query) for match in matches(60))

        begin_later(servers.bootstrap, topic)
        assert len(read_raw(servers.bootstrap, topic)) < 60
        assert second.add(matches(90)) == 0
        assert second.forward(found_pages(90), END) == 29
        assert second.add(matches(90)) == 1
    finally:
        first.close()
        second.close()


def begin_later(bootstrap: str, topic: str) -> None:
    """Remove the first half of each partition, as retention does."""
    ends = {message.partition(): message.offset() for message in read_raw(bootstrap, topic)}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    halves = [TopicPartition(topic, partition, end // 2) for partition, end in ends.items()]
    for future in admin.delete_records(halves).values():
        future.result(10)


def test_marks_sort_as_they_are_written() -> None:
    marks = [match.mark for match in matches(90)]
    assert [Mark.from_json(mark.to_json()) for mark in marks] == marks
