"""PostgreSQL, Kafka brokers and the daemon, each in a container, on their own network.

Containers reach each other by name; a test reaches them on loopback, at ports that stay the same after a kill.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tailrace.cdc.dev import kafka
from tailrace.cdc.dev.process import Process, free_ports
from tailrace.cdc.dev.server import Server
from tailrace.schemas.config.model import Config
from tests.faults.cluster import replicated
from tests.support.daemon import wait_until

_PATIENCE_S = 120
_PASSWORD = "Quince-7-Lantern"
_CLUSTER_ID = "dGFpbHJhY2UtaW1hZ2VzIQ"
FEW_RIGHTS: dict[str, Any] = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}


@dataclass(frozen=True)
class Servers:
    """Running containers: `dsn` and `bootstrap` are for the host, `inner_*` for containers on `network`."""

    network: Network
    postgres: DockerContainer
    brokers: tuple[DockerContainer, ...]
    dsn: str
    bootstrap: str
    inner_dsn: str
    inner_bootstrap: str

    def wait_until_ready(self) -> None:
        """Return when all servers answer."""
        wait_until_connected(self.dsn, self.bootstrap)


@contextmanager
def servers(brokers: int = 3) -> Iterator[Servers]:
    """Start PostgreSQL and the brokers; remove them after the block."""
    port, *broker_ports = free_ports([None] * (1 + brokers))
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        postgres = stack.enter_context(postgres_container(network, 18, port))
        started = Servers(
            network,
            postgres,
            tuple(stack.enter_context(broker_container(network, i + 1, broker_ports)) for i in range(brokers)),
            superuser_dsn(f"127.0.0.1:{port}"),
            ",".join(f"127.0.0.1:{port}" for port in broker_ports),
            superuser_dsn("postgres18"),
            ",".join(f"kafka{i + 1}:9092" for i in range(brokers)),
        )
        started.wait_until_ready()
        yield started


@contextmanager
def of_version(major: int, others: Servers) -> Iterator[Servers]:
    """Start another version of PostgreSQL beside the brokers of `others`."""
    (port,) = free_ports([None])
    with postgres_container(others.network, major, port) as postgres:
        dsn, inner_dsn = superuser_dsn(f"127.0.0.1:{port}"), superuser_dsn(f"postgres{major}")
        started = replace(others, postgres=postgres, dsn=dsn, inner_dsn=inner_dsn)
        started.wait_until_ready()
        yield started


def wait_until_connected(dsn: str, bootstrap: str) -> None:
    """Return when PostgreSQL and all brokers answer."""
    wait_until(lambda: _connects(dsn), _PATIENCE_S)
    wait_until(lambda: all(_serves(address) for address in bootstrap.split(",")), _PATIENCE_S)


def superuser_dsn(address: str) -> str:
    """Return the superuser's connection string for a server that this module starts."""
    return f"postgresql://postgres:{_PASSWORD}@{address}/postgres"


def postgres_container(network: Network, major: int, port: int) -> DockerContainer:
    """Return a PostgreSQL container that the host reaches at `port`."""
    container = DockerContainer(f"postgres:{major}", network=network, network_aliases=[f"postgres{major}"])
    container.with_command(["postgres", "-c", "wal_level=logical", "-c", "fsync=off"])
    container.with_env("POSTGRES_PASSWORD", _PASSWORD)
    return publish(container, 5432, port)


