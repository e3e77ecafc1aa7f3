"""PostgreSQL and Kafka that require TLS and credentials, and a CA for the tests.

PostgreSQL is a build with OpenSSL; its certificate can be changed. Kafka has a listener for each certificate. These are
embedded servers; tests.containers.secured has them in containers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import trustme
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from tailrace.cdc.dev import kafka, postgres, unprivileged
from tailrace.cdc.dev.process import Process, free_ports
from tailrace.cdc.dev.server import Server, stop
from tests.support.daemon import wait_until, write_config
from tests.support.postgres_versions import install
from tests.support.servers import fresh_database

SOURCE_PASSWORD, KAFKA_PASSWORD, SALT = SECRETS = "Quince-7-Lantern", "Medlar-9-Anvil", "Walnut-4-Ember"
_YEAR = timedelta(days=365)


@dataclass(frozen=True)
class Certificate:
    """PEM files: the certificate with its chain, its key, and both in one file, as Kafka requires."""

    chain: Path
    key: Path
    both: Path


class Certificates:
    """A CA and its certificates: for this host, for this host but expired, and for another host."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._ca = trustme.CA()
        self.ca = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca))
        self.unknown_ca = folder / "unknown-ca.pem"
        trustme.CA().cert_pem.write_to_path(str(self.unknown_ca))
        now = datetime.now(UTC)
        self.server = {
            "good": self.issue("good", "localhost", "127.0.0.1"),
            "expired": self.issue(
                "expired", "localhost", "127.0.0.1", not_before=now - 2 * _YEAR, not_after=now - _YEAR
            ),
            "elsewhere": self.issue("elsewhere", "elsewhere.example"),
        }

    def issue(
        self,
        name: str,
        *hosts: str,
        common_name: str | None = None,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
    ) -> Certificate:
        """Sign a certificate and write its files."""
        leaf = self._ca.issue_cert(*hosts, common_name=common_name, not_before=not_before, not_after=not_after)
        files = Certificate(*(self.folder / f"{name}.{kind}.pem" for kind in ("chain", "key", "both")))
        # Kafka reads only PKCS #8
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
        files.chain.write_bytes(chain)
        files.both.write_bytes(pem + chain)
        files.key.write_bytes(pem)
        files.key.chmod(0o600)
        return files


class SecuredPostgres:
    """Accepts `tailrace` by password (SCRAM), `certified` by certificate; TLS for all but the superuser."""

    def __init__(self, dsn: str, folder: Path) -> None:
        """`folder` has the certificate files on the server, which owns the keys."""
        self.dsn = dsn
        self.port = urlsplit(dsn).port
        self._folder = folder
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET ssl_ca_file = '{folder / 'ca.pem'}'".encode())
            row = connection.execute("SHOW hba_file").fetchone()
            assert row is not None
            connection.execute(
                "COPY (VALUES ('host all postgres all trust'), ('hostssl all certified all cert'),"
                f" ('hostssl all all all scram-sha-256')) TO '{row[0]}'".encode()
            )
        self.show("good")

    def show(self, certificate: str) -> None:
        """Use another certificate for all later connections."""
        shown = {"ssl_cert_file": f"{certificate}.chain.pem", "ssl_key_file": f"{certificate}.key.pem"}
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for name, file in shown.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{self._folder / file}'".encode())
            connection.execute("ALTER SYSTEM SET ssl = on")
            connection.execute("SELECT pg_reload_conf()")


