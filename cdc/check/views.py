"""Check what `tailrace views follow` needs: packages, JDK, connectors, targets, and each view's declaration."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any, Final

import orjson

from tailrace.cdc.check.finding import Findings, Severity
from tailrace.cdc.launch.jars import are_fetched
from tailrace.cdc.launch.java import SPARK, find_java
from tailrace.cdc.launch.spark_job import package_folder, plain_job
from tailrace.cdc.operations.views import refuse_without_key
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError
from tailrace.sinks.kafka.options import java_options
from tailrace.sinks.read.targets import TARGETS

_JOB_S: Final = 60


def check_views(config: Config, arguments: list[str], findings: Findings, *, kafka: bool) -> None:
    """Report what stops `views follow` or parks a view. `arguments` name the configuration for a job.

    `kafka`: the brokers answer, so that the columns of captured tables are known.
    """
    if not config.views:
        return
    with findings.probing("views"):
        package_folder("pyspark")
    with findings.probing("views"):
        find_java("Spark", SPARK)
        if not are_fetched("spark"):
            findings.advise("TR-923", Severity.NOTE, "views", "The jar cache of this host lacks Spark's connectors.")
    with findings.probing("views"):
        java_options(config.kafka)
    for name in sorted({view.target for view in config.views.values()}):
        with findings.probing("views"):
            if TARGETS[name].configured(config):
                TARGETS[name].check(config)
    if kafka:
        with findings.probing("views"):
            refuse_without_key(config, config.views)
    with findings.probing("views"):
        for error in _declarations(arguments):
            findings.add("views", error)


def _declarations(arguments: list[str]) -> Iterator[TailraceError]:
    """Yield the error of each view that cannot be declared, by a job, which has the parser of queries."""
    job = plain_job("check", arguments)
    done = subprocess.run(job.command, env=job.environment, capture_output=True, timeout=_JOB_S, check=False)
    found: list[dict[str, Any]] = orjson.loads(done.stdout or b"[]")
    for each in found:
        yield TailraceError(each["code"], each["message"], detail=each["detail"], hint=each["hint"])
