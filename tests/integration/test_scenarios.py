"""Test scenarios of other projects, each named after its source; one daemon runs through all of them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.postgres.connect import conninfo_for
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.snapshot.verify.source_at import source_at
from tests.support.daemon import Daemon, running, tailrace, wait_for, wait_for_state, write_config
from tests.support.servers import fresh_database
from tests.support.topics import TopicRecord, assert_once_in_order, latest, read_topic

_LONG_AGO_MS = 915_148_800_000
"""1999-01-01 UTC, before PostgreSQL's own epoch."""

_TABLES = """
CREATE TABLE parallel (id int PRIMARY KEY, t text);
CREATE TABLE copied (id int PRIMARY KEY, t text);
CREATE TABLE keys (id int PRIMARY KEY, t text);
INSERT INTO keys SELECT g, 'before' FROM generate_series(1, 10) g;
CREATE TABLE identity_key (id int PRIMARY KEY, a int NOT NULL, b text NOT NULL, t text);
CREATE UNIQUE INDEX identity_index ON identity_key (b, a);
ALTER TABLE identity_key REPLICA IDENTITY USING INDEX identity_index;
INSERT INTO identity_key VALUES (1, 1, 'x', 'before');
CREATE TABLE parent (id int PRIMARY KEY, t text);
CREATE TABLE child (more text, PRIMARY KEY (id)) INHERITS (parent);
CREATE TABLE grandchild (PRIMARY KEY (id)) INHERITS (child);
INSERT INTO parent VALUES (1, 'parent'), (2, 'parent');
INSERT INTO child VALUES (1, 'child', 'x'), (3, 'child', 'x');
INSERT INTO grandchild VALUES (1, 'grandchild', 'x'), (4, 'grandchild', 'x');
CREATE TABLE emptied (id int PRIMARY KEY, t text);
CREATE TABLE emptied_child (id int PRIMARY KEY, emptied int REFERENCES emptied);
INSERT INTO emptied VALUES (1, 'before'), (2, 'before');
INSERT INTO emptied_child VALUES (1, 1);
CREATE TABLE prepared (id int PRIMARY KEY, t text);
CREATE TABLE origins (id int PRIMARY KEY, t text);
CREATE TABLE resumed (id int PRIMARY KEY, t text);
CREATE TABLE arrays (id int PRIMARY KEY, odd int[], sparse text[]);
INSERT INTO arrays VALUES (1, '{{1,2},{3,4}}', '[0:1]={a,b}')
"""

_MANY = 12_000


@dataclass
class World:
    """Topics and tables after all scenarios."""

    bootstrap: str
    config: Config
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]]

    def records(self, table: str) -> list[TopicRecord]:
        return read_topic(self.bootstrap, self.config.kafka.prefix, f"public.{table}")

    def hold(self, table: str) -> list[TopicRecord]:
        """Compare a topic with its table; return its records."""
        records = self.records(table)
        assert_once_in_order(records)
        assert latest(records) == self.tables[table]
        return records


@pytest.fixture(scope="module")
def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    prefix = f"s{time.time_ns() % 10**10}"
    with fresh_database(servers.dsn) as dsn:
        more = "[delivery]\nmax_transaction_bytes = 65536\n"
        path = write_config(tmp_path_factory.mktemp("scenarios"), dsn, servers.bootstrap, prefix, more)
        path.write_text(
            path.read_text().replace("[source]", '[source]\nas_text = ["public.arrays.odd", "public.arrays.sparse"]')
        )
        config = load(path)
        with psycopg.connect(dsn, autocommit=True) as connection, psycopg.connect(dsn) as parallel:
            connection.execute(_TABLES.encode())
            _play(path, config, connection, parallel)
            yield World(servers.bootstrap, config, _rows(connection))


