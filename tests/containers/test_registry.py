"""The daemon with a registry, each in a container, and an index in another filled by a job on the host."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from opensearchpy import OpenSearch
from testcontainers.core.container import DockerContainer

from cdc.dev.process import free_ports
from tests.containers.servers import Daemon, Servers, opensearch, registry
from tests.daemon import tailrace, wait_for_state, wait_until, write_config
from tests.topics import latest, read_raw, read_topic

_PATH = "/apis/ccompat/v7"


@pytest.fixture
def registry_container(servers: Servers) -> Iterator[tuple[DockerContainer, str]]:
    (port,) = free_ports([None])
    with registry(servers.network, port) as container:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}{_PATH}/subjects"), 120)
        yield container, f"http://127.0.0.1:{port}{_PATH}"


@pytest.fixture
def search(engine: None) -> Iterator[str]:
    (port,) = free_ports([None])
    with opensearch(port):
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/_cluster/health?wait_for_status=yellow"), 120)
        yield f"http://127.0.0.1:{port}"


def test_ids_of_a_registry_and_documents_in_an_index(
    servers: Servers,
    registry_container: tuple[DockerContainer, str],
    search: str,
    database: str,
    prefix: str,
    tmp_path: Path,
) -> None:
    container, url = registry_container
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text); INSERT INTO item VALUES (1, 'one')")
        with Daemon(servers, database, prefix, registry={"url": f"http://registry:8080{_PATH}"}) as daemon:
            wait_for_state(daemon.config, connection)
            connection.execute("INSERT INTO item VALUES (2, 'two')")
            wait_for_state(daemon.config, connection)
            decode = AvroDeserializer(SchemaRegistryClient({"url": url}))
            values = [decode(message.value()) for message in read_raw(servers.bootstrap, f"{prefix}.public.item")]
            assert {value["after"]["name"] for value in values if isinstance(value, dict)} == {"one", "two"}

            views = f'[search]\nhosts = ["{search}"]\nindex_prefix = "{prefix}-"\n[views.item]\ntable = "public.item"\n'
            config = write_config(tmp_path, database, servers.bootstrap, prefix, more=f'{views}target = "search"\n')
            filled = tailrace("views", "rebuild", "item", "--config", str(config), timeout=240)
            assert filled.returncode == 0, filled.stderr
            with OpenSearch(search) as client:
                hits = client.search(index=f"{prefix}-item")["hits"]["hits"]
            assert {hit["_source"]["name"] for hit in hits} == {"one", "two"}

            container.get_wrapped_container().kill("SIGKILL")
            connection.execute("INSERT INTO item VALUES (3, 'three')")
            wait_for_state(daemon.config, connection)
    assert latest(read_topic(servers.bootstrap, prefix, "public.item"))[(3,)] == {"id": 3, "name": "three"}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
