"""Random tables of all types: fastavro and Java read PostgreSQL's own text, by snapshot and stream.

The seed is printed; `TAILRACE_SEED` sets another.
"""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.postgres.connect import conninfo_for
from tailrace.schemas.avro import without_logical_types
from tailrace.schemas.config.file import load
from tailrace.schemas.envelope import SNAPSHOT_HEADER
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import read_schemas
from tailrace.snapshot.verify.canonical import from_text, row_of
from tailrace.snapshot.verify.value_kinds import Field, row_fields
from tests.support import literals
from tests.support.daemon import running, wait_for_state, write_config
from tests.support.java_avro import JavaAvro
from tests.support.random_tables import SETUP, Plan, Row, Table, plans, quote
from tests.support.servers import fresh_database
from tests.support.topics import read_raw

_SEED = int(os.environ.get("TAILRACE_SEED", "4"))
_TABLES = 24

_OTHER_SETTINGS = """
ALTER DATABASE {name} SET datestyle = 'SQL, DMY'; ALTER DATABASE {name} SET intervalstyle = 'sql_standard';
ALTER DATABASE {name} SET timezone = 'Asia/Kathmandu'; ALTER DATABASE {name} SET extra_float_digits = -15;
ALTER DATABASE {name} SET bytea_output = 'escape'
"""
"""Settings of a database must not change the values (Materialize's session-guc-change)."""

Rows = dict[int, Row]


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAvro]:
    with JavaAvro() as reader:
        yield reader


@pytest.fixture(scope="module")
def topics(
    servers: Servers, java: JavaAvro, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[_Topics, dict[str, tuple[Plan, Rows, Rows]]]]:
    """One daemon's topics of all tables, and each table with its rows at the snapshot and at the end."""
    print(f"TAILRACE_SEED={_SEED}")
    prefix = f"t{uuid.uuid4().hex[:10]}"
    drawn = [*plans(_TABLES, _SEED), *map(literals.plan, literals.LITERALS)]
    with fresh_database(servers.dsn) as dsn:
        path = write_config(tmp_path_factory.mktemp("random"), dsn, servers.bootstrap, prefix)
        path.write_text(path.read_text().replace("[source]", '[source]\nas_text = ["public.literal_*.*_text"]'))
        with psycopg.connect(conninfo_for(dsn), autocommit=True) as connection:
            connection.execute(SETUP.encode())
            connection.execute(_OTHER_SETTINGS.format(name=connection.info.dbname).encode())
            for plan in drawn:
                connection.execute(plan.table.create().encode())
                _insert(connection, plan.table, plan.before)
            before = [_printed(connection, plan.table) for plan in drawn]
            with running(path):
                wait_for_state(load(path), connection)
                for plan in drawn:
                    _change(connection, plan)
                after = [_printed(connection, plan.table) for plan in drawn]
                wait_for_state(load(path), connection)
        made = {plan.table.name: (plan, one, other) for plan, one, other in zip(drawn, before, after, strict=True)}
        yield _Topics(servers.bootstrap, path, prefix, java), made


@pytest.mark.parametrize("name", [f"t{n}" for n in range(_TABLES)])
def test_a_random_table_reads_as_postgresql_prints_it(
    topics: tuple[_Topics, dict[str, tuple[Plan, Rows, Rows]]], name: str
) -> None:
    plan, before, after = topics[1][name]
    topics[0].compare(plan.table, before, after)


@pytest.mark.parametrize("statement", literals.LITERALS)
def test_literals_of_other_projects_read_as_postgresql_prints_them(
    topics: tuple[_Topics, dict[str, tuple[Plan, Rows, Rows]]], statement: str
) -> None:
    plan, before, after = topics[1][f"literal_{statement.lower()}"]
    assert (len(before), len(after)) == (1, 3)
    topics[0].compare(plan.table, before, after)


def _insert(connection: psycopg.Connection[Any], table: Table, rows: Sequence[Row]) -> None:
    places = ", ".join(["%s"] * len(table.columns))
    for row in rows:
        connection.execute(f"INSERT INTO {table.name} VALUES ({places})".encode(), row)


