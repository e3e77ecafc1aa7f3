"""One JVM for Spark jobs that run one after the other: each new JVM costs ten seconds of a core before it is fast."""

from __future__ import annotations

import shlex
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.cdc.launch.java import SMALL_SPARK
from tailrace.cdc.launch.spark_job import job
from tailrace.schemas.config.model import Config
from tests.support.daemon import wait_until


@contextmanager
def warm_jvm(config: Config, folder: Path) -> Iterator[dict[str, str]]:
    """Start a JVM and yield the environment with which a job uses it, as a job under spark-submit does.

    Each job has its own Spark context in it, which ends with the job: two jobs must not run at once, and none may be
    killed. The JVM's output is in `folder`, not on the job's terminal.
    """
    # not "rebuild": such a JVM may write a class archive when it ends, which takes a minute on a busy machine
    environment = job(config, "follow", []).environment
    place = folder / "gateway"
    # the options of a session in the job's own JVM; a job passes them in a file
    command = [
        f"{environment['SPARK_HOME']}/bin/spark-submit",
        "--conf",
        f"spark.driver.extraJavaOptions={SMALL_SPARK}",
    ]
    with (
        (folder / "jvm.log").open("wb") as log,
        subprocess.Popen(
            [*command, *shlex.split(environment["PYSPARK_SUBMIT_ARGS"])],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**environment, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(place)},
            start_new_session=True,
        ) as jvm,
    ):
        try:
            wait_until(lambda: place.exists() or jvm.poll() is not None, 120)
            port, length = struct.unpack_from(">ii", written := place.read_bytes())
            secret = written[8 : 8 + length].decode()
            yield {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
            assert jvm.stdin is not None
            jvm.stdin.close()  # it ends at the end of its input
            assert jvm.wait(300) == 0
        finally:
            jvm.kill()
