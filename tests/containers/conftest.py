"""Server fixtures for this folder: containers, whatever the command line says."""

from __future__ import annotations

import pytest

from tests.containers.servers import Servers


@pytest.fixture(scope="session")
def in_containers() -> bool:
    return True


@pytest.fixture(scope="session")
def servers(container_servers: Servers) -> Servers:
    """PostgreSQL and three brokers."""
    return container_servers
