"""``source.publish = "insert"``: topics are declared logs of inserts; nothing treats them as tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.support.daemon import events, running, tailrace, wait_for, wait_for_state, wait_until, write_config
from tests.support.topics import assert_once_in_order, read_topic

Write = Callable[[str], Path]

_TABLES = """
CREATE TABLE item (id int PRIMARY KEY, note text);
CREATE TABLE event (note text);
CREATE TABLE visit (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE visit_low PARTITION OF visit FOR VALUES FROM (0) TO (100);
CREATE TABLE visit_high PARTITION OF visit FOR VALUES FROM (100) TO (200);
INSERT INTO item VALUES (1, 'first'); INSERT INTO event VALUES ('first'); INSERT INTO visit VALUES (1, 'first');
"""

_VIEWS = """
[warehouse]
uri = "jdbc:sqlite:none"
location = "none"
[views.items]
table = "public.item"
"""


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES.encode())
        yield connection


@pytest.fixture
def write(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Write:
    return lambda more: write_config(tmp_path, database, servers.bootstrap, prefix, source=more)


def _events(servers: Servers, prefix: str, table: str) -> Counter[tuple[str, str]]:
    """Return the counts of operation and note on a topic; its records must have no key."""
    records = read_topic(servers.bootstrap, prefix, f"public.{table}")
    assert_once_in_order(records)
    assert {each.key for each in records} == {(None,)}
    assert all(each.value is not None for each in records)
    return Counter((each.value["op"], each.value["after"]["note"]) for each in records if each.value)


def test_topics_are_logs_of_inserts(
    write: Write, servers: Servers, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """With and without keys, of partitions and later tables; a move between partitions is an insert."""
    path = write(f'publish = "insert"\n{_VIEWS}')
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        made = source.execute(
            "SELECT pubname, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication"
        )
        assert made.fetchall() == [("tailrace", True, False, False, False, True)]
        source.execute("INSERT INTO item VALUES (2, 'second'); UPDATE item SET note = 'updated'")
        source.execute("INSERT INTO item VALUES (1, 'third') ON CONFLICT (id) DO UPDATE SET note = 'merged'")
        source.execute("DELETE FROM item WHERE id = 2; INSERT INTO event VALUES ('second'); DELETE FROM event")
        source.execute("TRUNCATE item; INSERT INTO item VALUES (1, 'after the truncate')")
        # in the WAL, the first one is a delete and an insert, in two partitions
        source.execute("UPDATE visit SET id = 150, note = 'moved' WHERE id = 1; UPDATE visit SET note = 'updated'")
        source.execute("CREATE TABLE late (id int PRIMARY KEY, note text)")
        added = tailrace("table", "add", "late", "--config", str(path))
        assert added.returncode == 0, added.stderr
        wait_until(lambda: "public.late" in [event["table"] for event in events(daemon, "table copied")])
        source.execute("INSERT INTO late VALUES (1, 'late'); UPDATE late SET note = 'updated'")
        wait_for_state(config, source)
        assert _events(servers, prefix, "item") == Counter(
            [("r", "first"), ("c", "second"), ("c", "after the truncate")]
        )
        assert _events(servers, prefix, "event") == Counter([("r", "first"), ("c", "second")])
        assert _events(servers, prefix, "visit") == Counter([("r", "first"), ("c", "moved")])
        assert _events(servers, prefix, "late") == Counter([("c", "late")])
        assert daemon.stop() == 0
    with running(path) as daemon:
        source.execute("INSERT INTO item VALUES (2, 'after a restart'); INSERT INTO late VALUES (2, 'again')")
        wait_for_state(config, source)
        assert _events(servers, prefix, "item")["c", "after a restart"] == 1
        assert _events(servers, prefix, "late") == Counter([("c", "late"), ("c", "again")])
        assert daemon.stop() == 0
    resource = ConfigResource(ResourceType.TOPIC, f"{prefix}.public.item")
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    found = admin.describe_configs([resource])[resource].result()
    assert found["cleanup.policy"].value == "delete"
    _assert_nothing_takes_them_for_rows(path)


def _assert_nothing_takes_them_for_rows(path: Path) -> None:
    refused = tailrace("views", "follow", "--config", str(path))
    assert (refused.returncode, "ERROR  TR-508" in refused.stderr) == (3, True), refused.stderr
    assert 'shape = "log"  # under [views.items]' in refused.stderr
    refused = tailrace("verify", "--config", str(path))
    assert (refused.returncode, "ERROR  TR-137" in refused.stderr) == (3, True), refused.stderr
    proof = tailrace("verify", "--log", "--json", "--config", str(path))
    assert (proof.returncode, json.loads(proof.stdout)["holds"]) == (0, True), proof.stderr
    shown = tailrace("config", "show", "--config", str(path)).stdout.splitlines()
    assert ["source.publish", '"insert"'] in [line.split()[:2] for line in shown]


def test_a_publication_must_publish_what_the_configuration_declares(
    write: Write, servers: Servers, prefix: str, source: psycopg.Connection[Any]
) -> None:
    source.execute("CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish = 'insert')")
    refused = tailrace("run", "--config", str(write("")))
    assert (refused.returncode, "ERROR  TR-233" in refused.stderr) == (4, True), refused.stderr
    assert '       publish = "insert"  # under [source]' in refused.stderr
    source.execute("ALTER PUBLICATION tailrace SET (publish = 'insert, update')")
    path = write('publish = "insert"\n')
    refused = tailrace("run", "--config", str(path))
    assert (refused.returncode, "ERROR  TR-233" in refused.stderr) == (4, True), refused.stderr
    assert "publishes more than inserts: update" in refused.stderr
    hint = refused.stderr.partition("HINT   ")[2].splitlines()[0]
    source.execute(hint.encode())
    with running(path) as daemon:
        wait_for(load(path), lambda record: record.is_state)
        source.execute("UPDATE item SET note = 'updated'; INSERT INTO visit_high VALUES (101, 'of a partition')")
        wait_for_state(load(path), source)
        assert _events(servers, prefix, "item") == Counter([("r", "first")])
        # without publish_via_partition_root, partitions are tables
        assert _events(servers, prefix, "visit_high") == Counter([("c", "of a partition")])
        source.execute("ALTER PUBLICATION tailrace SET (publish = 'insert, delete')")
        source.execute("INSERT INTO item VALUES (9, 'ninth')")
        assert daemon.process.wait(60) == 4, "as at a start"
    assert "publishes more than inserts: delete" in daemon.log.read_text()


def test_topics_with_keys_do_not_become_logs(write: Write, source: psycopg.Connection[Any]) -> None:
    """A pipeline retains the form that it started with."""
    path = write("")
    with running(path) as daemon:
        wait_for_state(load(path), source)
        assert daemon.stop() == 0
    source.execute("ALTER PUBLICATION tailrace SET (publish = 'insert')")
    source.execute("ALTER PUBLICATION tailrace_nokey SET (publish = 'insert')")
    refused = tailrace("run", "--config", str(write('publish = "insert"\n')))
    assert (refused.returncode, "ERROR  TR-428" in refused.stderr) == (6, True), refused.stderr
    assert "public.item, public.visit" in refused.stderr


def test_keys_of_logs_are_refused(write: Write) -> None:
    refused = tailrace("run", "--config", str(write('publish = "insert"\nkeys = { "public.item" = ["id"] }\n')))
    assert (refused.returncode, "ERROR  TR-104" in refused.stderr) == (3, True), refused.stderr
    assert "topics of inserts only are logs" in refused.stderr
