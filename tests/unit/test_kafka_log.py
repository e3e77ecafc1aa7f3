"""librdkafka's log lines: readable, throttled with a count, and none for short failures."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from confluent_kafka import Producer

from tailrace.cdc.daemon import log as daemon_log
from tailrace.schemas.config.model import Kafka
from tailrace.sinks.kafka.client_log import LOGGER, Throttle
from tailrace.sinks.kafka.options import client_options, java_options
from tailrace.spark_jobs import log as jobs_log


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


@pytest.fixture
def _logging_restored() -> Iterator[None]:
    """Restore what a program's log configuration sets in this process."""
    root, names = logging.getLogger(), ("py4j", "opensearch")
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in names:
        logging.getLogger(name).setLevel(levels[name])


def _configure_daemon() -> None:
    # capsys replaces the stream that is the default
    daemon_log.configure(sys.stderr)


@pytest.mark.usefixtures("_logging_restored")
@pytest.mark.parametrize("configure", [_configure_daemon, jobs_log.configure])
def test_the_count_of_a_broker_s_failures_is_in_the_log_of_daemon_and_jobs(
    configure: Callable[[], None], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """A real client whose broker is down logs through its own throttle, whose clock the test advances."""
    failures = []

    def count(record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple) and record.args[0] == "FAIL":
            failures.append(record)
        return True

    clock, logger = Clock(), logging.getLogger("test_kafka_log")
    for each in (count, Throttle(clock)):
        logger.addFilter(each)
    request.addfinalizer(lambda: logger.filters.clear())
    configure()
    options = client_options(Kafka(bootstrap="127.0.0.1:1")) | {"reconnect.backoff.max.ms": 100}
    producer = Producer(options | {"logger": logger})

    def logged(more: int) -> list[dict[str, Any]]:
        """Return the program's log after `more` failures of the client."""
        wanted, deadline = len(failures) + more, time.monotonic() + 60
        while len(failures) < wanted:
            assert time.monotonic() < deadline
            producer.poll(0.05)
        return [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert logged(2) == []
    clock.now += 3
    (line,) = logged(1)
    assert (line["kind"], line["level"]) == ("FAIL", "error")
    assert line["client"].startswith("rdkafka#producer-")
    assert "Connection refused" in line["event"]
    assert 3 <= line["lines"] <= len(failures)
