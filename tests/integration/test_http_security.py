"""TLS and logins of OpenSearch and the registry, behind gateways: good ones work, others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.tables.schema_ids import check_registry
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, Registry, Search, Source
from tailrace.schemas.errors import ConfigError, SinkError
from tailrace.sinks.opensearch.target import OpenSearchTarget
from tests.integration.secured import Certificates
from tests.support.daemon import AT_ONCE, running, tailrace, wait_for_state, wait_until, write_config
from tests.support.gateway import gateway

USER, PASSWORD = "tailrace", "Rowan-3-Kettle"


@dataclass(frozen=True)
class Gateways:
    """Gateways before one server: one per certificate, and one that requires a client certificate."""

    certificates: Certificates
    urls: dict[str, str]

    def settings(self, listener: str = "good", **changed: Any) -> dict[str, Any]:
        """Return valid settings, changed by `changed`; None removes a key."""
        right = {"url": self.urls[listener], "user": USER, "password": PASSWORD, "ca_file": str(self.certificates.ca)}
        return {key: value for key, value in (right | changed).items() if value is not None}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("http") / "tls")


def _before(url: str, certificates: Certificates, stack: ExitStack) -> Gateways:
    urls = {}
    for name, certificate in certificates.server.items():
        urls[name] = stack.enter_context(gateway(url, certificate, login=f"{USER}:{PASSWORD}"))
    mutual = gateway(url, certificates.server["good"], client_ca=certificates.ca)
    return Gateways(certificates, urls | {"mutual": stack.enter_context(mutual)})


@pytest.fixture(scope="module")
def registry(registry_url: str, certificates: Certificates) -> Iterator[Gateways]:
    with ExitStack() as stack:
        yield _before(registry_url, certificates, stack)


@pytest.fixture(scope="module")
def search(search_url: str, certificates: Certificates) -> Iterator[Gateways]:
    with ExitStack() as stack:
        yield _before(search_url, certificates, stack)


def _ask_registry(settings: dict[str, Any]) -> None:
    check_registry(Config(source=Source(dsn=""), registry=Registry(**settings)))


def _ask_search(settings: dict[str, Any]) -> None:
    url = settings.pop("url")
    OpenSearchTarget(Search(hosts=[url], **settings), "any").live()


Ask = Callable[[dict[str, Any]], None]
SERVERS = pytest.mark.parametrize(
    ("section", "ask", "code"), [("registry", _ask_registry, "TR-340"), ("search", _ask_search, "TR-530")]
)


@SERVERS
def test_good_credentials_and_certificates_work(
    request: pytest.FixtureRequest, section: str, ask: Ask, code: str
) -> None:
    gateways = request.getfixturevalue(section)
    ask(gateways.settings())
    own = gateways.certificates.issue(f"{section}-client", common_name="tailrace")
    ask(gateways.settings("mutual", cert_file=str(own.chain), key_file=str(own.key)))
    ask(gateways.settings("mutual", cert_file=str(own.both)))


_VERIFY, _LOGIN = "certificate verify failed", "401"


@SERVERS
@pytest.mark.parametrize(
    ("listener", "changed", "reason", "hint"),
    [
        ("good", {"password": "wrong"}, _LOGIN, ".password_file"),
        ("good", {"user": None, "password": None}, _LOGIN, ".password_file"),
        ("good", {"ca_file": "unknown"}, _VERIFY, "openssl s_client"),
        ("good", {"ca_file": None}, _VERIFY, "openssl s_client"),
        ("expired", {}, "certificate has expired", "openssl s_client"),
        ("elsewhere", {}, "localhost", "openssl s_client"),
        ("good", {"url": "http", "ca_file": None}, "", "curl http://"),
        ("mutual", {}, "", ""),  # the connection may end before the server's reason can be read
    ],
    ids=["password", "nobody", "unknown CA", "no CA", "expired", "another host", "no TLS", "no client certificate"],
)
def test_wrong_credentials_and_certificates_are_refused(
    request: pytest.FixtureRequest,
    section: str,
    ask: Ask,
    code: str,
    listener: str,
    changed: dict[str, Any],
    reason: str,
    hint: str,
) -> None:
    gateways = request.getfixturevalue(section)
    if changed.get("ca_file") == "unknown":
        changed = {"ca_file": str(gateways.certificates.unknown_ca)}
    if changed.get("url") == "http":
        changed = changed | {"url": gateways.urls["good"].replace("https", "http")}
    with pytest.raises(SinkError) as refused:
        ask(gateways.settings(listener, **changed))
    error = refused.value
    told = (error.code, reason in error.detail, hint in error.hint, PASSWORD in str(error))
    assert told == (code, True, True, False), str(error)


@SERVERS
def test_unusable_certificate_files_are_refused(
    request: pytest.FixtureRequest, section: str, ask: Ask, code: str, tmp_path: Path
) -> None:
    gateways = request.getfixturevalue(section)
    (tmp_path / "no.pem").write_text("no certificate")
    for changed in (
        {"ca_file": str(tmp_path / "nowhere.pem")},
        {"ca_file": str(tmp_path / "no.pem")},
        {"cert_file": str(gateways.certificates.server["good"].chain)},
    ):
        with pytest.raises(ConfigError, match=rf"files of \[{section}\]") as refused:
            ask(gateways.settings(**changed))
        assert refused.value.code == "TR-349"


def test_no_output_of_the_daemon_has_a_secret(
    registry: Gateways, servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    """Log, `ps`, config show and errors; in normal operation and when the registry refuses the login."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)")
        (tmp_path / "password").write_text(PASSWORD)
        config = _write(tmp_path, database, servers, prefix, registry, password_file=str(tmp_path / "password"))
        with running(config, forked=False) as daemon:
            wait_for_state(load(config), connection)
            command = Path(f"/proc/{daemon.process.pid}/cmdline").read_text()
            assert str(config) in command
        shown = tailrace("config", "show", "--config", str(config))
        # from now on the registry's certificate is not trusted
        config = _write(tmp_path, database, servers, prefix, registry, ca_file=str(registry.certificates.unknown_ca))
        with running(config) as daemon:
            connection.execute("ALTER TABLE item ADD n int; INSERT INTO item VALUES (2, 7)")
            wait_until(lambda: "waiting for the schema registry" in daemon.log.read_text())
        config = _write(tmp_path, database, servers, f"{prefix}x", registry, user="who")
        config.write_text(config.read_text() + AT_ONCE)
        refused = tailrace("run", "--config", str(config))
    assert (refused.returncode, "ERROR  TR-340" in refused.stderr) == (5, True), refused.stderr
    everything = "\n".join([daemon.log.read_text(), command, shown.stdout, shown.stderr, refused.stderr])
    assert _VERIFY in everything
    assert PASSWORD not in everything


def _write(folder: Path, dsn: str, servers: Servers, prefix: str, gateways: Gateways, **changed: str) -> Path:
    settings = gateways.settings(**changed)
    if "password_file" in changed:
        del settings["password"]
    lines = "".join(f'{key} = "{value}"\n' for key, value in settings.items())
    return write_config(folder, dsn, servers.bootstrap, prefix, more=f"[registry]\n{lines}")
