"""Schemas in a real registry: their ids, decoding by another reader, and work without the registry."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tailrace.cdc.dev.process import free_ports
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.tables.schema_ids import SchemaIds
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, Kafka
from tailrace.schemas.config.model import Registry as Settings
from tailrace.schemas.envelope import schema_id_of
from tailrace.schemas.errors import StateError
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_position, read_schemas
from tailrace.sinks.control.schema_topic import StoredSchema
from tailrace.sinks.http.registry import Registry
from tailrace.sinks.kafka.producer import KafkaSink
from tests.support.daemon import AT_ONCE, events, running, tailrace, wait_for, wait_for_state, wait_until, write_config
from tests.support.gateway import gateway
from tests.support.refused import assert_refused
from tests.support.topics import assert_once_in_order, latest, read_raw, read_topic

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, database: str, servers: Servers, prefix: str) -> Write:
    """Return a function that writes a configuration with or without a registry's URL."""

    def write(url: str | None, source: str = "") -> Path:
        more = f'[registry]\nurl = "{url}"\n' if url else ""
        return write_config(tmp_path, database, servers.bootstrap, prefix, more=more, source=source)

    return write


@pytest.fixture
def connection(database: str) -> Any:
    """A connection to a database with one table."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, \"a b\" text); INSERT INTO item VALUES (1, 'x')")
        yield connection


def _ids(config: Config, part: str) -> list[int]:
    """Return the ids of the value or key schemas in the topic's order."""
    stored = read_schemas(config.kafka, Topics(config.kafka.prefix))
    return [each.id for each in stored if each.subject == f"{config.kafka.prefix}.public.item-{part}"]


def test_another_reader_decodes_by_the_registry_and_ours_by_the_topic(
    write: Write, connection: psycopg.Connection, registry_url: str, servers: Servers, prefix: str
) -> None:
    client, topic = SchemaRegistryClient({"url": registry_url}), f"{prefix}.public.item"
    # so that ids of other pipelines are between ours
    client.register_schema(f"{prefix}-other", Schema('{"type": "fixed", "name": "X", "size": 4}', "AVRO"))
    path = write(registry_url)
    config = load(path)
    with running(path):
        wait_for_state(config, connection)
        connection.execute("ALTER TABLE item ADD n int; INSERT INTO item VALUES (2, 'y', 7)")
        wait_for_state(config, connection)
        (first, second), (key,) = _ids(config, "value"), _ids(config, "key")
        # a shape that returns has its old id and is the newest again
        connection.execute("ALTER TABLE item DROP n; INSERT INTO item VALUES (3, 'z')")
        wait_for_state(config, connection)
        assert _ids(config, "value") == [second, first]

    assert {client.get_latest_version(f"{topic}-{part}").schema_id for part in ("key", "value")} == {key, second}
    decode = AvroDeserializer(client)
    values, keys = set(), []
    for message in read_raw(servers.bootstrap, topic):
        value = decode(message.value())
        assert isinstance(value, dict)
        row = value["after"]
        values.add((schema_id_of(message.value()), row["id"], row["a_x20b"], row.get("n", "none")))
        keys.append((schema_id_of(message.key()), decode(message.key())))
    assert {(first, 1, "x", "none"), (second, 2, "y", 7), (first, 3, "z", "none")} <= values
    assert {number for number, _ in keys} == {key}
    rows = latest(read_topic(servers.bootstrap, prefix, "public.item"))
    assert {key: row["a_x20b"] for (key,), row in rows.items()} == {1: "x", 2: "y", 3: "z"}