def _play(path: Path, config: Config, connection: psycopg.Connection[Any], parallel: psycopg.Connection[Any]) -> None:
    parallel.execute("INSERT INTO parallel VALUES (1, 'open when the slot was made')")
    with running(path) as daemon:
        _wait_for_blocked_walsender(connection)
        connection.execute("INSERT INTO parallel VALUES (2, 'begun and ended meanwhile')")
        parallel.commit()
        wait_for_state(config, connection)
        for statement in filter(str.strip, _CHANGES.split(";")):
            connection.execute(statement.encode())
        _prepare(connection)
        wait_for_state(config, connection)
        with connection.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as copy:
            for n in range(_MANY):
                copy.write_row((n, "x" * 100))
        _kill_in_mid_transaction(config, daemon)
    connection.execute("SELECT pg_replication_origin_create(%s)", (config.source.slot,))
    try:
        with running(path) as daemon:
            wait_for_state(config, connection)
            _from_elsewhere(connection, config.source.slot)
            _kill_in_mid_transaction(config, daemon)
        with running(path) as daemon:
            wait_for_state(config, connection)
            connection.execute("INSERT INTO resumed VALUES (1, 'before')")
            connection.execute("SELECT pg_logical_emit_message(false, 'test', 'the last event')")
            connection.execute("COMMIT PREPARED 'across a restart'")
            wait_for_state(config, connection)
            assert daemon.stop() == 0
        connection.execute("INSERT INTO resumed VALUES (2, 'while it was down')")
        with running(path) as daemon:
            wait_for_state(config, connection)
            assert daemon.stop() == 0
    finally:
        connection.execute("SELECT pg_replication_origin_drop(%s)", (config.source.slot,))


_CHANGES = """
UPDATE keys SET id = -id WHERE id <= 3;
BEGIN;
DELETE FROM keys WHERE id = 4; INSERT INTO keys VALUES (4, 'again');
INSERT INTO keys VALUES (20, 'new'); UPDATE keys SET t = 'newer' WHERE id = 20; DELETE FROM keys WHERE id = 20;
UPDATE keys SET id = 100 WHERE id = 5; UPDATE keys SET id = 5 WHERE id = 6; UPDATE keys SET id = 6 WHERE id = 100;
COMMIT;
UPDATE identity_key SET id = 2, t = 'the key stays'; UPDATE identity_key SET b = 'y';
UPDATE parent SET t = t || '!'; DELETE FROM ONLY parent WHERE id = 2; INSERT INTO child VALUES (5, 'child', 'y');
BEGIN;
INSERT INTO emptied VALUES (3, 'gone at once'); TRUNCATE emptied RESTART IDENTITY CASCADE;
INSERT INTO emptied VALUES (1, 'after'); INSERT INTO emptied_child VALUES (7, 1);
COMMIT;
INSERT INTO arrays VALUES (2, '{}', '{{{x}}}'); UPDATE arrays SET odd = '[-1:0]={5,NULL}' WHERE id = 1
"""


def _prepare(connection: psycopg.Connection[Any]) -> None:
    for n, gid in enumerate(["committed", "rolled back", "across a restart"]):
        connection.execute("BEGIN")
        connection.execute("INSERT INTO prepared VALUES (%s, %s)", (n, gid))
        connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
    connection.execute("COMMIT PREPARED 'committed'")
    connection.execute("ROLLBACK PREPARED 'rolled back'")


def _from_elsewhere(connection: psycopg.Connection[Any], origin: str) -> None:
    """Run a large transaction that was replicated from another server, with its time there."""
    connection.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
    connection.execute("BEGIN")
    connection.execute("SELECT pg_replication_origin_xact_setup('0/ABCDEF', '1999-01-01 00:00:00+00')")
    connection.execute(b"INSERT INTO origins SELECT g, repeat('y', 100) FROM generate_series(1, %s::int) g", (_MANY,))
    connection.execute("COMMIT")
    connection.execute("SELECT pg_replication_origin_session_reset()")


def _wait_for_blocked_walsender(connection: psycopg.Connection[Any]) -> None:
    deadline = time.monotonic() + 30
    query = "SELECT FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event_type = 'Lock'"
    while not connection.execute(f"{query} AND datname = current_database()".encode()).rowcount:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _kill_in_mid_transaction(config: Config, daemon: Daemon) -> None:
    wait_for(config, lambda record: record.open is not None)
    daemon.kill()


