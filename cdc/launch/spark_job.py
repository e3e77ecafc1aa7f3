"""Start a Spark job as a separate process: the daemon and the command line never load Spark.

The job is a module; spark-submit can run its file, too. Here Python starts first and launches the JVM. Under
spark-submit it is the reverse, and SIGTERM would end the JVM in mid-batch. The connectors come from the jar cache.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.cdc.launch.class_archive import archive_options
from tailrace.cdc.launch.jars import jars
from tailrace.cdc.launch.java import SPARK, find_java
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import ConfigError

_COLLECTOR: Final = "-XX:+UseParallelGC"
"""The cheapest collector for batches."""

_SMALL_COLLECTOR: Final = "-XX:+UseSerialGC"
"""The collector with the least memory beside the heap."""

LOCAL_FILES: Final = ("spark.hadoop.fs.file.impl", "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem")
"""The setting, and its value, by which Spark writes local files without commands.

Hadoop's own class starts five processes for each new file, to set its rights: dozens in a commit to a local table.

https://issues.apache.org/jira/browse/HADOOP-13223
"""

_FEW_ARENAS: Final = {"MALLOC_ARENA_MAX": "2"}
"""glibc has up to eight arenas a core, and returns little of them."""


@dataclass(frozen=True, slots=True)
class Job:
    """A command line and the environment that it needs."""

    command: tuple[str, ...]
    environment: dict[str, str]


def job(config: Config, name: str, arguments: Sequence[str]) -> Job:
    """Return the job that runs ``spark_jobs/jobs/{name}.py``. ConfigError names a missing package or JDK.

    The job `verify` runs beside all that it compares: its heap is `verify.driver_memory`, and it saves memory elsewhere
    at the price of time.
    """
    spark, is_small = config.spark, name == "verify"
    home = package_folder("pyspark")
    java = find_java("Spark", SPARK)
    connectors = jars("spark")
    java_options = [
        f"-Dlog4j2.configurationFile={package_folder('tailrace') / 'spark_jobs' / 'log4j2.properties'}",
        *(("-Dtailrace.exceptions=true",) if os.environ.get("TAILRACE_TRACE") else ()),
        *collector(config, _SMALL_COLLECTOR if is_small else _COLLECTOR),
        *archive_options("spark", java, [home / "jars", *connectors], write=name == "rebuild"),
    ]
    # [spark.conf] is not included: it may contain passwords, so the job passes it on in a file.
    submit = (
        *("--master", spark.master),
        *("--driver-memory", config.verify.driver_memory if is_small else spark.driver_memory),
        *class_path(spark.master, connectors, spark.conf),
        "pyspark-shell",
    )
    return Job(
        _command(name, arguments),
        {
            **(_FEW_ARENAS if is_small else {}),
            **os.environ,
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(home),
            "PYSPARK_SUBMIT_ARGS": shlex.join(submit),
            # in addition to spark.driver.extraJavaOptions, which belong to the user
            "SPARK_SUBMIT_OPTS": " ".join([os.environ.get("SPARK_SUBMIT_OPTS", ""), *map(shlex.quote, java_options)]),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "PYTHONPATH": _path(),
        },
    )


def start(job: Job, **options: Any) -> subprocess.Popen[bytes]:
    """Start a job that ends when this process ends, even by a crash: it watches a pipe to this process."""
    watched, ours = os.pipe()
    try:
        environment = {**job.environment, "TAILRACE_PARENT": str(watched)}
        process = subprocess.Popen(job.command, env=environment, pass_fds=(watched,), **options)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(watched)
    return process  # `ours` stays open as long as this process runs


def plain_job(name: str, arguments: Sequence[str]) -> Job:
    """Return a job that needs no Spark. Raises ConfigError if sqlglot or tailrace is not installed."""
    package_folder("sqlglot")
    return Job(_command(name, arguments), {**os.environ, "PYTHONPATH": _path()})


def _command(name: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a job, with -P.

    Without -P, the user's working directory would be first on the path, with files such as `schemas.py`, `pyspark.py`.
    """
    return (sys.executable, "-P", "-m", f"tailrace.spark_jobs.jobs.{name}", *arguments)


def _path() -> str:
    """Return the PYTHONPATH by which Spark's workers find our code, installed or in a checkout."""
    return os.pathsep.join(filter(None, [str(package_folder("tailrace").parent), os.environ.get("PYTHONPATH", "")]))


def collector(config: Config, option: str = _COLLECTOR) -> tuple[str, ...]:
    """Return the option for a garbage collector, or none if the user has set one: two would be an error."""
    chosen = [config.spark.conf.get("spark.driver.extraJavaOptions", "")]
    chosen += [os.environ.get(name, "") for name in ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")]
    return () if re.search(r"-XX:\+Use\w+GC\b", " ".join(chosen)) else (option,)


def class_path(master: str, connectors: Sequence[Path], conf: Mapping[str, str]) -> tuple[str, ...]:
    """Return the spark-submit options for the connectors, and in local mode for the class that writes local files.

    In local mode, the class path is enough; `--jars` would copy the files to the executor in the same process. The
    user's `extraClassPath`, for example a driver for the catalog, is added, because this option overrides the setting.
    """
    files = [str(path) for path in connectors]
    if not master.startswith("local") or master.startswith("local-cluster"):
        return ("--jars", ",".join(files))
    more = conf.get("spark.driver.extraClassPath")
    path = os.pathsep.join([*files, *([more] if more else [])])
    return ("--driver-class-path", path, "--conf", "=".join(LOCAL_FILES))


def package_folder(name: str) -> Path:
    """Find a package that jobs need, without importing it. ConfigError (TR-110) if it is not installed."""
    spec = importlib.util.find_spec(name)
    for location in (spec.submodule_search_locations or []) if spec else []:
        return Path(location)
    raise ConfigError(
        "TR-110",
        f'"{name}" is not installed',
        detail="Spark jobs, which maintain the views, need it.",
        hint="pip install 'tailrace[views]'",
    )
