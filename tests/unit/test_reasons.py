"""Reasons for failures are in words: no class names, no values of rows, no secrets."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tailrace.schemas.config.model import Warehouse
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.schemas.reasons import reason, without_classes
from tailrace.sinks.iceberg.catalog import properties
from tailrace.spark_jobs.causes import cause, job_failed
from tailrace.spark_jobs.jobs.jvm import recorded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("java.net.ConnectException: Connection refused", "Connection refused"),
        ("org.postgresql.util.PSQLException: FATAL: no such role", "FATAL: no such role"),
        ("NewConnectionError(<urllib3.HTTPConnection object at 0x7f00>: [Errno 111] no)", "([Errno 111] no)"),
        ("No suitable driver found for jdbc:foo:bar", "No suitable driver found for jdbc:foo:bar"),
        ("table views.Orders is gone", "table views.Orders is gone"),
        ("java.util.concurrent.ExecutionException: java.io.IOException: disk full", "disk full"),
        ("a\n\tb", "a b"),
        ("requests.exceptions.ConnectTimeout: no answer", "no answer"),
        ("urllib3.ReadTimeout", ""),
        ("Timeout: no answer from socketTimeout", "Timeout: no answer from socketTimeout"),
        ("table views.ReadTimeout is gone", "table views.ReadTimeout is gone"),
        ("Exception: disk full", "disk full"),
        ("a: java.util.Map$Entry: b", "a: b"),
        ("com.example.FooException$Bar$1: b", "b"),
        ("org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.fs.SomeException): denied", "denied"),
        ("(psycopg.errors.UndefinedTable) no relation", "no relation"),
        ('KafkaError{code=_FAIL,val=-196,str="no broker"}', "no broker"),
        ("java.net.UnknownHostException: db", 'unknown host "db"'),
        ("a: java.net.UnknownHostException: db.example: Name or service not known", 'a: unknown host "db.example"'),
        ("java.nio.file.NoSuchFileException: /a/b", 'no such file: "/a/b"'),
        ("java.nio.file.AccessDeniedException: /a/b", 'no permission for "/a/b"'),
        ("java.util.concurrent.TimeoutException", "no answer in time"),
        ("java.util.concurrent.TimeoutException: after 5 s", "after 5 s"),
        ("java.lang.ClassNotFoundException: org.a.fs.S3A$X", 'package "org.a.fs" is not on the class path'),
        ("java.lang.NoClassDefFoundError: org/a/fs/S3A", 'package "org.a.fs" is not on the class path'),
        ("E: Class org.a.fs.S3A not found", 'E: package "org.a.fs" is not on the class path'),
    ],
)
def test_class_names_are_left_out(text: str, expected: str) -> None:
    assert without_classes(text) == expected


def test_the_words_of_the_operating_system_come_first() -> None:
    system = FileNotFoundError(2, "No such file or directory", "/nonexistent/file")
    outer = RuntimeError("wrapped")
    outer.__cause__ = system
    assert reason(outer) == 'No such file or directory: "/nonexistent/file"'
    assert reason(ValueError()) == "No reason given"


class Thrown:
    """A Throwable as py4j presents it; Spark's own have a condition."""

    def __init__(self, name: str, message: str, inner: Thrown | None = None, condition: str | None = None) -> None:
        self.name, self.message, self.inner = name, message, inner
        if condition is not None:
            self.getCondition = lambda: condition

    def getClass(self) -> Any:
        return self

    def getName(self) -> str:
        return self.name

    def getMessage(self) -> str:
        return self.message

    def getCause(self) -> Thrown | None:
        return self.inner

    def getStackTrace(self) -> list[str]:
        return ["org.apache.avro.Schema$RecordSchema.setFields(Schema.java:928)", "..."]


def failed(thrown: Thrown) -> Exception:
    error = RuntimeError("An error occurred while calling o1.sql")
    error.java_exception = thrown  # type: ignore[attr-defined]
    return error


