"""Explain why a Spark job failed, from the JVM's chain of causes or a Python task's traceback.

Only messages that cannot contain row values are shown: those about file systems, networks, catalogs and Kafka. Of
other Spark errors, only the name of the error condition is shown.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException

from tailrace.schemas.config.secret import without_remembered
from tailrace.schemas.error_codes import CODES
from tailrace.schemas.errors import SinkError, TailraceError
from tailrace.schemas.reasons import readable, reason

_CHAIN: Final = 20
"""Maximum number of causes to inspect: a chain of causes can be circular."""

_ABOUT_NO_ROWS: Final = (
    *("java.net.", "java.nio.file.", "java.sql.", "java.io.IOException", "java.io.FileNotFoundException"),
    *("java.io.EOFException", "javax.net.", "java.lang.OutOfMemoryError", "java.lang.StackOverflowError"),
    *("java.lang.ClassNotFoundException", "java.lang.NoClassDefFoundError", "java.util.concurrent.TimeoutException"),
    *("org.sqlite.", "org.postgresql.", "com.mysql.", "org.mariadb.", "org.apache.iceberg.", "org.apache.hadoop."),
    *("org.apache.kafka.common.errors.", "software.amazon.awssdk."),
)
"""Classes (by prefix) whose messages contain only names, paths, addresses and offsets."""

_OURS: Final = re.compile(r"ERROR  (TR-\d{3})  ([^\n]*)(?:\nDETAIL ([^\n]*))?(?:\nHINT   ([^\n]*))?")

JVM_GONE: Final = "TR-514"

NO_DRIVER: Final = "No suitable driver"


def job_failed(error: Exception) -> TailraceError:
    """Return our error for a Spark job that failed with `error`, an exception of another library."""
    if is_jvm_gone(error):
        return _gone()
    try:
        return _from_a_task(error) or SinkError(
            "TR-527",
            f"a Spark job failed: {cause(error)}",
            detail="The recorded cut of a view covers completed work only; the next batch continues from it.",
            hint="TAILRACE_TRACE=1 tailrace views rebuild VIEW --no-swap  # prints the complete error, row values"
            " included; `views follow` may keep running",
        )
    except Exception:
        # The exception is an object in the JVM, which has ended in the meantime.
        return _gone()


def _gone() -> SinkError:
    return SinkError(
        JVM_GONE,
        "the JVM of the Spark job has ended",
        detail="A signal ended it, or the system ran out of memory. Uncommitted work is repeated at the next start.",
        hint="dmesg | grep -i 'killed process'  # if memory ran out, raise driver_memory under [spark] or [verify]",
    )


def cause(error: Exception) -> str:
    """Return the message of the innermost cause that can be shown, else its condition or its class and place."""
    thrown = list(_thrown(error))
    if not thrown:
        return _in_python(error)
    condition = next((found for found in map(_condition, reversed(thrown)) if found), None)
    for each in reversed(thrown):
        name, message = str(each.getClass().getName()), str(each.getMessage() or "")
        if name.startswith(_ABOUT_NO_ROWS) and (text := readable(f"{name}: {message}")):
            text = f"Kafka: {text}" if name.startswith("org.apache.kafka.") else text
            return f"{text} [{condition}]" if condition else text
    return f"Spark reports {condition}" if condition else _class_and_place(thrown[-1])


def _class_and_place(thrown: Any) -> str:
    """Return the class of an exception and the method that threw it: its message may contain row values."""
    name = str(thrown.getClass().getName()).rpartition(".")[2]
    frame = next(iter(thrown.getStackTrace()), None)
    place = f" in {frame}" if frame is not None else ""
    return f"{name}{place}; its message is not shown, as it may contain row values"


def is_jvm_gone(error: BaseException) -> bool:
    """Whether the JVM has ended or is ending, by `error` or by its state.

    This process can then do no more work.
    """
    from py4j.protocol import Py4JNetworkError
    from pyspark import SparkContext

    if isinstance(error, TailraceError):
        return error.code == JVM_GONE
    context = SparkContext._active_spark_context
    if context is None:
        process = getattr(SparkContext._gateway, "proc", None)
        return isinstance(error, Py4JNetworkError) or (process is not None and process.poll() is not None)
    try:
        # On a signal, the JVM first stops its Spark context: until the JVM ends, jobs fail for that reason alone.
        return bool(context._jsc.sc().isStopped())
    except Exception:
        return True


def _thrown(error: Exception) -> Iterator[Any]:
    """Yield the exceptions thrown in the JVM, from the outermost to the innermost."""
    at = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_CHAIN):
        if at is None:
            return
        yield at
        at = at.getCause()


def _condition(thrown: Any) -> str | None:
    """Return the name of Spark's error condition; None for other errors and legacy conditions."""
    try:
        found = thrown.getCondition()
    except Exception:
        return None
    return None if found is None or str(found).startswith("_LEGACY") else str(found)


def _from_a_task(error: Exception) -> TailraceError | None:
    """Return our own error if a Python task raised one; it arrives as the text of a traceback."""
    texts = [str(each.getMessage() or "") for each in _thrown(error)] or [str(error)]
    found = next((match for match in map(_OURS.search, texts) if match), None)
    if found is None:
        return None
    code, message, detail, hint = (without_remembered(text or "") for text in found.groups())
    entry = CODES.get(code)
    of_class = (entry.error if entry is not None else None) or SinkError
    return of_class(code, message, detail=detail, hint=hint)


def _in_python(error: Exception) -> str:
    if isinstance(error, KafkaException):
        return readable(str(error.args[0].str()))
    if isinstance(error, OSError):
        return reason(error)
    condition = getattr(error, "getCondition", lambda: None)()
    if condition:
        return f"Spark reports {condition}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    place = f" in {Path(ours[-1].filename).name}, line {ours[-1].lineno}" if ours else ""
    return f"an error{place}; its text is not shown, as it may contain row values"
