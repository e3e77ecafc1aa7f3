"""librdkafka's log lines: readable, throttled with a count, and none for short failures."""

from __future__ import annotations

import logging

from confluent_kafka import Producer

from tailrace.schemas.config.model import Kafka
from tailrace.sinks.kafka.client_log import LOGGER, Throttle
from tailrace.sinks.kafka.options import client_options, java_options


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def said(throttle: Throttle, kind: str = "FAIL") -> int:
    """Return the number of lines that a logged line represents, 0 if it is suppressed."""
    record = logging.LogRecord(
        "librdkafka", logging.ERROR, "", 0, "%s [%s] %s", (kind, "rdkafka#producer-1", "refused"), None
    )
    if not throttle.filter(record):
        return 0
    assert record.getMessage() == "Kafka client: refused"
    values = vars(record)
    assert (values["kind"], values["client"]) == (kind, "rdkafka#producer-1")
    return int(values["lines"])


def test_a_connection_that_fails_for_a_moment_is_not_logged() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    assert [said(throttle) for _ in range(50)] == [0] * 50
    clock.now += 60
    assert said(throttle) == 0


def test_a_repeated_line_is_logged_every_ten_seconds_with_a_count() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    lines = []
    for _ in range(300):
        lines.append(said(throttle))
        clock.now += 0.125
    assert [count for count in lines if count] == [17, 80, 80, 80]
    # a line of another kind is logged at once
    assert said(throttle, "CONFWARN") == 1
    assert said(throttle, "CONFWARN") == 0


def test_records_of_another_form_pass_unchanged() -> None:
    record = logging.LogRecord("librdkafka", logging.ERROR, "", 0, "plain", None, None)
    assert Throttle().filter(record)
    assert record.getMessage() == "plain"


def test_librdkafka_gets_the_logger_and_java_does_not() -> None:
    kafka = Kafka(bootstrap="127.0.0.1:1")
    assert client_options(kafka)["logger"] is LOGGER
    Producer(client_options(kafka)).flush(0)
    assert "logger" not in java_options(kafka)