def test_the_innermost_cause_without_values_of_rows_is_named() -> None:
    inner = Thrown("java.net.ConnectException", "Connection refused")
    outer = Thrown("org.apache.iceberg.jdbc.UncheckedSQLException", "Failed to initialize", inner)
    assert cause(failed(outer)) == "Connection refused"
    outer.inner = Thrown("java.net.UnknownHostException", "db")
    assert cause(failed(outer)) == 'unknown host "db"'
    value = Thrown("org.apache.spark.SparkNumberFormatException", "The value 'secret' of", None, "CAST_INVALID_INPUT")
    stage = Thrown("org.apache.spark.SparkException", "Job aborted: value 'secret'", value)
    assert cause(failed(stage)) == "Spark reports CAST_INVALID_INPUT"
    assert (
        cause(failed(Thrown("org.apache.avro.AvroRuntimeException", "secret")))
        == "AvroRuntimeException in org.apache.avro.Schema$RecordSchema.setFields(Schema.java:928);"
        " its message is not shown, as it may contain row values"
    )
    told = str(job_failed(failed(stage)))
    assert "secret" not in told
    assert "Exception" not in told


def test_our_own_error_in_a_python_task_is_restored() -> None:
    """Our own error comes back from a worker as the text of a traceback."""
    ours = SinkError("TR-531", 'OpenSearch refuses a document of index "x"', detail="index: 400.", hint="See its log.")
    text = f"Traceback (most recent call last):\n  File worker.py\nschemas.errors.SinkError: {ours}\n"
    python = Thrown("org.apache.spark.api.python.PythonException", text)
    found = job_failed(failed(Thrown("org.apache.spark.SparkException", f"Job aborted {text}", python)))
    assert (found.code, found.message, found.detail, found.hint) == (ours.code, ours.message, ours.detail, ours.hint)
    assert type(found) is SinkError


def test_an_error_of_a_task_keeps_the_exit_code_of_its_code() -> None:
    refused = ConfigError("TR-533", 'column "tags" has type map, which OpenSearch does not support')
    python = Thrown("org.apache.spark.api.python.PythonException", f"tailrace.schemas.errors.ConfigError: {refused}\n")
    assert job_failed(failed(python)).exit_code == 3
    unknown = Thrown("org.apache.spark.api.python.PythonException", "ERROR  TR-999  of a later version\n")
    assert (job_failed(failed(unknown)).code, job_failed(failed(unknown)).exit_code) == ("TR-999", 5)


def test_an_unexpected_python_error_is_named_by_its_place_only() -> None:
    assert cause(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))) == "no answer"
    try:
        raise KeyError("secret")
    except KeyError as error:
        told = cause(error)
    assert "secret" not in told
    assert "test_reasons.py, line" in told


def test_jvm_output_becomes_a_record_or_is_dropped() -> None:
    for noise in (
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        'Setting default log level to "WARN".\n',
        "\tat org.apache.spark.Thing.run(Thing.scala:12)\n",
        "\n",
    ):
        assert recorded(noise) is None
    line = '{"event": "Task 0 failed: java.io.IOException: disk full", "logger": "TaskSetManager", "level": "error"}\n'
    assert recorded(line) == {"event": "Task 0 failed: disk full", "logger": "TaskSetManager", "level": "error"}
    found = recorded("java.lang.OutOfMemoryError: Java heap space\n")
    assert found == {"event": "JVM printed", "level": "warning", "text": "Java heap space"}


def test_a_catalog_is_opened_as_its_uri_says() -> None:
    uri = "jdbc:postgresql://me:s3%40cret@db:5433/cat?user=me&password=hunter2&ApplicationName=x"
    warehouse = Warehouse(uri=uri, location="/x")
    expected = "postgresql+psycopg://me:s3%40cret@db:5433/cat?user=me&password=hunter2"
    assert properties(warehouse)["uri"] == expected
    sqlite = Warehouse(uri="jdbc:sqlite:file:/a/c.db?x=1", location="/x")
    assert properties(sqlite) == {"type": "sql", "uri": "sqlite:////a/c.db", "warehouse": "/x"}
