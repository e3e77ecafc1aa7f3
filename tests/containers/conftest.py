"""The engine and the servers on it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.engine import running_engine
from tests.containers.servers import Servers
from tests.containers.servers import servers as running_servers
from tests.servers import fresh_database


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """An engine with all images; one that was started for us is ended again."""
    with running_engine():
        yield


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
