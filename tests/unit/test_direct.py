"""The C libraries in the wheels are found; without them all works, but slower, and unnoticed."""

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
def test_a_function_of_a_loaded_library_is_found(package: str, library: str, name: str) -> None:
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
def test_a_missing_package_library_or_function_has_address_0(package: str, library: str, name: str) -> None:
    assert function_address(package, library, name) == 0


def test_librdkafka_takes_records_directly_if_the_module_is_compiled() -> None:
    producer = Producer({"log_level": 0})
    assert direct.Direct(producer).ready is (not direct.__file__.endswith(".py"))
    assert not direct.Direct(object()).ready


def test_closing_twice_is_harmless() -> None:
    made = direct.Direct(Producer({"log_level": 0}))
    made.close()
    made.close()
    assert not made.ready