def _change(connection: psycopg.Connection[Any], plan: Plan) -> None:
    """Insert as many rows again, change single columns and keys, move one row and delete one."""
    name = plan.table.name
    _insert(connection, plan.table, plan.after)
    for number, column, literal in plan.updates:
        update = f"UPDATE {name} SET {quote(column).replace('%', '%%')} = %s WHERE id = %s"
        connection.execute(update.encode(), (literal, number))
    connection.execute(f"UPDATE {name} SET id = id + 100 WHERE id = 2; DELETE FROM {name} WHERE id = 5".encode())


def _printed(connection: psycopg.Connection[Any], table: Table) -> Rows:
    """Return each row, and the items of its arrays, as the types' output functions print them.

    The settings are pinned. Items are queried by subscript, so that the test need not split an array's text as the
    product does.
    """
    asked = [
        f"(SELECT json_agg(CASE WHEN {quote(name)}[i] IS NOT NULL THEN format('%s', {quote(name)}[i]) END ORDER BY i)"
        f" FROM generate_subscripts({quote(name)}, 1) i)"
        for name, kind in table.columns
        if kind.endswith("[]")
    ]
    result = connection.execute(f"SELECT {', '.join(['*', *asked])} FROM {table.name}".encode()).pgresult
    assert result is not None
    found: Rows = {}
    for n in range(result.ntuples):
        texts = [result.get_value(n, column) for column in range(result.nfields)]
        printed = [None if text is None else text.decode() for text in texts]
        found[int(texts[0] or 0)] = printed
    return found


class _Topics:
    """The topics of a run, read by two libraries."""

    def __init__(self, bootstrap: str, config: Path, prefix: str, java: JavaAvro) -> None:
        self._bootstrap, self._prefix, self._java = bootstrap, prefix, java
        self._fields: dict[int, list[Field]] = {}
        self._plain: dict[int, Any] = {}
        for stored in read_schemas(load(config).kafka, Topics(prefix)):
            java.learn(stored.id, stored.schema)
            self._plain[stored.id] = fastavro.parse_schema(without_logical_types(json.loads(stored.schema)))
            if stored.subject.startswith(f"{prefix}.public.") and stored.subject.endswith("-value"):
                self._fields[stored.id] = row_fields(stored.schema)

    def compare(self, table: Table, before: Rows, after: Rows) -> None:
        shown: set[int] = set()
        latest: dict[bytes, Any] = {}
        for message in read_raw(self._bootstrap, f"{self._prefix}.public.{table.name}"):
            self._decoded(message.key())
            if message.value() is None:
                latest.pop(message.key(), None)
                continue
            value = self._decoded(message.value())
            fields = self._fields[int.from_bytes(message.value()[1:5], "big")]
            assert [field.column for field in fields] == [name for name, _ in table.columns]
            if SNAPSHOT_HEADER in dict(message.headers()):
                shown.add(value["after"]["id"])
                self._same(table, fields, value["after"], before)
            if value["op"] == "d" or (table.full and value["op"] == "u"):
                assert value["before"] is not None
            latest[message.key()] = (fields, value["after"])
        assert shown == before.keys()
        rows_now = [(fields, row) for fields, row in latest.values() if row is not None]
        assert sorted(row["id"] for _, row in rows_now) == sorted(after)
        for fields, row in rows_now:
            self._same(table, fields, row, after)

    def _decoded(self, framed: bytes) -> Any:
        """Decode with fastavro; Java must read the same, bit by bit."""
        schema = self._plain[int.from_bytes(framed[1:5], "big")]
        ours: Any = fastavro.schemaless_reader(io.BytesIO(framed[5:]), schema, None)
        assert _comparable(self._java.read(framed)) == _comparable(ours)
        return ours

    def _same(self, table: Table, fields: Sequence[Field], row: dict[str, Any], printed: Rows) -> None:
        texts = printed[row["id"]]
        items = iter(texts[len(fields) :])
        for (name, kind), field, text, read in zip(
            table.columns, fields, texts[: len(fields)], row_of(fields, row), strict=True
        ):
            wanted = from_text(field.form, text)
            asked = next(items) if kind.endswith("[]") else None
            if field.form.item is not None and asked is not None:
                wanted = [from_text(field.form.item, item) for item in json.loads(asked)]
            assert read == wanted, f"{name} of row {row['id']} in {table.create()}"


def _comparable(value: Any) -> str:
    """Return a text that differs for NaN, −0 and every other value, and ignores the order of a map."""
    return json.dumps(value, sort_keys=True, default=bytes.hex)
