"""compose.yaml, kubernetes.yaml and kubernetes-views.yaml: their programs accept them, and they match our images."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import psycopg
import pytest
import yaml
from docker.utils.build import exclude_paths  # type: ignore[import-not-found]

from tailrace.cdc.daemon.http import serving
from tailrace.cdc.dev.process import free_ports
from tailrace.cdc.health.health import Health
from tailrace.schemas.config.file import read
from tailrace.schemas.config.model import Health as HealthOptions
from tailrace.spark_jobs.health.health import JobHealth
from tailrace.spark_jobs.health.http import serving as serving_views
from tests.support.daemon import ROOT

_DOCKER = ROOT / "docker"
_COMPOSE = _DOCKER / "compose.yaml"
_DOCKERFILE = (_DOCKER / "Dockerfile").read_text()
_KUBERNETES = list(yaml.safe_load_all((_DOCKER / "kubernetes.yaml").read_text()))
_KUBERNETES_VIEWS = list(yaml.safe_load_all((_DOCKER / "kubernetes-views.yaml").read_text()))


def _compose() -> dict[str, Any]:
    """Return compose.yaml as `docker compose` reads it, with variables replaced."""
    program = Path(sys.executable).with_name("docker-compose")
    done = subprocess.run(
        [program, "--file", _COMPOSE, "config"], capture_output=True, text=True, check=False, env={"HOME": "/nowhere"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


def test_docker_compose_accepts_the_file_and_publishes_on_loopback_only() -> None:
    compose = _compose()
    services = compose["services"]
    brokers = {"kafka1", "kafka2", "kafka3"}
    spark = {"spark-master", "spark-worker1", "spark-worker2", "views"}
    assert set(services) == {"postgres", "opensearch", "registry", "tailrace"} | brokers | spark
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}
    assert len({port["published"] for port in published}) == len(published) == 9
    for service in ("tailrace", *spark):
        assert services[service]["read_only"]
        assert services[service]["cap_drop"] == ["ALL"]

    config = read(Path(compose["configs"]["tailrace"]["file"]), environ={}).config
    assert set(config.kafka.bootstrap.split(",")) == {f"{name}:9092" for name in brokers}
    assert {view.target for view in config.views.values()} == {"warehouse", "search"}
    assert config.spark.master in services["spark-worker1"]["command"]
    assert _variables(services["tailrace"]) | _variables(services["views"]) == {"PGPASSWORD"}
    assert b"PGPASSWORD" in {default.envvar for default in psycopg.pq.Conninfo.get_defaults()}
    for broker in brokers:
        protocols = re.findall(r"(\w+):", services[broker]["environment"]["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"])
        listeners = re.findall(r"(\w+)://", services[broker]["environment"]["KAFKA_LISTENERS"])
        assert protocols == listeners


def _variables(service: dict[str, Any]) -> set[str]:
    return set(service.get("environment", {}))


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_accepts_the_manifest(version: str) -> None:
    for resource in (*_KUBERNETES, *_KUBERNETES_VIEWS):
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_manifests_pods_match_the_image_and_the_health_server(tmp_path: Path) -> None:
    secret, deployment, _, service = _KUBERNETES
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert f"USER {pod['securityContext']['runAsUser']}\n" in _DOCKERFILE
    (home,) = re.findall(r"^VOLUME (.*)$", _DOCKERFILE, re.MULTILINE)
    assert home in {mount["mountPath"] for mount in container["volumeMounts"]}
    (port,) = container["ports"]
    assert f"TAILRACE__HEALTH__LISTEN=0.0.0.0:{port['containerPort']}" in _DOCKERFILE
    assert service["spec"]["ports"][0]["port"] == port["containerPort"]

    (tmp_path / "tailrace.toml").write_text(secret["stringData"]["tailrace.toml"])
    config = read(tmp_path / "tailrace.toml", environ={}).config
    assert _mebibytes(container["resources"]["requests"]["memory"]) == config.memory.limit / 2**20
    assert _mebibytes(pod["volumes"][1]["emptyDir"]["sizeLimit"]) > config.source.toast_cache_bytes / 2**20

    (free,) = free_ports([None])
    health = HealthOptions(listen=f"127.0.0.1:{free}")
    with serving(config.model_copy(update={"health": health}), Health("slot")):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == port["name"]
            assert _status(f"http://127.0.0.1:{free}{asked['path']}") in (200, 503)


def test_the_manifest_of_the_views_matches_the_image_and_the_job(tmp_path: Path) -> None:
    secret, workload, service = _KUBERNETES_VIEWS
    dockerfile = (_DOCKER / "Dockerfile.spark").read_text()
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert workload["spec"]["replicas"] == 1, "each view has one writer"
    assert f"USER {pod['securityContext']['runAsUser']}\n" in dockerfile
    (port,) = container["ports"]
    assert f"TAILRACE__HEALTH__VIEWS_LISTEN=0.0.0.0:{port['containerPort']}" in dockerfile
    assert f"EXPOSE {port['containerPort']}\n" in dockerfile
    assert service["spec"]["ports"][0]["port"] == port["containerPort"]

    (tmp_path / "tailrace.toml").write_text(secret["stringData"]["tailrace.toml"])
    config = read(tmp_path / "tailrace.toml", environ={}).config
    assert config.views
    assert config.warehouse is not None
    assert config.warehouse.uri.startswith("http"), "a file would be lost with the pod"
    heap = int(config.spark.driver_memory.removesuffix("m"))
    assert heap + 512 <= _mebibytes(container["resources"]["requests"]["memory"])

    (free,) = free_ports([None])
    health = HealthOptions(views_listen=f"127.0.0.1:{free}")
    job = JobHealth()
    with serving_views(config.model_copy(update={"health": health}), job):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == port["name"]
            url = f"http://127.0.0.1:{free}{asked['path']}"
            assert _status(url) == (503 if probe == "readinessProbe" else 200)
        job.begin({})
        assert _status(f"http://127.0.0.1:{free}/readyz") == 200


def _mebibytes(quantity: str) -> int:
    number, unit = int(quantity[:-2]), quantity[-2:]
    return number * {"Mi": 1, "Gi": 1024}[unit]


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_nothing_that_a_run_writes_is_sent_to_the_build_of_the_images(tmp_path: Path) -> None:
    """Otherwise each build after an import would compile everything again."""
    kept = {"tailrace/__init__.py", "cdc/wal/spool.py", "docker/spark/entrypoint", "pyproject.toml"}
    written = {"tailrace/__pycache__/__init__.cpython-311.pyc", "cdc/wal/__pycache__/a.pyc", "cdc/wal/a.so", "cdc/a.c"}
    for name in kept | written | {"tests/a.py"}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = exclude_paths(str(tmp_path), (ROOT / ".dockerignore").read_text().split())
    assert {name for name in found if (tmp_path / name).is_file()} == kept
