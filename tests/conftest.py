"""Fixtures that start real servers once per test run and stop them at its end."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tailrace.cdc.dev.state import Servers, start_servers, stop_servers
from tailrace.cdc.launch import java
from tailrace.schemas.errors import ConfigError
from tests.support import apicurio
from tests.support.servers import fresh_database
from tests.support.spread import Spread, rank

if TYPE_CHECKING:
    from tests.containers.servers import Servers as ContainerServers

# Nothing a test writes must survive a power cut, and each fsync costs milliseconds.
_POSTGRES = {"fsync": "off"}

# A test may freeze the broker: its session must not expire meanwhile, see cdc.dev.kafka about lost markers.
_KAFKA = {"broker.session.timeout.ms": "60000"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects the servers: `pytest --servers containers`, for example.

    `--servers "DSN BOOTSTRAP [OPENSEARCH]"` names running servers.
    """
    parser.addoption("--servers", default="embedded", help='embedded, containers, or "DSN BOOTSTRAP [OPENSEARCH]"')


def pytest_configure() -> None:
    """Make SIGTERM (from `timeout`, or from CI) end the run as Ctrl-C does, so that the servers stop, too.

    Restore SIGINT, too: a shell that starts a run in the background has it ignored, and child processes inherit that.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Let `--dist loadfile` open Spark sessions on some of the workers only."""
    return Spread(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let several workers begin with the longest files, so that none is left alone at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn skips into failures if TAILRACE_TESTS_NO_SKIP is set, as CI does.

    Otherwise nobody would notice that a test no longer runs. A test of unfinished work uses xfail, with its issue.
    """
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("TAILRACE_TESTS_NO_SKIP"):
        report.outcome = "failed"
    return report


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of this run's servers; its teardown stops them all."""
    folder = tmp_path_factory.mktemp("tailrace") / "state"
    yield folder
    stop_servers(folder, purge=True)


@pytest.fixture(scope="session")
def in_containers(request: pytest.FixtureRequest) -> bool:
    """Whether the command line asks for servers in containers."""
    return bool(request.config.getoption("--servers") == "containers")


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """A container engine with all images; one that was started for us is stopped again."""
    from tests.containers.engine import running_engine

    with running_engine():
        yield


@pytest.fixture(scope="session")
def container_servers(engine: None) -> Iterator[ContainerServers]:
    """PostgreSQL and three brokers, in containers."""
    from tests.containers.servers import servers as started

    with started() as found:
        yield found


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, in_containers: bool) -> Servers:
    """PostgreSQL and Kafka: embedded, in containers, or those that the command line names."""
    named = request.config.getoption("--servers")
    if named == "embedded":
        folder = request.getfixturevalue("state_dir")
        return start_servers(folder, search=False, postgres_settings=_POSTGRES, kafka_properties=_KAFKA)
    if in_containers:
        started = request.getfixturevalue("container_servers")
        return Servers(started.dsn, started.dsn, started.bootstrap, None)
    dsn, bootstrap, *search = named.split()
    return Servers(dsn, dsn, bootstrap, search[0] if search else None)


@pytest.fixture(scope="session")
def search_url(state_dir: Path, servers: Servers, in_containers: bool) -> Iterator[str]:
    """OpenSearch: the one that the command line names, or our own, started on first use."""
    if in_containers:
        from tests.containers.servers import opensearch

        with opensearch() as url:
            yield url
    elif servers.opensearch is not None:
        yield servers.opensearch
    else:
        found = start_servers(state_dir)
        if found.opensearch is None:
            pytest.skip("; ".join(found.messages))
        yield found.opensearch


@pytest.fixture(scope="session")
def registry_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, in_containers: bool
) -> Iterator[str]:
    """A schema registry, started on first use."""
    if in_containers:
        from tests.containers.servers import registry

        with registry(request.getfixturevalue("container_servers").network) as (_, url):
            yield url
        return
    try:
        java.find_java("Apicurio", apicurio.JAVA)
    except ConfigError as missing:
        pytest.skip(f"{missing.message}. {missing.hint}")
    with apicurio.running(tmp_path_factory.mktemp("registry") / "apicurio") as url:
        yield url


@pytest.fixture
def database(servers: Servers) -> Iterator[str]:
    """The DSN of a database that only this test uses."""
    with fresh_database(servers.dsn) as dsn:
        yield dsn


@pytest.fixture
def prefix() -> str:
    """A topic prefix that no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}"
