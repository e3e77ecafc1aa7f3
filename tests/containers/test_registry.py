"""The daemon with a schema registry, in containers, and an index filled by a job on the host."""

from __future__ import annotations

from pathlib import Path

import psycopg
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer

from tailrace.schemas.config.model import Search
from tailrace.sinks.opensearch.bulk import connect
from tests.containers.servers import REGISTRY_PATH, Daemon, Servers, registry
from tests.support.daemon import tailrace, wait_for_state, write_config
from tests.support.topics import latest, read_raw, read_topic


def test_topics_have_the_registry_s_ids_and_the_index_has_the_documents(
    servers: Servers, search_url: str, database: str, prefix: str, tmp_path: Path
) -> None:
    with registry(servers.network) as (container, url), psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE item (id int PRIMARY KEY, name text); INSERT INTO item VALUES (1, 'one')")
        with Daemon(servers, database, prefix, registry={"url": f"http://registry:8080{REGISTRY_PATH}"}) as daemon:
            wait_for_state(daemon.config, connection)
            connection.execute("INSERT INTO item VALUES (2, 'two')")
            wait_for_state(daemon.config, connection)
            decode = AvroDeserializer(SchemaRegistryClient({"url": url}))
            values = [decode(message.value()) for message in read_raw(servers.bootstrap, f"{prefix}.public.item")]
            assert {value["after"]["name"] for value in values if isinstance(value, dict)} == {"one", "two"}

            views = (
                f'[search]\nhosts = ["{search_url}"]\nindex_prefix = "{prefix}-"\n[views.item]\ntable = "public.item"\n'
            )
            config = write_config(tmp_path, database, servers.bootstrap, prefix, more=f'{views}target = "search"\n')
            filled = tailrace("views", "rebuild", "item", "--config", str(config), timeout=240)
            assert filled.returncode == 0, filled.stderr
            with connect(Search(hosts=[search_url])) as client:
                hits = client.search(index=f"{prefix}-item")["hits"]["hits"]
            assert {hit["_source"]["name"] for hit in hits} == {"one", "two"}

            container.get_wrapped_container().kill("SIGKILL")
            connection.execute("INSERT INTO item VALUES (3, 'three')")
            wait_for_state(daemon.config, connection)
    assert latest(read_topic(servers.bootstrap, prefix, "public.item"))[(3,)] == {"id": 3, "name": "three"}
