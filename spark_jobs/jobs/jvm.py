"""Start the JVM so that its output goes into our log, in the log's format and without startup noise.

Under spark-submit, the JVM has started this process, and its output is not redirected.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

import orjson
from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from tailrace.schemas.reasons import readable
from tailrace.spark_jobs.jobs.submit import submit_files
from tailrace.spark_jobs.log import line, tracing

_NOISE: Final = re.compile(
    r"^(WARNING: (Using incubator modules|(A|Use|Please|sun|An) )|Setting default log level|To adjust logging level|"
    r"Using Spark's|Picked up |OpenJDK 64-Bit Server VM warning|\s*$|\s+at |\s+\.\.\. \d+ more)"
)
"""Messages of each start, and Java stack traces of earlier messages."""


def start_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM of this process with these Spark settings, unless it is running."""
    if "PYSPARK_GATEWAY_PORT" in os.environ or SparkContext._gateway is not None:
        return
    given = os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    read, write = os.pipe()
    try:
        with submit_files(settings) as files:
            os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(files)} {given}"
            gateway = launch_gateway(None, {"stdout": write, "stderr": write})  # type: ignore[no-untyped-call]
    finally:
        os.environ["PYSPARK_SUBMIT_ARGS"] = given
        os.close(write)
        threading.Thread(target=_pass_on, args=(read,), name="jvm", daemon=True).start()
    SparkContext._ensure_initialized(gateway=gateway)


def _pass_on(descriptor: int) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as lines:
        for text in lines:
            if tracing():
                print(text, end="", file=sys.stderr, flush=True)
            elif (record := recorded(text)) is not None:
                line(**record)


def recorded(text: str) -> dict[str, Any] | None:
    """Return the log record of a line of JVM output; None for noise.

    `log4j2.properties` configures JSON lines.
    """
    if _NOISE.match(text):
        return None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, dict) and "event" in found:
        return {**found, "event": readable(str(found["event"]))}
    said = readable(text)
    return {"event": "JVM printed", "level": "warning", "text": said} if said else None