def test_without_the_registry_known_shapes_continue_and_new_ones_wait(
    write: Write, connection: psycopg.Connection, registry_url: str, servers: Servers, prefix: str
) -> None:
    (port,) = free_ports([None])
    with gateway(registry_url, port=port) as url:
        path = write(url)
        config = load(path)
        with running(path):
            wait_for_state(config, connection)
            # `wait_for_state` sends logical messages, which have a schema, too
            connection.execute("INSERT INTO item VALUES (9, 'behind its message')")
            wait_for_state(config, connection)
    with running(path) as daemon:
        connection.execute("INSERT INTO item VALUES (2, 'known')")
        wait_for_state(config, connection)
        (told,) = events(daemon, "schema registry unavailable: continuing until a new schema appears")
        assert told["code"] == "TR-340"
        connection.execute("ALTER TABLE item ADD n int; INSERT INTO item VALUES (3, 'new', 7)")
        behind = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        wait_until(lambda: events(daemon, "waiting for the schema registry"))
        (waiting,) = events(daemon, "waiting for the schema registry")
        assert (waiting["code"], "refused" in waiting["detail"]) == ("TR-340", True)
        assert behind is not None
        slot = "SELECT active, confirmed_flush_lsn < %s FROM pg_replication_slots WHERE slot_name = %s"
        assert connection.execute(slot, (*behind, prefix)).fetchone() == (True, True)
        with gateway(registry_url, port=port):
            wait_for_state(config, connection)
        assert daemon.process.poll() is None
    records = read_topic(servers.bootstrap, prefix, "public.item")
    assert_once_in_order(records)
    assert latest(records)[(3,)] == {"id": 3, "a_x20b": "new", "n": 7}


def test_a_shape_that_the_registry_refuses_stops_the_daemon(
    write: Write, connection: psycopg.Connection, registry_url: str, servers: Servers, prefix: str
) -> None:
    client, subject = SchemaRegistryClient({"url": registry_url}), f"{prefix}.public.item-value"
    path = write(registry_url, source='on_table_error = "stop"\n')
    with running(path) as daemon:
        wait_for_state(load(path), connection)
        client.set_compatibility(subject, "BACKWARD")
        connection.execute('ALTER TABLE item ALTER "a b" TYPE int USING 5; UPDATE item SET "a b" = 6')
        assert daemon.process.wait(20) != 0
    refused = tailrace("run", "--config", str(path))
    assert (refused.returncode, "ERROR  TR-345" in refused.stderr) == (6, True), refused.stderr
    assert f'"{subject}"' in refused.stderr
    assert "409 " in refused.stderr
    assert "Incompatible artifact" in refused.stderr
    assert f"{registry_url}/config/{subject}" in refused.stderr
    client.set_compatibility(subject, "NONE")  # as the hint says
    with running(path):
        wait_for_state(load(path), connection)
    assert latest(read_topic(servers.bootstrap, prefix, "public.item")) == {(1,): {"id": 1, "a_x20b": 6}}


@pytest.mark.parametrize(
    ("parts", "alter", "row"),
    [
        (["value"], 'ALTER TABLE item ALTER "a b" TYPE int USING 5', {"id": 1, "a_x20b": 6}),
        (["key", "value"], "ALTER TABLE item ALTER id TYPE text", {"id": "1", "a_x20b": "6"}),
    ],
)
@pytest.mark.parametrize("rule_of", ["subject", "registry"])
def test_a_parked_table_continues_when_the_rule_is_lifted(
    write: Write,
    connection: psycopg.Connection,
    registry_url: str,
    servers: Servers,
    prefix: str,
    parts: list[str],
    alter: str,
    row: dict[str, object],
    rule_of: str,
) -> None:
    """Run each line of `table list`; afterwards the compatibility rule is as before."""
    client = SchemaRegistryClient({"url": registry_url})
    subjects = [f"{prefix}.public.item-{part}" for part in parts]
    path = write(registry_url)
    config = load(path)
    with running(path) as daemon:
        wait_for_state(config, connection)
        for subject in subjects if rule_of == "subject" else [None]:
            client.set_compatibility(subject, "BACKWARD")
        try:
            connection.execute(f'{alter}; UPDATE item SET "a b" = 6'.encode())
            parked = wait_for(config, lambda record: record.parked).parked
            assert parked == {"public.item": "TR-345"}
            listed = tailrace("table", "list", "--config", str(path)).stdout
            lines = [line.strip() for line in listed.splitlines() if line.startswith("    ")]
            (at,) = (number for number, line in enumerate(lines) if line == "tailrace table resume public.item")
            assert [line.partition("config/")[2].partition(" ")[0] for line in lines[1:at]] == subjects
            for line in lines[1:at]:
                _do(line)
            assert tailrace(*lines[at].split()[1:], "--config", str(path)).returncode == 0
            wait_for_state(config, connection)
            assert list(latest(read_topic(servers.bootstrap, prefix, "public.item")).values()) == [row]
            for line in lines[at + 1 :]:
                _do(line)
            assert [client.get_compatibility(subject) for subject in subjects] == ["BACKWARD"] * len(subjects)
            with pytest.raises(SchemaRegistryError, match="ncompatible"):
                client.register_schema(subjects[0], Schema('"bytes"', "AVRO"))
        finally:
            client.set_compatibility(None, "NONE")
        assert daemon.stop() == 0


