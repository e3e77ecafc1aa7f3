"""The Spark image: unprivileged, without a compiler, and startable by Spark on Kubernetes."""

from __future__ import annotations

from typing import Any

from testcontainers.core.docker_client import DockerClient

_JOB = "local:///opt/tailrace/lib/python3.11/site-packages/tailrace/spark_jobs/jobs/rebuild.py"


def test_spark_on_kubernetes_can_start_the_image(engine: None) -> None:
    client = DockerClient().client
    image = client.images.get("tailrace-local/tailrace-spark")
    assert image.attrs["Config"]["User"] == "10001"
    options: dict[str, Any] = {"remove": True, "read_only": True, "tmpfs": {"/tmp": ""}, "stderr": True}
    client.containers.run(image, ["sh", "-c", "! command -v cc gcc c++ g++ clang cython pip"], **options)
    bind = {"SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}
    driver = ["driver", "--class", "org.apache.spark.deploy.PythonRunner", _JOB, "--help"]
    assert b"Rebuild views from offset 0" in client.containers.run(image, driver, environment=bind, **options)
    executor = {
        "SPARK_JAVA_OPT_0": "-Dspark.driver.port=1",
        "SPARK_JAVA_OPT_1": "-XX:+UseSerialGC",
        "SPARK_EXECUTOR_MEMORY": "64m",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:1",
    }
    options |= {"stdout": True}
    command = ["sh", "-c", "/opt/tailrace/conf/entrypoint executor || true"]
    said = client.containers.run(image, command, environment=executor, **options)
    client.close()
    assert b"Failed to connect to /127.0.0.1:1" in said
