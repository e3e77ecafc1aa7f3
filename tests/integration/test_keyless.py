"""Tables without a key become logs of events; their publication lets the source update them.

Debezium's TablesWithoutPrimaryKeyIT has the same subject.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from psycopg import sql
from psycopg.rows import dict_row

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.table_states import read_tables
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.support.daemon import (
    Daemon,
    events,
    running,
    tailrace,
    wait_for,
    wait_for_state,
    wait_until,
    write_config,
)
from tests.support.topics import TopicRecord, assert_once_in_order, latest, read_topic

_TABLES = """
CREATE TABLE plain (a int, b text);
CREATE TABLE late (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, b text);
CREATE TABLE nothing (id int PRIMARY KEY, b text);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE whole (a int, b text);
ALTER TABLE whole REPLICA IDENTITY FULL, ALTER b SET STORAGE EXTERNAL;
CREATE TABLE parted (a int, b text) PARTITION BY RANGE (a);
ALTER TABLE parted REPLICA IDENTITY FULL;
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE by_default (id int PRIMARY KEY, b text) ;
CREATE TABLE by_index (a int NOT NULL, b text NOT NULL, c text);
CREATE UNIQUE INDEX by_index_key ON by_index (a, b) INCLUDE (c);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE TABLE by_primary (b text, id int, c text, PRIMARY KEY (id) INCLUDE (c));
ALTER TABLE by_primary REPLICA IDENTITY FULL;
CREATE TABLE named (a int NOT NULL, b text NOT NULL, c text, UNIQUE (b, a));
ALTER TABLE named REPLICA IDENTITY FULL;
"""
_EVENTS = ("plain", "late", "nothing", "whole", "parted")
_KEYS = {"by_default": ("id",), "by_index": ("a", "b"), "by_primary": ("id",), "named": ("a", "b")}
_CONFIG = '[snapshot]\nchunk_bytes = 8192\n[source.keys]\n"public.named" = ["b", "a"]\n'


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES.encode())
        for table in (*_EVENTS, *_KEYS):
            columns = {"by_index": "g, 'row', 'c'", "by_primary": "'row', g, 'c'", "named": "g, 'row', 'c'"}
            row = columns.get(table, "g, 'row ' || g")
            connection.execute(f"INSERT INTO {table} SELECT {row} FROM generate_series(1, 50) g".encode())
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    return write_config(tmp_path, database, servers.bootstrap, prefix, _CONFIG)


def test_tables_of_every_replica_identity_are_captured(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """The four identities, with and without a key, by snapshot and stream, over a kill and a restart."""
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        _change_events(source)
        _change_rows(source)
        _assert_rows(source, servers, config)
        daemon.kill()
    source.execute("INSERT INTO plain VALUES (3, 'after the kill')")
    source.execute("INSERT INTO whole VALUES (3, 'after the kill')")
    with running(config_path) as daemon:
        _assert_rows(source, servers, config)
        assert daemon.stop() == 0
    _assert_inserts_only(source, servers, config)
    _assert_updates_as_events(servers, config)
    _assert_settings(servers, config)
    _assert_no_views(config_path)
    (said, _) = events(daemon, "tables without a replica identity: inserts and truncates only")
    assert said["tables"] == ["public.late", "public.nothing", "public.parted", "public.plain"]


def _change_events(connection: psycopg.Connection[Any]) -> None:
    for table in _EVENTS:
        connection.execute(f"INSERT INTO {table} SELECT 60 + g, NULL FROM generate_series(1, 9) g".encode())
        # in the first publication this would fail
        connection.execute(f"UPDATE {table} SET b = 'updated' WHERE b = 'row 7'".encode())
        connection.execute(f"DELETE FROM {table} WHERE b = 'row 8'".encode())
    connection.execute("UPDATE late SET id = id + 1")
    connection.execute("UPDATE whole SET b = repeat('large', 2000) WHERE a = 9")
    connection.execute("UPDATE whole SET a = 1009 WHERE a = 9")
    connection.execute("TRUNCATE plain, nothing")
    connection.execute("INSERT INTO plain VALUES (1, 'twice'), (1, 'twice'), (NULL, NULL)")


def _change_rows(connection: psycopg.Connection[Any]) -> None:
    for table, key in _KEYS.items():
        column = key[0]
        connection.execute(f"UPDATE {table} SET {column} = {column} + 1000 WHERE {column} < 4".encode())
        connection.execute(f"UPDATE {table} SET b = 'other' WHERE {column} = 5".encode())
        connection.execute(f"DELETE FROM {table} WHERE {column} BETWEEN 10 AND 20".encode())
        # downwards, so that no row takes another's key on the way
        connection.execute(f"UPDATE {table} SET {column} = {column} - 1 WHERE {column} = 6 - 1 + 16".encode())
    connection.execute("UPDATE by_primary SET c = 'included' WHERE id = 30")


def _assert_rows(connection: psycopg.Connection[Any], servers: Servers, config: Config) -> None:
    wait_for_state(config, connection)
    for table, key in _KEYS.items():
        records = _records(servers, config, table)
        assert_once_in_order(records)
        rows = connection.cursor(row_factory=dict_row).execute(f"SELECT * FROM {table}".encode()).fetchall()
        assert latest(records) == {tuple(row[name] for name in key): row for row in rows}


def _assert_inserts_only(connection: psycopg.Connection[Any], servers: Servers, config: Config) -> None:
    for table in ("plain", "late", "nothing", "parted"):
        records = _records(servers, config, table)
        assert_once_in_order(records)
        assert {each.partition for each in records} == {0}
        counts = Counter(each.value["op"] for each in records if each.value)
        truncated = table in ("plain", "nothing")
        inserted = 9 + (4 if table == "plain" else 0)
        assert counts == {"r": 50, "c": inserted} | ({"t": 1} if truncated else {})
    plain = _records(servers, config, "plain")
    behind = next(i for i, each in enumerate(plain) if each.key == ())
    rows = Counter(tuple(each.value["after"].values()) for each in plain[behind + 1 :] if each.value)
    assert rows == Counter(connection.execute("SELECT a, b FROM plain").fetchall())


def _assert_updates_as_events(servers: Servers, config: Config) -> None:
    """The table has exactly the rows that remain when the events are added and subtracted."""
    records = _records(servers, config, "whole")
    assert_once_in_order(records)
    assert all(each.key == (None,) and not each.tombstone for each in records)
    left: Counter[tuple[Any, ...]] = Counter()
    for each in records:
        assert each.value
        if each.value["before"]:
            left[tuple(each.value["before"].values())] -= 1
        if each.value["after"]:
            left[tuple(each.value["after"].values())] += 1
    with psycopg.connect(config.source.dsn.get_secret_value()) as connection:
        assert +left == Counter(connection.execute("SELECT a, b FROM whole").fetchall())
    assert Counter(each.value["op"] for each in records if each.value) == {"r": 50, "c": 10, "u": 3, "d": 1}


def _assert_settings(servers: Servers, config: Config) -> None:
    names = ("cleanup.policy", "retention.ms", "retention.bytes")
    assert _settings(servers, config, "plain", *names) == ["delete", "-1", "-1"]


def _settings(servers: Servers, config: Config, table: str, *names: str) -> list[str | None]:
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, f"{config.kafka.prefix}.public.{table}")
    found = admin.describe_configs([resource])[resource].result()
    return [found[name].value for name in names]


def _assert_no_views(config_path: Path) -> None:
    """A view and a verification of such a table are refused, each with its reason."""
    with config_path.open("a") as file:
        file.write('[views.log]\ntable = "public.plain"\n[warehouse]\nuri = "jdbc:sqlite:x"\nlocation = "x"\n')
    for arguments, code in ((("views", "follow", "log"), "TR-508"), (("verify", "log"), "TR-344")):
        refused = tailrace(*arguments, "--config", str(config_path))
        assert refused.returncode == 3
        assert code in refused.stderr
        if code == "TR-508":
            assert 'shape = "log"  # under [views.log]' in refused.stderr, "what helps without beginning again"


def _records(servers: Servers, config: Config, table: str) -> list[TopicRecord]:
    return read_topic(servers.bootstrap, config.kafka.prefix, f"public.{table}")


def test_an_interrupted_copy_without_a_key_begins_again(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """In an emptied topic, so that no row is doubled or lost. Keyless tables are first, to make it rare."""
    with config_path.open("a") as file:
        file.write("[delivery]\nmax_transaction_ms = 1\n")
    config = load(config_path)
    source.execute("INSERT INTO plain SELECT g, repeat('x', 500) FROM generate_series(1, 60000) g")
    with running(config_path) as daemon:
        record = wait_for(config, lambda record: record.incomplete_tables and record.counts)
        assert "public.by_default" in record.incomplete_tables
        daemon.kill()
    source.execute("INSERT INTO plain VALUES (0, 'since')")
    config_path.write_text(config_path.read_text().replace("chunk_bytes = 8192", "chunk_bytes = 1048576"))
    with running(config_path) as daemon:
        wait_for_state(config, source)
        assert daemon.stop() == 0
    _assert_each_row_once(source, servers, config, "plain")


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ('"public.absent" = ["a"]', "TR-121"),
        ('"public.whole" = ["a", "z"]', "TR-122"),
        ('"public.by_default" = ["b"]', "TR-123"),
        ('"public.plain" = ["a"]', "TR-123"),
        ('"public.whole" = ["a"]', "TR-124"),
    ],
)
def test_keys_that_would_not_be_exact_are_refused(
    source: psycopg.Connection[Any], config_path: Path, keys: str, code: str
) -> None:
    config_path.write_text(config_path.read_text().replace('"public.named" = ["b", "a"]', keys))
    daemon = tailrace("run", "--config", str(config_path))
    assert daemon.returncode == 3
    assert code in daemon.stderr


class _Writers:
    """Sessions that insert rows into a table until they are stopped, some of them in transactions of several."""

    def __init__(self, dsn: str, table: str) -> None:
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(dsn, table, n)) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def _write(self, dsn: str, table: str, n: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for i in itertools.count():
                if self._stopped.wait(0.005):
                    return
                with connection.transaction():
                    for j in range(1 + (n == 0) * 3):
                        row = (f"{threading.get_ident()} {i} {j}",)
                        connection.execute(sql.SQL("INSERT INTO {} (b) VALUES (%s)").format(sql.Identifier(table)), row)

    def __enter__(self) -> _Writers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def _assert_each_row_once(
    connection: psycopg.Connection[Any], servers: Servers, config: Config, table: str, *, truncates: int = 1
) -> list[TopicRecord]:
    """The records after the last truncate are the table's rows, each once; return these records."""
    records = _records(servers, config, table)
    assert_once_in_order(records)
    truncated = [i for i, each in enumerate(records) if each.key == ()]
    assert len(truncated) == truncates
    rest = records[truncated[-1] + 1 :] if truncated else records
    rows = Counter(each.value["after"]["b"] for each in rest if each.value and each.value["after"])
    query = sql.SQL("SELECT b FROM {}").format(sql.Identifier(table))
    assert rows == Counter(b for (b,) in connection.execute(query))
    return rest


