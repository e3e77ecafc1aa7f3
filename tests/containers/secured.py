"""Container versions of the servers in tests.integration.secured."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tailrace.cdc.dev.process import free_ports
from tests.containers.servers import (
    broker_container,
    postgres_container,
    publish,
    superuser_dsn,
    variables,
    wait_until_connected,
)
from tests.integration.secured import Both, Certificates, SecuredKafka, SecuredPostgres, secured_listeners

_KEYS = Path("/tls")
_FIRST_PORT = 9101


@contextmanager
def secured() -> Iterator[Both]:
    """Start PostgreSQL and Kafka with their own CA; stop them after the block."""
    with tempfile.TemporaryDirectory(prefix="tailrace-secured-") as name, Network() as network:
        folder = Path(name)
        folder.chmod(0o755)
        certificates = Certificates(folder / "tls")
        port, broker_port, *ports = free_ports([None] * (2 + len(certificates.server)))
        postgres = _sees(certificates.folder, postgres_container(network, 17, port))
        broker = _sees(certificates.folder, broker_container(network, 1, [broker_port]))
        dsn, bootstrap = superuser_dsn(f"127.0.0.1:{port}"), f"127.0.0.1:{broker_port}"
        listeners = dict(zip(certificates.server, ports, strict=True))
        _listen(broker, certificates, bootstrap, listeners)
        with postgres, broker:
            wait_until_connected(dsn, bootstrap)
            _give_keys(postgres, certificates.folder)
            secured_kafka = SecuredKafka(bootstrap, {name: f"127.0.0.1:{port}" for name, port in listeners.items()})
            yield certificates, SecuredPostgres(dsn, _KEYS), secured_kafka


def _sees(folder: Path, container: DockerContainer) -> DockerContainer:
    return container.with_volume_mapping(str(folder), str(folder), "ro")


def _listen(broker: DockerContainer, certificates: Certificates, bootstrap: str, ports: dict[str, int]) -> None:
    """Add a listener for each certificate; the host reaches it at the port in `ports`."""
    inner = {name: _FIRST_PORT + number for number, name in enumerate(ports)}
    protocols = "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"
    listeners, told = (
        "INSIDE://:9092,OUTSIDE://:19092,CONTROLLER://:9093",
        f"INSIDE://kafka1:9092,OUTSIDE://{bootstrap}",
    )
    for name, port in ports.items():
        publish(broker, inner[name], port)
        protocols += f",{name.upper()}:SASL_SSL"
        listeners += f",{name.upper()}://:{inner[name]}"
        told += f",{name.upper()}://127.0.0.1:{port}"
    properties = {
        "listeners": listeners,
        "advertised.listeners": told,
        "listener.security.protocol.map": protocols,
        **secured_listeners(certificates),
    }
    broker.with_envs(**variables(properties))


def _give_keys(postgres: DockerContainer, folder: Path) -> None:
    """Copy the key files so that the server owns them; it refuses others."""
    copy = f"install -d -o postgres {_KEYS} && install -o postgres -m 600 {folder}/*.pem {_KEYS}"
    done = postgres.get_wrapped_container().exec_run(["sh", "-c", copy], user="root")
    assert done.exit_code == 0, done.output
