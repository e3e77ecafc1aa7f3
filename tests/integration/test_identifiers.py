"""Names that PostgreSQL allows: quotes, dots, backslashes, percent signs, keywords, 63 bytes, Unicode.

Tested in the first snapshot, in windows, in the stream, and in rereads of large values that the WAL lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.topics import Topics
from tests.support.daemon import events, running, tailrace, wait_for, wait_for_state, write_config
from tests.support.topics import assert_once_in_order, latest, read_topic

_TABLES = [
    # Debezium: shouldIncludeTableWithBackSlashInName, and its quoted_"table"s
    ("public", "back\\slash"),
    ("public", 'quo"ted'),
    # PeerDB: Weird table names
    ("public", "-123"),
    ("public", "Mixed CASE. with;semicolon--"),
    # flink-cdc: similar table names with % and _
    ("public", "user%2"),
    ("public", "user_2"),
    ("public", "userx2"),
    ("public", "%s"),
    ("public", "%(name)s"),
    ("public", "{0}"),
    ("public", "it's"),
    ("public", "$1"),
    ("public", "[a-z]*?!"),
    ("public", "ünïcödé ☃ 表"),
    ("public", "tab\tand\nline"),
    ("select", "from"),
    ('sche.ma"%', "ta.ble"),
    ("s" * 63, "t" * 63),
]
_KEY = ('k"e.y %s', "where")
_COLUMNS = [
    (_KEY[0], "int"),
    ("large % \\", "text"),
    ("a.b", "text"),
    # all three have the same Avro name
    ("a_x2Eb", "text"),
    ("a_x2Eb_2", "text"),
    (_KEY[1], "text"),
    ("{}%(s)s", "int"),
    ("ü" * 31, "text"),
    ("c" * 63, "text"),
    ("1st", "int"),
]


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        for schema in {schema for schema, _ in _TABLES}:
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    path = write_config(tmp_path, database, servers.bootstrap, prefix, "[snapshot]\nchunk_bytes = 8192\n")
    path.write_text(path.read_text().replace("[kafka]", 'tables = ["*.*"]\n[kafka]'))
    return path


def _run(connection: psycopg.Connection[Any], table: tuple[str, str], statement: str) -> None:
    """Run a statement with the names of the table and some columns filled in."""
    key, where, large = (sql.Identifier(name) for name in (*_KEY, "large % \\"))
    names = {"t": sql.Identifier(*table), "key": key, "where": where, "large": large}
    connection.execute(sql.SQL(statement).format(**names))


def _create(connection: psycopg.Connection[Any], table: tuple[str, str]) -> None:
    columns = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in _COLUMNS
    )
    connection.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(*table), columns))
    _run(connection, table, "ALTER TABLE {t} ADD PRIMARY KEY ({key}, {where}), ALTER {large} SET STORAGE EXTERNAL")
    _run(
        connection,
        table,
        "INSERT INTO {t} SELECT g, repeat('large' || g, 700), 'dot', 'x2E', 'x2E_2', 'w', g, 'ü', repeat('c', 400), 1"
        " FROM generate_series(1, 60) g",
    )


def _assert_equal(connection: psycopg.Connection[Any], servers: Servers, config: Config) -> None:
    wait_for_state(config, connection)
    topics = Topics("")
    for table in _TABLES:
        records = read_topic(servers.bootstrap, config.kafka.prefix, topics.table(*table)[1:])
        assert_once_in_order(records)
        cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(*table)))
        rows = {(row[0], row[5]): row for row in cursor}
        assert {key: tuple(row.values()) for key, row in latest(records).items()} == rows, table


def _commands_know_the_names(config_path: Path) -> None:
    """A request names a table with quotes or without; an unknown name is answered with the nearest."""
    there = {f"{schema}.{name}" for schema, name in _TABLES}
    named = ['"sche.ma""%"."ta.ble"', 'public."it\'s"', "Mixed CASE. with;semicolon--", "select.from"]
    asked = tailrace("snapshot", "start", "--json", "--config", str(config_path), "--", *named)
    started = {each["table"] for each in json.loads(asked.stdout)["tables"]}
    assert started == {
        'sche.ma"%.ta.ble',
        "public.it's",
        "public.Mixed CASE. with;semicolon--",
        "select.from",
    }
    assert started <= there
    assert asked.returncode == 0, asked.stderr
    for command in ("tail", "-n", "1", "--from-start"), ("snapshot", "pause"), ("table", "add"):
        done = tailrace(*command, '"sche.ma""%"."ta.ble"', "--config", str(config_path))
        assert done.returncode == 0, done.stderr
    unknown = tailrace("table", "park", "sche.ma.ta.ble", "--config", str(config_path))
    assert unknown.returncode == 3
    assert 'Did you mean sche.ma"%.ta.ble' in unknown.stderr
    assert tailrace("snapshot", "resume", "--config", str(config_path)).returncode == 0


def test_unusual_names_work_in_snapshots_windows_and_the_stream(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    for table in _TABLES:
        _create(source, table)
    with config_path.open("a") as file:
        file.write("[delivery]\nmax_transaction_ms = 1\n")
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: 0 < len(record.incomplete_tables) < len(_TABLES))
        daemon.kill()
    with running(config_path) as daemon:
        # during the copy, so that windows have keys to leave to the stream
        for table in _TABLES:
            _run(source, table, "UPDATE {t} SET {key} = {key} + 1000 WHERE {key} % 9 = 0")
            _run(source, table, "UPDATE {t} SET {where} = 'other' WHERE {key} % 7 = 0")
        _assert_equal(source, servers, config)
        for table in _TABLES:
            _run(source, table, 'UPDATE {t} SET "1st" = 2 WHERE {key} % 5 = 0')
            _run(source, table, "DELETE FROM {t} WHERE {key} % 6 = 0")
            _run(source, table, "INSERT INTO {t} ({key}, {where}) VALUES (5000, '')")
        for schema, name in _TABLES:
            shown = tailrace("tail", f"{schema}.{name}", "--from-start", "-n", "1", "--config", str(config_path))
            assert shown.returncode == 0, shown.stderr
        _commands_know_the_names(config_path)
        _run(source, _TABLES[0], "TRUNCATE {t}")
        _assert_equal(source, servers, config)
        assert daemon.stop() == 0
    assert events(daemon, "snapshot resumed in windows")


@pytest.mark.parametrize(
    ("tables", "code"),
    [
        ([("public", "a.b"), ("public", "a_x2Eb")], "TR-125"),
        ([("select", "a_b"), ("public", "select_a"), ("public_select", "a")], "TR-125"),
        ([("tailrace", "progress")], "TR-125"),
        ([("public", "." * 63)], "TR-126"),
    ],
)
def test_names_without_a_topic_of_their_own_are_refused(
    source: psycopg.Connection[Any], config_path: Path, tables: list[tuple[str, str]], code: str
) -> None:
    for schema, table in tables:
        source.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        source.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(sql.Identifier(schema, table)))
    refused = tailrace("run", "--config", str(config_path))
    assert refused.returncode == 3
    assert code in refused.stderr
