"""`tailrace check` finds what the brokers would refuse; its line to paste makes the start pass."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from tailrace.cdc.check.finding import Finding
from tailrace.cdc.dev import kafka
from tailrace.cdc.dev.process import Process, free_ports
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.errors import TailraceError
from tests.integration.test_check import stops
from tests.integration.test_start import start_and_stop
from tests.support.daemon import AT_ONCE, write_config

_USER: Final = "User:capture"
_PASSWORD: Final = "s3cret"


def test_replicas_that_the_brokers_cannot_hold_are_found(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    def configured(more: str) -> Config:
        return load(write_config(tmp_path, database, servers.bootstrap, prefix, more))

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = configured("replication_factor = 3\n")
    found = stops(config)
    assert set(found) == {"TR-917"}
    _refused(config)
    config = configured(f"{found['TR-917'].paste}\n")
    assert stops(config) == {}
    start_and_stop(config)


def test_a_setting_of_the_brokers_and_a_missing_acl_are_found(tmp_path: Path, database: str, prefix: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with _broker(tmp_path / "kafka") as broker:
        more = (
            f'{AT_ONCE}[kafka.options]\n"security.protocol" = "sasl_plaintext"\n"sasl.mechanism" = "PLAIN"\n'
            f'"sasl.username" = "capture"\n[kafka.secret_options]\n"sasl.password" = "{_PASSWORD}"\n'
        )
        config = load(write_config(tmp_path, database, broker.restricted, prefix, more))
        # what the entry of TR-918 lists
        broker.grant(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "DESCRIBE_CONFIGS")
        broker.grant(ResourceType.GROUP, "tailrace-reader", ResourcePatternType.LITERAL, "DESCRIBE")
        broker.grant(
            ResourceType.TRANSACTIONAL_ID, f"tailrace-{prefix}", ResourcePatternType.PREFIXED, "WRITE", "DESCRIBE"
        )
        broker.grant(
            *(ResourceType.TOPIC, f"{prefix}.", ResourcePatternType.PREFIXED),
            *("READ", "WRITE", "CREATE", "DESCRIBE", "DESCRIBE_CONFIGS"),
        )
        found = stops(config)
        assert set(found) == {"TR-916"}
        _refused(config)
        name, value = found["TR-916"].paste.partition("#")[0].strip().split("=")
        broker.restart({name: value})
        assert stops(config) == {}
        start_and_stop(config)

        broker.revoke("WRITE")
        found = stops(config)
        assert set(found) == {"TR-918"}
        assert "write" in found["TR-918"].seen
        _refused(config)
        broker.add_as_pasted(found["TR-918"])
        assert stops(config) == {}
        start_and_stop(config)


def _refused(config: Config) -> None:
    """Expect that a start fails; the brokers decide by which error."""
    with pytest.raises(TailraceError):
        start_and_stop(config)


class _Broker:
    """A broker whose listener `restricted` has one user, for whom ACLs apply; `admin` may do everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip(("broker", "controller", "client"), free_ports([None] * 3), strict=True))
        open_listener, self.restricted = (f"127.0.0.1:{self._ports[name]}" for name in ("broker", "client"))
        addresses = f"PLAINTEXT://{open_listener},CLIENT://{self.restricted}"
        self._settings = {
            "listeners": f"{addresses},CONTROLLER://127.0.0.1:{self._ports['controller']}",
            "advertised.listeners": addresses,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule"
            f' required user_capture="{_PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "transaction.max.timeout.ms": "60000",
        }
        self.server = Server("kafka", Process(0, ""), folder, ports=self._ports)
        self.admin = AdminClient({"bootstrap.servers": open_listener})

    def restart(self, settings: dict[str, str]) -> None:
        """Start the broker, or stop it and start it with these settings."""
        stop(self.server)
        self._settings |= settings
        self.server = kafka.start(self._folder, self.server, self._settings, self._record)

    def _record(self, server: Server) -> None:
        self.server = server

    def grant(self, kind: ResourceType, name: str, pattern: ResourcePatternType, *operations: str) -> None:
        """Allow the user these operations."""
        allowed = [
            AclBinding(kind, name, pattern, _USER, "*", AclOperation[each], AclPermissionType.ALLOW)
            for each in operations
        ]
        for future in self.admin.create_acls(allowed).values():
            future.result(10)

    def revoke(self, operation: str) -> None:
        """Disallow an operation on topics."""
        topics, pattern = ResourceType.TOPIC, ResourcePatternType.ANY
        which, every, anything = AclOperation[operation], AclPermissionType.ANY, cast("str", None)
        removed = AclBindingFilter(topics, anything, pattern, _USER, anything, which, every)
        for future in self.admin.delete_acls([removed]).values():
            assert future.result(10)

    def add_as_pasted(self, finding: Finding) -> None:
        """Add the ACLs of a command `kafka-acls.sh`, without the JVM that it starts."""
        command, *words = shlex.split(finding.paste)
        assert (command, words.count("--add")) == ("kafka-acls.sh", 1)
        words.remove("--add")
        given = list(zip(words[::2], words[1::2], strict=True))
        options = dict(given)
        assert options["--bootstrap-server"] == self.restricted
        assert options["--allow-principal"] == _USER
        operations = [value for name, value in given if name == "--operation"]
        names = {each.name.replace("_", "").title(): each.name for each in AclOperation}
        pattern = ResourcePatternType[options["--resource-pattern-type"].upper()]
        self.grant(ResourceType.TOPIC, options["--topic"], pattern, *(names[each] for each in operations))


@contextmanager
def _broker(folder: Path) -> Iterator[_Broker]:
    broker = _Broker(folder)
    try:
        broker.restart({})
        yield broker
    finally:
        stop(broker.server)