def broker_container(network: Network, number: int, ports: list[int]) -> DockerContainer:
    """Return broker `number` of a cluster with one broker for each port in `ports`."""
    properties = (
        kafka.PROPERTIES
        | {
            "node.id": str(number),
            "listeners": "INSIDE://:9092,OUTSIDE://:19092,CONTROLLER://:9093",
            "advertised.listeners": f"INSIDE://kafka{number}:9092,OUTSIDE://127.0.0.1:{ports[number - 1]}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "controller.quorum.voters": ",".join(f"{i + 1}@kafka{i + 1}:9093" for i in range(len(ports))),
            "log.dirs": "/var/lib/kafka/data",
        }
        | replicated(len(ports))
    )
    container = DockerContainer("apache/kafka:4.3.1", network=network, network_aliases=[f"kafka{number}"])
    container.with_envs(
        CLUSTER_ID=_CLUSTER_ID, KAFKA_HEAP_OPTS="-Xms128m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    )
    container.with_envs(**variables(properties))
    return publish(container, 19092, ports[number - 1])


def variables(properties: Mapping[str, str]) -> dict[str, str]:
    """Return broker properties as environment variables of Kafka's image."""
    return {f"KAFKA_{name.upper().replace('-', '___').replace('.', '_')}": value for name, value in properties.items()}


@contextmanager
def opensearch() -> Iterator[str]:
    """Start a node without security and yield its URL."""
    (port,) = free_ports([None])
    container = DockerContainer("opensearchproject/opensearch:3")
    container.with_envs(
        OPENSEARCH_JAVA_OPTS="-Xms256m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        DISABLE_SECURITY_PLUGIN="true",
        DISABLE_INSTALL_DEMO_CONFIG="true",
    )
    container.with_env("discovery.type", "single-node")
    url = f"http://127.0.0.1:{port}"
    with publish(container, 9200, port):
        wait_until(lambda: _answers(f"{url}/_cluster/health?wait_for_status=yellow"), _PATIENCE_S)
        yield url


REGISTRY_PATH = "/apis/ccompat/v7"
"""Path of a registry's URL."""


@contextmanager
def registry(network: Network) -> Iterator[tuple[DockerContainer, str]]:
    """Start an in-memory registry; yield its container and its URL for the host.

    Other containers reach it at registry:8080.
    """
    (port,) = free_ports([None])
    container = DockerContainer("apicurio/apicurio-registry:3.3.3", network=network, network_aliases=["registry"])
    container.with_env("JAVA_OPTS_APPEND", "-Xms64m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    url = f"http://127.0.0.1:{port}{REGISTRY_PATH}"
    with publish(container, 8080, port):
        wait_until(lambda: _answers(f"{url}/subjects"), _PATIENCE_S)
        yield container, url


def publish(container: DockerContainer, inner: int, port: int) -> DockerContainer:
    """Publish the container's port `inner` on the host's loopback `port`; return the container."""
    container.ports[f"{inner}/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]  # the engine takes an address, too
    return container


def _connects(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _serves(address: str) -> bool:
    return kafka.ready(Server("kafka", Process(0, ""), Path(), ports={"broker": int(address.rpartition(":")[2])}))


class Daemon:
    """`tailrace run` in its image with minimal rights: a read-only root file system and no capabilities.

    All its settings are environment variables; `config` holds the same settings for the host.
    """

    def __init__(
        self, servers: Servers, dsn: str, prefix: str, registry: dict[str, str] | None = None, **options: Any
    ) -> None:
        """`registry` has the keys of that section; `options` are engine options in addition to ours."""
        inner = urlsplit(servers.inner_dsn)._replace(path=urlsplit(dsn).path).geturl()
        source, sink = {"slot": prefix}, {"prefix": prefix, "partitions": 3}
        self.config = Config.model_validate(
            {"source": {**source, "dsn": dsn}, "kafka": {**sink, "bootstrap": servers.bootstrap}}
        )
        settings: dict[str, dict[str, Any]] = {
            "SOURCE": {**source, "dsn": inner},
            "KAFKA": {**sink, "bootstrap": servers.inner_bootstrap},
            "REGISTRY": registry or {},
        }
        (self._port,) = free_ports([None])
        self.container = publish(DockerContainer("tailrace", network=servers.network), 9464, self._port)
        for section, keys in settings.items():
            for key, value in keys.items():
                self.container.with_env(f"TAILRACE__{section}__{key.upper()}", str(value))
        self.container.with_kwargs(**{**FEW_RIGHTS, **options})

    def __enter__(self) -> Daemon:
        self.container.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.container.stop()

    @property
    def url(self) -> str:
        """Base URL of the health endpoints."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def health(self) -> str:
        """Result of the image's health check: starting, healthy or unhealthy."""
        found = self.container.get_wrapped_container()
        found.reload()
        return str(found.attrs["State"]["Health"]["Status"])