def test_tables_without_a_key_that_appear_are_copied_and_streamed(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    """Created, recreated, renamed, published again, killed in their read: each row is on the topic once."""
    path = write_config(tmp_path, database, servers.bootstrap, prefix, "[snapshot]\nchunk_bytes = 8192\n")
    config = load(path)
    with psycopg.connect(database, autocommit=True) as source, ExitStack() as stack:
        source.execute("CREATE PUBLICATION tailrace FOR ALL TABLES; CREATE PUBLICATION tailrace_nokey")
        source.execute("CREATE TABLE item (id int PRIMARY KEY)")
        fill = "CREATE TABLE {0} (a int, b text); INSERT INTO {0} SELECT g, 'row ' || g FROM generate_series(1, 500) g"
        daemon = stack.enter_context(running(path))
        wait_for_state(config, source)

        source.execute(fill.format("late").encode())
        with _Writers(database, "late"):
            wait_until(lambda: _copies(daemon, "late") == 1)
        wait_for_state(config, source)
        kinds = {each.value["op"] for each in _assert_each_row_once(source, servers, config, "late", truncates=0)
                 if each.value}  # fmt: skip
        assert kinds == {"r", "c"}

        source.execute("ALTER TABLE late RENAME TO was")
        with _Writers(database, "was"):
            wait_until(lambda: _copies(daemon, "was") == 1)
        source.execute(fill.format("late").encode())
        with _Writers(database, "late"):
            wait_until(lambda: _copies(daemon, "late") == 2)
            asked = tailrace("snapshot", "start", "late", "--rate", "500", "--config", str(path))
            assert asked.returncode == 0, asked.stderr
            wait_until(
                lambda: [each.status for each in read_tables(config) if each.table == "public.late"] == ["reading"]
            )
            daemon.kill()
        daemon = stack.enter_context(running(path))
        wait_for_state(config, source)
        _assert_each_row_once(source, servers, config, "was", truncates=0)
        late = _records(servers, config, "late")
        _assert_each_row_once(source, servers, config, "late", truncates=sum(each.key == () for each in late))
        source.execute("TRUNCATE late; INSERT INTO late VALUES (1, 'since')")
        wait_for_state(config, source)
        assert len(_records(servers, config, "late")) == len(late) + 2
        assert daemon.stop() == 0


def _copies(daemon: Daemon, table: str) -> int:
    return sum(event["table"] == f"public.{table}" for event in events(daemon, "table copied"))


def test_a_table_that_gets_a_key_is_read_again_by_key(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    """Declared or primary, while the daemon is down or runs: its topic is emptied, and other tables continue."""
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    config = load(path)
    with psycopg.connect(database, autocommit=True) as source, ExitStack() as stack:
        source.execute("CREATE TABLE log (a int NOT NULL, b text); CREATE TABLE item (id int PRIMARY KEY, b text)")
        source.execute("CREATE TABLE event (a int NOT NULL, b text); ALTER TABLE event REPLICA IDENTITY FULL")
        source.execute("INSERT INTO log VALUES (1, 'one'); INSERT INTO item VALUES (1, 'one')")
        source.execute("INSERT INTO event VALUES (1, 'one'), (2, 'two')")
        daemon = stack.enter_context(running(path))
        wait_for_state(config, source)
        source.execute("ALTER TABLE event ADD PRIMARY KEY (a); UPDATE event SET b = 'updated' WHERE a = 2")
        wait_for_state(config, source)
        assert latest(_records(servers, config, "event")) == {
            (1,): {"a": 1, "b": "one"},
            (2,): {"a": 2, "b": "updated"},
        }
        assert daemon.stop() == 0
        source.execute("ALTER TABLE log REPLICA IDENTITY FULL; CREATE UNIQUE INDEX ON log (a)")
        keys = '[source.keys]\n"public.log" = ["a"]\n'
        path = write_config(tmp_path, database, servers.bootstrap, prefix, keys)
        refused = tailrace("run", "--config", str(path))
        assert (refused.returncode, "ERROR  TR-133" in refused.stderr) == (3, True), refused.stderr
        for command in ("tailrace table remove public.log", "tailrace table add public.log"):
            assert command in refused.stderr
            assert tailrace(*command.split()[1:], "--config", str(path)).returncode == 0
        daemon = stack.enter_context(running(path))
        assert wait_for_state(config, source)
        assert latest(_records(servers, config, "log")) == {(1,): {"a": 1, "b": "one"}}
        source.execute("UPDATE log SET b = 'updated'; UPDATE item SET b = 'updated'")
        wait_for_state(config, source)
        assert latest(_records(servers, config, "log")) == {(1,): {"a": 1, "b": "updated"}}
        assert latest(_records(servers, config, "item")) == {(1,): {"id": 1, "b": "updated"}}
        assert daemon.stop() == 0
        assert {event["table"] for event in events(daemon, "table copied") if event.get("run", 0) > 1} == {
            "public.event", "public.log",
        }  # fmt: skip
        assert _settings(servers, config, "event", "cleanup.policy") == ["compact"], "since the second start"
        assert _settings(servers, config, "log", "cleanup.policy") == ["delete"], "it has just got its key"
