"""The daemon's image: its contents, its health check, and its orderly stop."""

from __future__ import annotations

import json
import signal
import urllib.request

import psycopg
from testcontainers.core.docker_client import DockerClient

from tests.containers.servers import Daemon, Servers
from tests.support.daemon import wait_for_state, wait_until

_LARGEST = 250_000_000
_OFTEN = {"interval": 1_000_000_000, "timeout": 2_000_000_000, "retries": 2}


def test_the_image_is_small_unprivileged_and_without_a_compiler(engine: None) -> None:
    client = DockerClient().client
    image = client.images.get("tailrace-local/tailrace")
    assert image.attrs["Size"] < _LARGEST
    assert image.attrs["Config"]["User"] == "10001"
    said = client.containers.run(image, ["version", "--json"], remove=True, read_only=True)
    assert json.loads(said)["compiled"] is True
    compilers = ["-c", "! command -v cc gcc c++ g++ clang cython pip"]
    client.containers.run(image, compilers, entrypoint="sh", remove=True)
    client.close()


def test_the_image_reports_its_health_and_stops_in_order(servers: Servers, database: str, prefix: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY)")
        with Daemon(servers, database, prefix, healthcheck=_OFTEN) as daemon:
            wait_for_state(daemon.config, connection)
            wait_until(lambda: daemon.health == "healthy", 120)
            wait_until(lambda: _state(daemon) == "streaming")
            container = daemon.container.get_wrapped_container()
            written = container.exec_run(["python3", "-c", "import tempfile; tempfile.TemporaryFile()"])
            assert written.exit_code == 0, written.output

            container.kill(signal.SIGSTOP)
            wait_until(lambda: daemon.health == "unhealthy", 120)
            container.kill(signal.SIGCONT)
            wait_until(lambda: daemon.health == "healthy", 120)

            container.kill(signal.SIGTERM)
            assert container.wait(timeout=10)["StatusCode"] == 0


def _state(daemon: Daemon) -> str:
    with urllib.request.urlopen(f"{daemon.url}/readyz", timeout=5) as answer:
        return str(json.load(answer)["state"])