def _do(line: str) -> None:
    command, _, comment = line.partition("  # ")
    done = subprocess.run(["/bin/sh", "-c", f"{command} -fsS"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, (line, comment, done.stderr)


def test_a_first_start_without_the_registry_creates_nothing(
    write: Write, connection: psycopg.Connection, prefix: str
) -> None:
    (port,) = free_ports([None])
    path = write(f"http://127.0.0.1:{port}")
    path.write_text(path.read_text() + AT_ONCE)
    assert_refused(path, "TR-340", 5, f"curl http://127.0.0.1:{port}/subjects")
    made = connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", (prefix,)).fetchall()
    assert made == []
    assert read_position(load(path).kafka, Topics(prefix), prefix) is None


def test_ids_of_another_origin_are_refused(
    write: Write, connection: psycopg.Connection, registry_url: str, servers: Servers, prefix: str
) -> None:
    path = write(None)
    with running(path):
        wait_for_state(load(path), connection)
    _assert_refused(write(registry_url), "TR-347", "registry.url is set, but the ids")

    # as if a registry had assigned the id
    _store(servers, Topics(prefix), StoredSchema(900_000, f"{prefix}.x-value", '"long"', registered=True))
    _assert_refused(write(None), "TR-347", "registry.url is not set, but the ids")


def test_another_registry_is_refused(
    write: Write, connection: psycopg.Connection, registry_url: str, servers: Servers, prefix: str
) -> None:
    path = write(registry_url)
    with running(path):
        wait_for_state(load(path), connection)
    _store(servers, Topics(prefix), StoredSchema(900_000, f"{prefix}.x-value", '"long"', registered=True))
    _assert_refused(path, "TR-346", "does not have schema 900000")
    (value,) = _ids(load(path), "value")
    _store(servers, Topics(prefix), StoredSchema(value, f"{prefix}.x-value", '"long"', registered=True))
    _assert_refused(path, "TR-346", "It has another schema under this id")


def test_an_id_that_another_schema_has_is_refused(registry_url: str, servers: Servers, prefix: str) -> None:
    subject, schema = f"{prefix}-value", f'{{"type": "fixed", "name": "{prefix}", "size": 4}}'
    registry = Registry(Settings(url=registry_url))
    stored = StoredSchema(registry.register(subject, schema), f"{prefix}.other-value", schema, registered=True)
    sink = KafkaSink(Kafka(bootstrap=servers.bootstrap), None, f"{prefix}.progress")
    ids = SchemaIds(sink, f"{prefix}.schemas", [stored], registry)
    with pytest.raises(StateError, match=f"assigns id {stored.id} to a schema of subject") as refused:
        ids.id_of(subject, schema)
    assert refused.value.code == "TR-346"
    sink.abandon()
    registry.close()


def _store(servers: Servers, topics: Topics, schema: StoredSchema) -> None:
    producer = Producer({"bootstrap.servers": servers.bootstrap})
    producer.produce(topics.schemas, schema.value(), schema.key())
    assert producer.flush(10) == 0


def _assert_refused(path: Path, code: str, message: str) -> None:
    assert_refused(path, code, 6, message, "another kafka.prefix")
