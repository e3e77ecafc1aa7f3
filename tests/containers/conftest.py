"""An engine, images and the servers on it; where none can be had, all tests of this folder are skipped, with why."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest
from testcontainers.core.config import ConnectionMode, testcontainers_config

from tests.containers.servers import Servers
from tests.containers.servers import servers as running_servers
from tests.daemon import ROOT
from tests.servers import fresh_database

_SCRIPT = ROOT / "docker" / "local-images"
_NOT_TO_BE_HAD = 3


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """An engine with all images; one that was started for us is ended again."""
    before = os.environ.get("DOCKER_HOST")
    built = subprocess.run([_SCRIPT], capture_output=True, text=True, check=False)
    if built.returncode == _NOT_TO_BE_HAD:
        pytest.skip(built.stderr.strip().splitlines()[-1])
    assert built.returncode == 0, built.stderr
    os.environ["DOCKER_HOST"] = built.stdout.strip()
    testcontainers_config.hub_image_name_prefix = "tailrace-local/"
    testcontainers_config.connection_mode_override = ConnectionMode.docker_host
    testcontainers_config.ryuk_disabled = True  # it is one more image; what is left behind by a kill -9 has our label
    yield
    if "starting an engine" in built.stderr:
        subprocess.run([_SCRIPT, "--stop"], check=True)
    if before is None:
        del os.environ["DOCKER_HOST"]


@pytest.fixture(scope="session")
def servers(engine: None) -> Iterator[Servers]:
    """PostgreSQL and three brokers, in containers."""
    with running_servers() as started:
        yield started


@pytest.fixture
def database(servers: Servers) -> Iterator[str]:
    """The DSN of a database of the test's own, for the host."""
    with fresh_database(servers.dsn) as dsn:
        yield dsn