def _rows(connection: psycopg.Connection[Any]) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Return the rows of each table by the key that its topic has."""
    keys = {name: ["id"] for name in re.findall(r"CREATE TABLE (\w+)", _TABLES)} | {"identity_key": ["a", "b"]}
    found = {}
    for table, key in keys.items():
        cursor = connection.cursor(row_factory=dict_row)
        columns = "id, odd::text, sparse::text" if table == "arrays" else "*"
        cursor.execute(f"SELECT {columns} FROM ONLY {table}".encode())
        found[table] = {tuple(row[name] for name in key): row for row in cursor}
    return found


def test_debezium_exported_snapshot_should_not_skip_record_of_parallel_tx(world: World) -> None:
    records = world.hold("parallel")
    assert sorted(record.key for record in records) == [(1,), (2,)]


def test_debezium_should_not_lose_events_when_multiple_dml_events_share_same_lsn(world: World) -> None:
    """COPY writes many rows with one WAL record; after a kill in their midst, each comes once."""
    records = world.hold("copied")
    assert len(records) == _MANY
    lsns = {record.value["source"]["lsn"] for record in records if record.value}
    assert len(lsns) < _MANY / 10


def test_debezium_should_rewrite_identity_key(world: World) -> None:
    """The key is the identity index; other changes leave it as it is, a change of it moves the row."""
    records = world.hold("identity_key")
    assert [(record.key, record.value and record.value["op"]) for record in records if record.key == (1, "x")] == [
        ((1, "x"), "r"),
        ((1, "x"), "u"),
        ((1, "x"), "d"),
        ((1, "x"), None),
    ]


def test_debezium_should_preserve_origin_info_after_connector_restart_mid_transaction(world: World) -> None:
    records = world.hold("origins")
    assert len(records) == _MANY
    assert {record.value["source"]["ts_ms"] for record in records if record.value} == {_LONG_AGO_MS}


def test_debezium_should_resume_streaming_after_restart_when_last_event_was_non_transactional_message(
    world: World,
) -> None:
    assert len(world.hold("resumed")) == 2


def test_peerdb_update_pkey(world: World) -> None:
    world.hold("keys")


def test_peerdb_ctid_multi_level_inherited(world: World) -> None:
    """A parent's topic has only the parent's own rows, by snapshot and by stream."""
    dsn = world.config.source.dsn.get_secret_value()
    names = [("public", table) for table in ("parent", "child", "grandchild")]
    with source_at(conninfo_for(dsn, replication=True), conninfo_for(dsn), names, 30) as source:
        verified = {name: {(row[0],) for row in source.rows(name, ["id"], None)} for name in names}
    for schema, table in names:
        records = world.hold(table)
        assert {record.value["source"]["table"] for record in records if record.value} == {table}
        assert verified[schema, table] == {(str(row["id"]),) for row in world.tables[table].values()}


def test_materialize_truncate(world: World) -> None:
    records = world.hold("emptied")
    assert sum(record.key == () for record in records) == world.config.kafka.partitions
    world.hold("emptied_child")


def test_materialize_types_array_of_more_dimensions_as_text(world: World) -> None:
    world.hold("arrays")


def test_two_phase_transactions_come_whole_at_their_commit(world: World) -> None:
    """With slots without two_phase; also if the daemon has restarted since the PREPARE."""
    records = world.hold("prepared")
    assert [record.key for record in sorted(records, key=lambda record: record.position)] == [(0,), (2,)]


def test_materialize_row_level_security(servers: Servers, tmp_path: Path, database: str, prefix: str) -> None:
    role = sql.Identifier(prefix)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int, tenant int, PRIMARY KEY (id, tenant)) PARTITION BY LIST (tenant);"
            "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); ALTER TABLE t1 ENABLE ROW LEVEL SECURITY;"
            "CREATE POLICY own ON t1 USING (id = 1); CREATE PUBLICATION tailrace FOR TABLE t"
        )
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(role))
        connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {}").format(role))
        try:
            path = write_config(tmp_path, re.sub("//[^@]*@", f"//{prefix}@", database), servers.bootstrap, prefix)
            done = tailrace("run", "--config", str(path))
            assert done.returncode == 4, done.stderr
            assert "TR-213" in done.stderr
            assert f'table "t1" hides rows from role "{prefix}"' in done.stderr
            assert f'ALTER ROLE "{prefix}" BYPASSRLS' in done.stderr
            assert connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", (prefix,)).rowcount == 0
            bypass = sql.SQL("ALTER ROLE {} BYPASSRLS").format(role)
            connection.execute(bypass)
            with running(path) as daemon:
                wait_for_state(load(path), connection)
                assert daemon.stop() == 0
            connection.execute(sql.SQL("ALTER ROLE {} NOBYPASSRLS").format(role))
            connection.execute("INSERT INTO t VALUES (1, 1), (2, 1)")
            with running(path) as daemon:
                assert wait_for(load(path), lambda record: bool(record.parked)).parked == {"public.t1": "TR-213"}
                connection.execute(bypass)
                assert tailrace("table", "resume", "t1", "--config", str(path)).returncode == 0
                wait_for_state(load(path), connection)
                assert daemon.stop() == 0
            assert set(latest(read_topic(servers.bootstrap, prefix, "public.t1"))) == {(1, 1), (2, 1)}
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
