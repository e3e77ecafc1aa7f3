"""Changes that cannot be stored exactly: each is a dead letter once, whatever is killed.

The table's topic has exactly the rows that can be stored, as PostgreSQL has them now.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import POSITION_HEADER
from tailrace.schemas.lsn import Position
from tests.support.daemon import events, running, tailrace, wait_for, wait_for_state, write_config
from tests.support.topics import assert_once_in_order, latest, read_raw, read_topic
from tests.support.verified import differing_keys

_SOURCE = """[source]
on_error = "divert"
exclude = ["public.*.secret"]
mask = { "public.price.phone" = 2 }
"""
_MORE = "[snapshot]\nchunk_bytes = 32768\n[delivery]\nmax_transaction_ms = 10\nmax_transaction_bytes = 65536\n"

# Rows that cannot be stored, as an SQL condition, and the key.
_BAD = {
    "price": ("id", "price = 'NaN'"),
    "moment": (
        "id",
        "coalesce(at > '294247-01-10 04:00:54.775806+00' AND isfinite(at), false)"
        " OR coalesce(array_ndims(n), 1) > 1 OR coalesce(array_lower(n, 1), 1) <> 1",
    ),
    "keyed": ("code", "code = 'NaN'"),
}
_SHOWN = {"phone": "repeat('*', char_length(phone) - 2) || right(phone, 2)"}

# Statements and the dead letters that they must produce: table, operation, key, column.
_CHANGES: list[tuple[str, list[tuple[str, str, str, str]]]] = [
    ("INSERT INTO price (id, price) VALUES (90001, 'NaN')", [("price", "c", "90001", "price")]),
    ("INSERT INTO price (id, price) VALUES (90002, 1)", []),
    ("UPDATE price SET price = 'NaN', big = repeat('b', 9000) WHERE id = 90002", [("price", "u", "90002", "price")]),
    (
        "UPDATE price SET phone = 'call-him' WHERE id = 90002",
        [("price", "u", "90002", "price")],
    ),  # big is not in the WAL
    ("UPDATE price SET price = 2 WHERE id = 90002", []),  # can be stored again
    ("INSERT INTO price (id, price) VALUES (90003, 1)", []),
    ("UPDATE price SET price = 'NaN', id = 90004 WHERE id = 90003", [("price", "u", "90004", "price")]),
    ("UPDATE price SET price = 3, id = 90003 WHERE id = 90004", []),
    ("DELETE FROM price WHERE id = 90001", []),  # the WAL has only its key
    ("UPDATE price SET price = 'NaN' WHERE id = 1", [("price", "u", "1", "price")]),
    ("INSERT INTO moment VALUES (1, '294270-01-01', '{1}')", [("moment", "c", "1", "at")]),
    (
        "UPDATE moment SET at = '2024-01-02 03:04:05+00' WHERE id = 1",
        [("moment", "u", "1", "at")],
    ),  # can be stored again, but its old image cannot
    ("UPDATE moment SET n = '{{1},{2}}' WHERE id = 1", [("moment", "u", "1", "n")]),
    ("INSERT INTO moment VALUES (2, 'infinity', '[2:3]={1,2}')", [("moment", "c", "2", "n")]),
    ("DELETE FROM moment WHERE id = 2", [("moment", "d", "2", "n")]),
    ("INSERT INTO moment VALUES (3, '2024-01-02', '{1}')", []),
    ("UPDATE moment SET n = '{{1}}', id = 4 WHERE id = 3", [("moment", "u", "4", "n")]),
    ("UPDATE moment SET n = '{1,NULL}', at = NULL, id = 5 WHERE id = 4", [("moment", "u", "5", "n")]),
    ("INSERT INTO keyed VALUES ('NaN', 'a')", [("keyed", "c", "NaN", "code")]),
    ("UPDATE keyed SET v = 'b'", [("keyed", "u", "NaN", "code")]),
    ("UPDATE keyed SET code = 7", [("keyed", "u", "7.00", "code")]),
    ("UPDATE keyed SET code = 'NaN'", [("keyed", "u", "NaN", "code")]),
    ("INSERT INTO keyed VALUES (8, 'a')", []),
    ("DELETE FROM keyed WHERE code = 'NaN'", [("keyed", "d", "NaN", "code")]),
]


@pytest.fixture
def config(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Config:
    path = write_config(tmp_path, database, servers.bootstrap, prefix, _MORE)
    path.write_text(path.read_text().replace("[source]\n", _SOURCE))
    return load(path)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True, options="-c timezone=UTC") as connection:
        connection.execute(
            "CREATE TABLE price (id int PRIMARY KEY, price numeric(10,2), secret text, phone text, big text);"
            "CREATE TABLE moment (id int PRIMARY KEY, at timestamptz, n int[]);"
            "CREATE TABLE keyed (code numeric(6,2) PRIMARY KEY, v text);"
            "ALTER TABLE price ALTER big SET STORAGE EXTERNAL; ALTER TABLE moment REPLICA IDENTITY FULL;"
            "INSERT INTO price SELECT g, CASE WHEN g % 10 = 0 THEN numeric 'NaN' ELSE g END, 'SECRET' || g,"
            " 'call-me-' || g, repeat('x', 500) FROM generate_series(1, 8000) g"
        )
        yield connection


def test_each_refused_change_is_a_dead_letter_once(
    servers: Servers, config: Config, connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    path = tmp_path / "tailrace.toml"
    expected: Counter[tuple[str, str, str, str]] = Counter()
    with running(path) as daemon:
        wait_for(config, lambda record: record.incomplete_tables and record.diverted)
        daemon.kill()
        assert 0 < len(_letters(servers, config)) < 800
    expected += _change(connection, _CHANGES[:10])
    with running(path) as daemon:
        wait_for_state(config, connection, 180)
        assert events(daemon, "snapshot resumed in windows")
        expected += _change(connection, _CHANGES[10:])
        connection.execute(
            "INSERT INTO price (id, price) SELECT g, CASE WHEN g % 5 = 0 THEN numeric 'NaN' ELSE 1 END"
            " FROM generate_series(100000, 109999) g"
        )
        expected += Counter(("price", "c", str(g), "price") for g in range(100000, 110000, 5))
        wait_for(config, lambda record: record.open is not None and record.here.flushed_lsn)
        daemon.kill()
    with running(path) as daemon:
        cut = wait_for_state(config, connection, 180)
        letters = _letters(servers, config)
        found = Counter(_named(letter) for letter in letters if letter["op"] != "r")
        assert found == expected
        read = Counter(_named(letter) for letter in letters if letter["op"] == "r")
        read.pop(("price", "r", "1", "price"), None)  # changed between the parts of the snapshot
        assert read == Counter(("price", "r", str(g), "price") for g in range(10, 8001, 10))
        assert wait_for(config, lambda record: record.is_state).diverted == len(letters)
        status = tailrace("status", "--config", str(path), "--json")
        topics = json.loads(status.stdout)["topics"]
        assert (topics["diverted"], topics["diverted_uncounted"]) == (len(letters), 0)
        by_table = Counter(f"public.{letter['table']}" for letter in letters)
        assert {table: each["changes"] for table, each in topics["diverted_tables"].items()} == by_table
        for table, (key, bad) in _BAD.items():
            records = read_topic(servers.bootstrap, config.kafka.prefix, f"public.{table}")
            assert_once_in_order(records)
            rows = {tuple(map(str, key)): row for key, row in latest(records).items()}
            assert {key: _shown(row) for key, row in rows.items()} == _rows(connection, table, key, f"NOT ({bad})")
            # the newest letter of a row has the values that the topic lacks
            newest = {letter["new"][key]: letter for letter in letters if letter["table"] == table and letter["new"]}
            for (name,), row in _rows(connection, table, key, bad).items():
                letter = newest[name]
                assert letter["new"] == {column: row[column] for column in row if column not in letter["unchanged"]}
        assert differing_keys(config, "price") == len(_rows(connection, "price", "id", _BAD["price"][1]))
        assert cut.offsets[f"{config.kafka.prefix}.tailrace.dead"][0] >= len(letters)
        assert daemon.stop() == 0
    raw = b"".join(message.value() for message in read_raw(servers.bootstrap, f"{config.kafka.prefix}.tailrace.dead"))
    assert not any(leaked in raw + daemon.log.read_bytes() for leaked in (b"SECRET", b"secret", b"call"))
    assert events(daemon, "changes diverted")[0].items() >= {"table": "public.price", "column": "price"}.items()


def _change(
    connection: psycopg.Connection[Any], changes: list[tuple[str, list[tuple[str, str, str, str]]]]
) -> Counter[tuple[str, str, str, str]]:
    for statement, _ in changes:
        connection.execute(statement.encode())
    return Counter(letter for _, letters in changes for letter in letters)


def _letters(servers: Servers, config: Config) -> list[dict[str, Any]]:
    """Return all dead letters in order; positions are unique, and headers agree with values."""
    letters = []
    before = Position(0, 0, 0)
    for message in read_raw(servers.bootstrap, f"{config.kafka.prefix}.tailrace.dead"):
        letter = json.loads(message.value())
        position = Position.from_bytes(dict(message.headers())[POSITION_HEADER])
        assert letter["position"]["ordinal"] == position.ordinal
        assert before < position
        before = position
        assert letter["schema"] == "public"
        keys = {texts.get("code") for texts in (letter["old"], letter["new"]) if texts}
        assert (message.key() is None) == (keys == {"NaN"})
        letters.append(letter)
    return letters


def _named(letter: dict[str, Any]) -> tuple[str, str, str, str]:
    key = _BAD[letter["table"]][0]
    return letter["table"], letter["op"], (letter["new"] or letter["old"])[key], letter["column"]


def _rows(connection: psycopg.Connection[Any], table: str, key: str, where: str) -> dict[tuple[str], dict[str, Any]]:
    """Return the rows as PostgreSQL prints them."""
    with connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(f"SELECT * FROM {table} LIMIT 0".encode())
        names = [column.name for column in cursor.description or () if column.name != "secret"]
        shown = ", ".join(f"{_SHOWN.get(name, f'{name}::text')} AS {name}" for name in names)
        cursor.execute(f"SELECT {shown} FROM {table} WHERE {where}".encode())
        return {(row[key],): row for row in cursor}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row of the topic to PostgreSQL's text; it handles the few arrays and times of this test."""

    def text(value: Any) -> str | None:
        if isinstance(value, list):
            return "{" + ",".join("NULL" if item is None else str(item) for item in value) + "}"
        if hasattr(value, "isoformat"):
            return str(value.isoformat(sep=" ")).replace("+00:00", "+00")
        return None if value is None else str(value)

    return {name: text(value) for name, value in row.items()}
