"""Bad input is refused with one error, its remedy and exit code; nothing changes, without a traceback."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tailrace.cdc.check.finding import Severity
from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import Server, stop
from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.support.daemon import AT_ONCE, running, tailrace, wait_for, wait_for_state, write_config
from tests.support.refused import assert_found, assert_refused
from tests.support.servers import drop_slot
from tests.support.topics import latest, read_topic


def slots(dsn: str, name: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (name,)).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def config(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    return write_config(tmp_path, database, servers.bootstrap, prefix)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_an_unreachable_database_server_is_refused(tmp_path: Path, servers: Servers, prefix: str) -> None:
    port = free_port()
    config = write_config(tmp_path, f"postgresql://u:s3cret@127.0.0.1:{port}/d", servers.bootstrap, prefix, AT_ONCE)
    assert_refused(config, "TR-201", 4, f"127.0.0.1:{port}")
    assert "s3cret" not in tailrace("run", "--config", str(config)).stderr


def test_a_wal_level_other_than_logical_is_refused(tmp_path: Path, servers: Servers, prefix: str) -> None:
    started: list[Server] = []
    try:
        server = postgres.start(tmp_path / "postgres", None, {"wal_level": "replica"}, started.append)
        config = write_config(tmp_path, postgres.dsn(server), servers.bootstrap, prefix)
        assert_refused(config, "TR-202", 4, "ALTER SYSTEM SET wal_level = 'logical'")
        with psycopg.connect(postgres.dsn(server)) as connection:
            assert connection.execute("SELECT FROM pg_publication").fetchall() == []
    finally:
        for each in started:
            stop(each)


def test_an_unreachable_broker_is_refused_without_a_slot(
    tmp_path: Path, config: Path, database: str, prefix: str
) -> None:
    port = free_port()
    write_config(tmp_path, database, f"127.0.0.1:{port}", prefix, AT_ONCE)
    assert_refused(config, "TR-330", 5, f"127.0.0.1:{port}")
    assert slots(database, prefix) == 0


def test_a_role_without_replication_is_refused(
    tmp_path: Path, servers: Servers, config: Path, database: str, prefix: str
) -> None:
    with _role(database, prefix) as dsn:
        write_config(tmp_path, dsn, servers.bootstrap, prefix)
        assert_refused(config, "TR-203", 4, f'ALTER ROLE "{prefix}" REPLICATION')


@contextmanager
def _role(database: str, name: str) -> Iterator[str]:
    """Yield the DSN of a role that may do everything but replicate."""
    role = sql.Identifier(name)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        connection.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(role))
        connection.execute(sql.SQL("ALTER TABLE t OWNER TO {}").format(role))
        connection.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(connection.info.dbname), role)
        )
    try:
        yield re.sub("//[^@]*@", f"//{name}@", database)
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_database_without_an_encoding_is_refused(config: Path, servers: Servers, prefix: str) -> None:
    with psycopg.connect(servers.dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {prefix} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0".encode())
    try:
        text = config.read_text()
        database = conninfo_to_dict(load(config).source.dsn.get_secret_value())["dbname"]
        config.write_text(text.replace(f"/{database}", f"/{prefix}", 1))
        assert_refused(config, "TR-214", 4, prefix, "UTF8")
    finally:
        with psycopg.connect(servers.dsn, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {prefix}".encode())


def test_a_slot_with_two_phase_is_refused(config: Path, database: str, prefix: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (prefix,))
    assert_refused(config, "TR-208", 4, "two_phase")
    assert slots(database, prefix) == 1


def test_a_topic_without_compaction_is_refused(config: Path, servers: Servers, database: str, prefix: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    topic = f"{prefix}.public.t"
    for future in admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "delete"})]).values():
        future.result()
    assert_refused(config, "TR-302", 5, topic, "cleanup.policy=compact")
    assert slots(database, prefix) == 0


def test_a_missing_slot_is_refused_while_topics_exist(config: Path, database: str, prefix: str) -> None:
    with running(config) as daemon:
        wait_for(load(config), lambda record: record.is_state)
        daemon.stop()
    with psycopg.connect(database, autocommit=True) as connection:
        drop_slot(connection, prefix)
    assert_refused(config, "TR-402", 6, prefix)
    assert slots(database, prefix) == 0


def test_a_slot_advanced_by_hand_is_refused(config: Path, database: str, prefix: str) -> None:
    with running(config) as daemon:
        wait_for(load(config), lambda record: record.is_state)
        daemon.stop()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("INSERT INTO t VALUES (2)")
        connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (prefix,))
    assert_refused(config, "TR-401", 6, prefix, "bytes of WAL")


def test_an_unstorable_value_is_refused_until_its_column_is_text(
    config: Path, servers: Servers, database: str, prefix: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE prices (id int PRIMARY KEY, price numeric(10,2)); INSERT INTO prices VALUES (1, 2)"
        )
        with running(config) as daemon:
            wait_for_state(load(config), connection)
            daemon.stop()
        config.write_text(config.read_text().replace("[source]", '[source]\non_table_error = "stop"'))
        connection.execute("INSERT INTO prices VALUES (2, 'NaN')")
        remedy = 'as_text = ["public.prices.price"]'
        others = ('exclude = ["public.prices.price"]', 'on_table_error = "divert"')
        # before the value is read from the WAL, only its column can be named
        assert_found(load(config), "TR-907", Severity.NOTE)
        assert_refused(*(config, "TR-220", 4, '"price" (numeric(10,2))', "public.prices", remedy, *others), found=False)
        config.write_text(config.read_text().replace("[source]", f"[source]\n{remedy}"))
        with running(config):
            cut = wait_for_state(load(config), connection)
    records = read_topic(servers.bootstrap, prefix, "public.prices", cut.offsets[f"{prefix}.public.prices"])
    assert latest(records)[2,] == {"id": 2, "price": "NaN"}
