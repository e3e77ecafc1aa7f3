"""PostgreSQL, three Kafka brokers and the daemon, each in a container, on a network of their own.

The containers find each other by name; a test finds them on loopback, on ports that stay through a kill.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from cdc.dev import kafka
from cdc.dev.process import Process, free_ports
from cdc.dev.server import Server
from schemas.config import Config
from tests.daemon import wait_until
from tests.faults.cluster import replicated

_BROKERS = 3
_PATIENCE_S = 120
_PASSWORD = "Quince-7-Lantern"
_CLUSTER_ID = "dGFpbHJhY2UtaW1hZ2VzIQ"
_FEW_RIGHTS: dict[str, Any] = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}


@dataclass(frozen=True)
class Servers:
    """`dsn` and `bootstrap` are for the host, `inner_dsn` and `inner_bootstrap` for containers on `network`."""

    network: Network
    postgres: DockerContainer
    brokers: tuple[DockerContainer, ...]
    dsn: str
    bootstrap: str
    inner_dsn: str
    inner_bootstrap: str

    def wait_until_ready(self) -> None:
        """Return when all of them answer."""
        wait_until(lambda: _connects(self.dsn), _PATIENCE_S)
        wait_until(lambda: all(_serves(address) for address in self.bootstrap.split(",")), _PATIENCE_S)


@contextmanager
def servers() -> Iterator[Servers]:
    """Start PostgreSQL and the brokers; all is gone afterwards."""
    port, *broker_ports = free_ports([None] * (1 + _BROKERS))
    user = f"postgresql://postgres:{_PASSWORD}"
    with ExitStack() as stack:
        network = stack.enter_context(Network())
        postgres = stack.enter_context(_postgres(network, port))
        brokers = [stack.enter_context(_broker(network, i + 1, broker_ports[i])) for i in range(_BROKERS)]
        started = Servers(
            network,
            postgres,
            tuple(brokers),
            f"{user}@127.0.0.1:{port}/postgres",
            ",".join(f"127.0.0.1:{port}" for port in broker_ports),
            f"{user}@postgres/postgres",
            ",".join(f"kafka{i + 1}:9092" for i in range(_BROKERS)),
        )
        started.wait_until_ready()
        yield started


def _postgres(network: Network, port: int) -> DockerContainer:
    container = DockerContainer("postgres:18", network=network, network_aliases=["postgres"])
    container.with_command(["postgres", "-c", "wal_level=logical", "-c", "fsync=off"])
    container.with_env("POSTGRES_PASSWORD", _PASSWORD)
    return _publish(container, 5432, port)


def _broker(network: Network, number: int, port: int) -> DockerContainer:
    properties = (
        kafka._PROPERTIES
        | {
            "node.id": str(number),
            "listeners": "INSIDE://:9092,OUTSIDE://:19092,CONTROLLER://:9093",
            "advertised.listeners": f"INSIDE://kafka{number}:9092,OUTSIDE://127.0.0.1:{port}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "controller.quorum.voters": ",".join(f"{i + 1}@kafka{i + 1}:9093" for i in range(_BROKERS)),
            "log.dirs": "/var/lib/kafka/data",
        }
        | replicated(_BROKERS)
    )
    container = DockerContainer("apache/kafka:4.3.1", network=network, network_aliases=[f"kafka{number}"])
    container.with_envs(
        CLUSTER_ID=_CLUSTER_ID, KAFKA_HEAP_OPTS="-Xms128m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    )
    container.with_envs(**{f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in properties.items()})
    return _publish(container, 19092, port)


def opensearch(port: int) -> DockerContainer:
    """A node without security that the host finds at `port`."""
    container = DockerContainer("opensearchproject/opensearch:3")
    container.with_envs(
        OPENSEARCH_JAVA_OPTS="-Xms256m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        DISABLE_SECURITY_PLUGIN="true",
        DISABLE_INSTALL_DEMO_CONFIG="true",
    )
    container.with_env("discovery.type", "single-node")
    return _publish(container, 9200, port)


def registry(network: Network, port: int) -> DockerContainer:
    """A schema registry in memory that containers find at registry:8080, and the host at `port`."""
    container = DockerContainer("apicurio/apicurio-registry:3.3.3", network=network, network_aliases=["registry"])
    container.with_env("JAVA_OPTS_APPEND", "-Xms64m -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    return _publish(container, 8080, port)


def _publish(container: DockerContainer, inner: int, port: int) -> DockerContainer:
    container.ports[f"{inner}/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]  # the engine takes an address, too
    return container


def _connects(dsn: str) -> bool:
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _serves(address: str) -> bool:
    return kafka._ready(Server("kafka", Process(0, ""), Path(), ports={"broker": int(address.rpartition(":")[2])}))


class Daemon:
    """`tailrace run` in its image with as few rights as it needs: no root file system to write to, no capabilities.

    All its settings are in its environment; `config` is the same for the host.
    """

    def __init__(
        self, servers: Servers, dsn: str, prefix: str, registry: dict[str, str] | None = None, **options: Any
    ) -> None:
        """`registry` are the keys of its section, `options` are the engine's, on top of ours."""
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
        self.container = _publish(DockerContainer("tailrace", network=servers.network), 9464, self._port)
        for section, keys in settings.items():
            for key, value in keys.items():
                self.container.with_env(f"TAILRACE__{section}__{key.upper()}", str(value))
        self.container.with_kwargs(**{**_FEW_RIGHTS, **options})

    def __enter__(self) -> Daemon:
        self.container.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.container.stop()

    @property
    def url(self) -> str:
        """Where it answers about its health."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def health(self) -> str:
        """What the image's health check has found: starting, healthy, unhealthy."""
        found = self.container.get_wrapped_container()
        found.reload()
        return str(found.attrs["State"]["Health"]["Status"])