class SecuredKafka:
    """A broker with a SCRAM listener for each certificate, and an open one for the tests."""

    def __init__(self, bootstrap: str, secured: dict[str, str]) -> None:
        self.bootstrap = bootstrap
        self.secured = secured

    def add_user(self, name: str, password: str) -> None:
        """Add a user; return when the broker knows it."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        (added,) = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(name, scram, password.encode())]
        ).values()
        added.result(10)
        wait_until(lambda: name in _users(admin))


def _users(admin: AdminClient) -> dict[str, Any]:
    found: Any = admin.describe_user_scram_credentials()
    return dict(found.result(10))


@dataclass(frozen=True)
class Secured:
    """The servers with their users, and a database that the source's users may read."""

    certificates: Certificates
    postgres: SecuredPostgres
    kafka: SecuredKafka
    folder: Path
    prefix: str
    database: str

    def dsn(self, user: str, **options: object) -> str:
        """Return a DSN that verifies the server (`verify-full`); libpq's `options` override it."""
        checked = {"sslmode": "verify-full", "sslrootcert": self.certificates.ca, **options}
        values = "&".join(f"{name}={value}" for name, value in checked.items())
        database = self.database.rpartition("/")[2]
        return f"postgresql://{user}@localhost:{self.postgres.port}/{database}?hostaddr=127.0.0.1&{values}"

    def config(self, dsn: str = "", listener: str = "good", password: str = KAFKA_PASSWORD, **options: str) -> Path:
        """Write a valid tailrace.toml, changed by the arguments; `options` are librdkafka's."""
        given = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "tailrace",
            "ssl.ca.location": self.certificates.ca,
            **options,
        }
        lines = ", ".join(f'"{name}" = "{value}"' for name, value in given.items())
        return write_config(
            self.folder,
            dsn or self.dsn(f"tailrace:{SOURCE_PASSWORD}"),
            self.kafka.secured[listener],
            self.prefix,
            source=f'hash_salt = "{SALT}"\nhash = ["public.item.email"]\n',
            more=f'options = {{ {lines} }}\nsecret_options = {{ "sasl.password" = "{password}" }}\n'
            '[health]\nlisten = "127.0.0.1:0"\n',
        )


Both = tuple[Certificates, SecuredPostgres, SecuredKafka]


def add_users(servers: Both) -> None:
    """Create the users that the two servers accept."""
    _, postgres, kafka = servers
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE tailrace LOGIN REPLICATION PASSWORD '{SOURCE_PASSWORD}'".encode())
        connection.execute("CREATE ROLE certified LOGIN REPLICATION")
    kafka.add_user("tailrace", KAFKA_PASSWORD)


@contextmanager
def secured_database(servers: Both, folder: Path, prefix: str) -> Iterator[Secured]:
    """Create a database with a table that the source's users may read."""
    certificates, postgres, kafka = servers
    with fresh_database(postgres.dsn) as database:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE item (id int PRIMARY KEY, email text);"
                "GRANT SELECT ON item TO tailrace, certified; CREATE PUBLICATION tailrace FOR TABLE item"
            )
        yield Secured(certificates, postgres, kafka, folder, prefix, database)
    postgres.show("good")


_SCRAM_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def secured_listeners(certificates: Certificates) -> dict[str, str]:
    """Return the broker properties of one listener per certificate, named like it in capitals."""
    properties = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    for name, certificate in certificates.server.items():
        of = f"listener.name.{name}"
        properties |= {
            f"{of}.ssl.keystore.type": "PEM",
            f"{of}.ssl.keystore.location": str(certificate.both),
            f"{of}.scram-sha-512.sasl.jaas.config": _SCRAM_LOGIN,
        }
    return properties


@contextmanager
def secured() -> Iterator[Both]:
    """Start PostgreSQL and Kafka with their own CA; stop them after the block."""
    started: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-secured-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        certificates = Certificates(folder / "tls")
        try:
            yield (
                certificates,
                _postgres(folder, certificates, started),
                _kafka(folder, certificates, started),
            )
        finally:
            for server in started:
                stop(server)


def _postgres(folder: Path, certificates: Certificates, started: list[Server]) -> SecuredPostgres:
    server = postgres.start(folder / "postgres", None, {"fsync": "off"}, started.append, install(17, folder))
    if os.geteuid() == 0:
        for certificate in certificates.server.values():
            os.chown(certificate.key, unprivileged.NOBODY, -1)
    return SecuredPostgres(postgres.dsn(server), certificates.folder)


def _kafka(folder: Path, certificates: Certificates, started: list[Server]) -> SecuredKafka:
    broker, controller, *ports = free_ports([None] * (2 + len(certificates.server)))
    bootstrap = f"127.0.0.1:{broker}"
    listeners = {name: f"127.0.0.1:{port}" for name, port in zip(certificates.server, ports, strict=True)}
    told = ",".join([f"PLAINTEXT://{bootstrap}", *(f"{name.upper()}://{at}" for name, at in listeners.items())])
    properties = {
        "listeners": f"{told},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": told,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        + ",".join(f"{name.upper()}:SASL_SSL" for name in listeners),
        **secured_listeners(certificates),
    }
    # start() chooses the ports of a server's last run, and we must know them earlier
    before = Server("kafka", Process(0, ""), folder, ports={"broker": broker, "controller": controller})
    kafka.start(folder / "kafka", before, properties, started.append)
    return SecuredKafka(bootstrap, listeners)
