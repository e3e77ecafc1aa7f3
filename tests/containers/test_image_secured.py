"""The daemon's image with TLS and credentials: good ones work, others are refused, no secret leaks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from testcontainers.core.container import DockerContainer

from tailrace.cdc.dev.process import free_ports
from tailrace.schemas.config.file import load
from tests.containers.secured import secured as secured_servers
from tests.containers.servers import FEW_RIGHTS
from tests.integration.secured import SECRETS, SOURCE_PASSWORD, Secured, add_users, secured_database
from tests.support.daemon import wait_for_state


@pytest.fixture(scope="module")
def secured(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    folder.chmod(0o755)  # the container's user owns nothing on the host
    with secured_servers() as servers:
        add_users(servers)
        with secured_database(servers, folder, f"c{free_ports([None])[0]}") as found:
            yield found


def _daemon(secured: Secured, config: Path) -> DockerContainer:
    """Run in the host's network, where the names in the certificates resolve to the servers."""
    (port,) = free_ports([None])
    container = DockerContainer("tailrace").with_command(["run", "--config", str(config)])
    for folder in (config.parent, secured.certificates.folder):
        container.with_volume_mapping(str(folder), str(folder), "ro")
    container.with_env("TAILRACE__HEALTH__LISTEN", f"127.0.0.1:{port}")
    container.with_env("TAILRACE__SOURCE__TOAST_CACHE_DIR", "/var/lib/tailrace/toast")
    return container.with_kwargs(**FEW_RIGHTS, network_mode="host")


def test_good_credentials_work_and_stay_secret(secured: Secured) -> None:
    path = secured.config()
    with (
        _daemon(secured, path) as container,
        psycopg.connect(secured.database, autocommit=True) as connection,
    ):
        connection.execute("INSERT INTO item VALUES (1, 'a@b.example')")
        wait_for_state(load(path), connection)
        assert container.get_wrapped_container().stop(timeout=10) is None
        said = "".join(part.decode() for part in container.get_logs())
    assert "table copied" in said
    assert [secret for secret in SECRETS if secret in said] == []


@pytest.mark.parametrize(
    ("side", "exit_code", "error"),
    [("postgres", 4, "TR-201"), ("kafka", 5, "TR-330")],
)
def test_an_unknown_ca_is_refused(secured: Secured, side: str, exit_code: int, error: str) -> None:
    unknown = str(secured.certificates.unknown_ca)
    if side == "postgres":
        path = secured.config(secured.dsn(f"tailrace:{SOURCE_PASSWORD}", sslrootcert=unknown))
    else:
        path = secured.config(**{"ssl.ca.location": unknown})
    with _daemon(secured, path).with_env("TAILRACE__DELIVERY__START_TIMEOUT_S", "0") as container:
        ended = container.get_wrapped_container().wait(timeout=30)["StatusCode"]
        said = "".join(part.decode() for part in container.get_logs())
    assert ended == exit_code, said
    assert f'"code": "{error}"' in said
    assert "certificate verify failed" in said
    assert [secret for secret in SECRETS if secret in said] == []
