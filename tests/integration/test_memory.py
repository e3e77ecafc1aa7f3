"""The memory limit of the real process: rows that are huge or too large for Kafka, and many tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.errors import SourceError
from tests.support.daemon import running, wait_for, wait_for_state, write_config
from tests.support.topics import latest, read_raw, read_topic

_MIB = 2**20
_TABLES = 100


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        # random digits, so that neither PostgreSQL nor librdkafka can compress them
        connection.execute(
            "CREATE TABLE doc (id int PRIMARY KEY, body text); ALTER TABLE doc ALTER body SET STORAGE EXTERNAL;"
            "CREATE FUNCTION noise(mib numeric) RETURNS text LANGUAGE sql VOLATILE AS"
            " $$ SELECT string_agg(md5(random()::text), '') FROM generate_series(1, mib * 32768) $$"
        )
        yield connection


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_huge_rows_in_one_transaction_stay_below_the_memory_limit(
    connection: psycopg.Connection[Any], servers: Servers, database: str, prefix: str, tmp_path: Path, streaming: str
) -> None:
    """The rows are as large as Kafka accepts, and together much larger than the memory limit."""
    source = f'streaming = {streaming}\nspool_dir = "{tmp_path}"\n'
    path = write_config(tmp_path, database, servers.bootstrap, prefix, source=source)
    config = load(path)
    connection.execute("CREATE TABLE template AS SELECT noise(15) AS body")
    with running(path, forked=False) as daemon:
        wait_for(config, lambda record: record.is_state)
        connection.execute("INSERT INTO doc SELECT g, g || body FROM template, generate_series(1, 12) g")
        connection.execute("UPDATE doc SET body = body || 'x' WHERE id < 3")
        wait_for_state(config, connection, 120)
        assert daemon.peak_bytes < config.memory.limit
        assert daemon.stop() == 0
    rows = latest(read_topic(servers.bootstrap, prefix, "public.doc"))
    template = connection.execute("SELECT body FROM template").fetchone()
    assert template is not None
    for id in range(1, 13):
        assert rows[id,]["body"] == f"{id}{template[0]}" + ("x" if id < 3 else "")


def test_rows_too_large_for_kafka_are_diverted(
    connection: psycopg.Connection[Any], servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    path = write_config(tmp_path, database, servers.bootstrap, prefix, source="on_error = 'divert'\n")
    config = load(path)
    connection.execute("INSERT INTO doc SELECT 1, noise(20)")
    connection.execute("INSERT INTO doc VALUES (2, 'small')")
    with running(path, forked=False) as daemon:
        wait_for(config, lambda record: record.is_state)
        connection.execute("INSERT INTO doc SELECT 3, noise(31)")
        connection.execute("UPDATE doc SET body = noise(17) WHERE id = 2")
        wait_for_state(config, connection, 120)
        assert daemon.peak_bytes < config.memory.limit
        connection.execute("INSERT INTO doc SELECT 4, noise(120)")
        connection.execute("INSERT INTO doc VALUES (5, 'small')")
        connection.execute("UPDATE doc SET body = 'small again' WHERE id = 3")
        wait_for_state(config, connection, 120)
        assert daemon.peak_bytes < 64 * _MIB + 2.2 * 120 * _MIB
        assert daemon.stop() == 0
    rows = latest(read_topic(servers.bootstrap, prefix, "public.doc"))
    assert {key: row["body"] for (key,), row in rows.items()} == {3: "small again", 5: "small"}
    letters = [json.loads(message.value()) for message in read_raw(servers.bootstrap, f"{prefix}.tailrace.dead")]
    named = [(letter["op"], letter["new"], letter["left_out_bytes"] // _MIB) for letter in letters]
    assert named == [("r", {"id": "1"}, 20), ("c", {"id": "3"}, 31), ("u", {"id": "2"}, 17), ("c", {"id": "4"}, 120)]
    assert all(letter["table"] == "doc" and letter["column"] is None for letter in letters)
    assert all(letter["position"]["commit_lsn"] for letter in letters)


def test_a_row_too_large_for_kafka_stops_the_daemon(
    connection: psycopg.Connection[Any], servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    path = write_config(tmp_path, database, servers.bootstrap, prefix, source="on_table_error = 'stop'\n")
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        connection.execute("INSERT INTO doc SELECT 1, noise(20)")
        assert daemon.process.wait(30) == SourceError.exit_code
        said = daemon.log.read_text()
        assert "TR-304" in said
        assert "public.doc" in said
        assert 'exclude = [\\"public.doc.body\\"]' in said


def test_a_hundred_tables_stay_below_the_memory_limit(
    connection: psycopg.Connection[Any], servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    for n in range(_TABLES):
        connection.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, a text, b numeric(9,2), c timestamptz)".encode())
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    config = load(path)
    for change in range(2):
        with running(path, forked=False) as daemon:
            wait_for(config, lambda record: record.is_state)
            for n in range(_TABLES):
                connection.execute(f"INSERT INTO t{n} VALUES ({change}, 'x', 1.25, now())".encode())
            cut = wait_for_state(config, connection)
            assert daemon.peak_bytes < config.memory.limit
            assert daemon.stop() == 0
    counts = [sum(cut.offsets[f"{prefix}.public.t{n}"]) for n in range(_TABLES)]
    assert min(counts) >= 2
