"""The C libraries that the wheels bring along are found: where they are not, all goes on, but slower and unnoticed."""

from __future__ import annotations

import psycopg_binary
import pytest
from confluent_kafka import Producer

from tailrace.schemas.encode.shared_library import function_address
from tailrace.sinks.kafka import direct


@pytest.mark.parametrize(
    ("package", "library", "name"),
    [("psycopg_binary", "libpq", "PQgetCopyData"), ("confluent_kafka", "librdkafka", "rd_kafka_producev")],
)
def test_function_of_a_loaded_library(package: str, library: str, name: str) -> None:
    assert psycopg_binary.__version__
    assert function_address(package, library, name) > 0


@pytest.mark.parametrize(
    ("package", "library", "name"),
    [
        ("no_such_package", "libpq", "PQgetCopyData"),
        ("psycopg_binary", "libother", "PQgetCopyData"),
        ("psycopg_binary", "libpq", "PQnoSuchFunction"),
    ],
)
def test_what_is_not_there(package: str, library: str, name: str) -> None:
    assert function_address(package, library, name) == 0


def test_librdkafka_takes_records_directly() -> None:
    producer = Producer({"log_level": 0})
    assert direct.Direct(producer).ready is (not direct.__file__.endswith(".py"))
    assert not direct.Direct(object()).ready


def test_closed_twice() -> None:
    made = direct.Direct(Producer({"log_level": 0}))
    made.close()
    made.close()
    assert not made.ready
