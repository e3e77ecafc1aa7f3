"""A table that cannot continue is parked and reported, others flow; once repaired, it is read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog import load_catalog

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.verify import verify
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, View, Warehouse
from tailrace.schemas.errors import SinkError
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewRecord, ViewsTopic, now_ms
from tests.support.daemon import (
    Daemon,
    ask,
    events,
    running,
    tailrace,
    wait_for,
    wait_for_state,
    wait_until,
    write_config,
)
from tests.support.topics import assert_once_in_order, latest, read_topic

POISON = "UPDATE prices SET price = 'NaN', cost = 'NaN' WHERE id = 3"


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE prices (id int PRIMARY KEY, price numeric(10,2), note text, cost numeric(10,2));"
            "CREATE TABLE other (id int PRIMARY KEY, n int);"
            "INSERT INTO prices SELECT g, g, 'note' FROM generate_series(1, 50) g;"
            "INSERT INTO other SELECT g, 0 FROM generate_series(1, 50) g"
        )
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    more = '[delivery]\nmax_transaction_ms = 50\n[health]\nlisten = "127.0.0.1:0"\n'
    return write_config(tmp_path, database, servers.bootstrap, prefix, more)


def equal(servers: Servers, config: Config, shop: psycopg.Connection[Any], table: str, columns: str) -> None:
    """Wait for a cut that is a state of one table with all present commits; compare topic and table."""
    target = wal_end(shop)
    shop.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
    name = f"public.{table}"
    record = wait_for(
        config,
        lambda found: found.open is None and name not in found.incomplete_tables and found.here.flushed_lsn >= target,
    )
    prefix = config.kafka.prefix
    records = read_topic(servers.bootstrap, prefix, name, record.here.offsets[f"{prefix}.{name}"])
    assert_once_in_order(records)
    source = shop.execute(f"SELECT {columns} FROM {table} ORDER BY 1".encode()).fetchall()
    found = sorted(tuple(after[column.strip()] for column in columns.split(",")) for after in latest(records).values())
    assert found == source


def wal_end(shop: psycopg.Connection[Any]) -> int:
    row = shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return parse_lsn(row[0])


def is_parked(config: Config, table: str) -> str:
    record = wait_for(config, lambda found: f"public.{table}" in found.parked)
    return record.parked[f"public.{table}"]


def test_a_refused_value_parks_only_its_table(
    servers: Servers, shop: psycopg.Connection[Any], config_path: Path
) -> None:
    config = load(config_path)
    with running(config_path) as daemon:
        equal(servers, config, shop, "prices", "id, note")
        more = "DELETE FROM prices WHERE id = 8; UPDATE prices SET note = 'x'"
        before = wal_end(shop)
        shop.execute(f"BEGIN; UPDATE other SET n = 1; {POISON}; UPDATE other SET n = 2; {more}; COMMIT")
        after = wal_end(shop)
        assert is_parked(config, "prices") == "TR-220"
        equal(servers, config, shop, "other", "id, n")
        (parked,) = events(daemon, "table parked")
        assert parked["table"] == "public.prices"
        assert parked["error"].startswith('values of columns "price" (numeric(10,2)), "cost" (numeric(10,2)) of table')
        assert "NaN" in parked["detail"]
        assert 'as_text = ["public.prices.price", "public.prices.cost"]' in parked["hint"]
        _is_told(config_path, daemon, before, after)
        # the parked table retains no WAL
        confirmed = "SELECT confirmed_flush_lsn > %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s"
        row = shop.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        shop.execute("UPDATE other SET n = 3; UPDATE prices SET note = 'y' WHERE id = 1")
        shop.execute("DELETE FROM prices WHERE id = 9")
        wait_until(lambda: shop.execute(confirmed, (row[0], config.source.slot)).fetchone() == (True,))
        daemon.kill()
    with running(config_path) as daemon:
        shop.execute("UPDATE other SET n = 4; TRUNCATE prices")
        shop.execute("INSERT INTO prices VALUES (1, 'NaN', 'again'), (2, 2, 'two')")
        equal(servers, config, shop, "other", "id, n")
        assert is_parked(config, "prices") == "TR-220"
        assert '"public.prices"' in ask(daemon, "/status")[1]  # parked by the process before
        resumed = tailrace("table", "resume", "prices", "--config", str(config_path))
        assert resumed.returncode == 0, resumed.stderr
        wait_until(lambda: len(events(daemon, "table parked")) == 2, 30)  # not repaired yet
        shop.execute("UPDATE prices SET price = 1 WHERE id = 1")
        assert tailrace("table", "resume", "prices", "--config", str(config_path)).returncode == 0
        equal(servers, config, shop, "prices", "id, note")
        equal(servers, config, shop, "other", "id, n")
        status = tailrace("status", "--config", str(config_path))
        assert (status.returncode, "PARKED" in status.stdout) == (0, False), status.stdout
        assert "parked" not in ask(daemon, "/status")[1]
        assert daemon.stop() == 0


def _is_told(config_path: Path, daemon: Daemon, before: int, after: int) -> None:
    """Check what status, lists, metrics and HTTP say; the poisoned commit is between both LSNs."""
    status = tailrace("status", "--config", str(config_path))
    assert status.returncode == 7, status.stdout
    assert "PARKED: public.prices (TR-220)" in status.stdout
    listed = tailrace("table", "list", "--config", str(config_path))
    assert listed.returncode == 0
    assert 'as_text = ["public.prices.price", "public.prices.cost"]' in listed.stdout
    assert "tailrace table resume public.prices" in listed.stdout
    tables = json.loads(tailrace("table", "list", "--json", "--config", str(config_path)).stdout)["tables"]
    found = {each["table"]: each["status"] for each in tables}
    assert found == {"public.other": "streaming", "public.prices": "parked"}
    assert 'tailrace_parked_tables{code="TR-220",table="public.prices"} 1.0' in ask(daemon, "/metrics")[1]
    (parked,) = (each for each in tables if each["status"] == "parked")
    assert before <= parse_lsn(parked["lsn"]) < after
    (line,) = (line for line in listed.stdout.splitlines() if line.startswith("public.prices "))
    assert line.split()[-2:] == [parked["since"], parked["lsn"]]
    for path in ("/readyz", "/status"):
        code, body = ask(daemon, path)
        assert code == 200
        shown = json.loads(body)["parked_tables"]
        assert shown == [{"table": "public.prices", "code": "TR-220", "since": parked["since"]}]


def test_a_value_refused_in_the_first_copy_parks_its_table(
    servers: Servers, shop: psycopg.Connection[Any], config_path: Path
) -> None:
    shop.execute(POISON)
    config = load(config_path)
    with running(config_path) as daemon:
        assert is_parked(config, "prices") == "TR-220"
        equal(servers, config, shop, "other", "id, n")
        shop.execute("UPDATE prices SET price = 3, cost = 3 WHERE id = 3")
        assert tailrace("table", "resume", "public.prices", "--config", str(config_path)).returncode == 0
        equal(servers, config, shop, "prices", "id, note")
        assert daemon.stop() == 0


def test_a_record_too_large_for_kafka_parks_its_table(
    servers: Servers, shop: psycopg.Connection[Any], config_path: Path
) -> None:
    config_path.write_text(config_path.read_text().replace("[kafka]", "[kafka]\nmax_message_bytes = 1048576"))
    config = load(config_path)
    shop.execute("CREATE TABLE events (n int, price numeric(10,2)); INSERT INTO events VALUES (1, 1)")
    with running(config_path):
        equal(servers, config, shop, "prices", "id, note")
        shop.execute("UPDATE prices SET note = repeat('x', 2000000) WHERE id = 7")
        assert is_parked(config, "prices") == "TR-304"
        shop.execute("UPDATE prices SET note = 'small' WHERE id = 7")
        assert tailrace("table", "resume", "prices", "--config", str(config_path)).returncode == 0
        equal(servers, config, shop, "prices", "id, note")
        _a_log_continues(servers, config, shop, config_path)


def _a_log_continues(servers: Servers, config: Config, shop: psycopg.Connection[Any], config_path: Path) -> None:
    """Once a table without a key is resumed, its topic is emptied and has each row once."""
    steps = (
        ("INSERT INTO events VALUES (2, 'NaN')", "TR-220", "DELETE FROM events WHERE n = 2"),
        (
            "ALTER TABLE events ALTER price TYPE text; INSERT INTO events VALUES (5, '5')",
            "TR-431",
            "TRUNCATE events; ALTER TABLE events ALTER price TYPE numeric(10,2) USING 0",
        ),
    )
    for n, (parked, code, mended) in enumerate(steps):
        shop.execute(parked.encode())
        assert is_parked(config, "events") == code
        shop.execute("INSERT INTO events VALUES (3, 3); UPDATE other SET n = n + 1")
        shop.execute(mended.encode())
        equal(servers, config, shop, "other", "id, n")
        resumed = tailrace("table", "resume", "events", "--config", str(config_path))
        assert resumed.returncode == 0, resumed.stderr
        assert "resumed: its topic is emptied and all rows are read" in resumed.stdout
        wait_for_state(config, shop)
        shop.execute("INSERT INTO events VALUES (%s, 4)", (10 + n,))
        wait_for_state(config, shop)
        records = read_topic(servers.bootstrap, config.kafka.prefix, "public.events")
        *_, truncated = (i for i, each in enumerate(records) if each.key == ())
        rest = sorted(each.value["after"]["n"] for each in records[truncated + 1 :] if each.value)
        assert rest == [each for (each,) in shop.execute("SELECT n FROM events ORDER BY n")]
        assert 10 + n in rest


@pytest.mark.parametrize("stopped", [False, True])
def test_a_table_that_lost_its_key_is_parked_left_out_and_resumed(
    servers: Servers, shop: psycopg.Connection[Any], config_path: Path, stopped: bool
) -> None:
    config = load(config_path)
    with ExitStack() as stack:
        daemon = stack.enter_context(running(config_path))
        equal(servers, config, shop, "prices", "id, note")
        if stopped:
            assert daemon.stop() == 0
        shop.execute("ALTER TABLE prices DROP CONSTRAINT prices_pkey; ALTER TABLE prices REPLICA IDENTITY FULL")
        if stopped:
            daemon = stack.enter_context(running(config_path))
        shop.execute("UPDATE prices SET note = 'without a key' WHERE id = 1")
        assert is_parked(config, "prices") == "TR-406"
        assert "tailrace table leave-out public.prices" in events(daemon, "table parked")[-1]["hint"]
        assert tailrace("table", "leave-out", "prices", "--config", str(config_path)).returncode == 0
        wait_for(config, lambda record: record.parked == {"public.prices": ""})
        assert tailrace("status", "--config", str(config_path)).returncode == 0
        shop.execute("UPDATE other SET n = 5")
        equal(servers, config, shop, "other", "id, n")
        shop.execute("ALTER TABLE prices ADD PRIMARY KEY (id); ALTER TABLE prices REPLICA IDENTITY DEFAULT")
        assert tailrace("table", "resume", "prices", "--config", str(config_path)).returncode == 0
        equal(servers, config, shop, "prices", "id, note")
        assert daemon.stop() == 0


def test_a_table_parked_by_an_operator_stays_so_until_resumed(
    servers: Servers, shop: psycopg.Connection[Any], config_path: Path
) -> None:
    config = load(config_path)
    with running(config_path) as daemon:
        equal(servers, config, shop, "prices", "id, note")
        assert tailrace("table", "park", "prices", "--config", str(config_path)).returncode == 0
        assert is_parked(config, "prices") == "TR-430"
        refused = tailrace("snapshot", "start", "prices", "--config", str(config_path))
        assert "tailrace table resume public.prices" in refused.stderr
        shop.execute("DELETE FROM prices WHERE id < 10; UPDATE other SET n = 6")
        shop.execute("ALTER TABLE prices ADD more int DEFAULT 4")
        equal(servers, config, shop, "other", "id, n")
        _is_left_out_of_verify(config, shop, config_path.parent)
        again = tailrace("table", "park", "prices", "--config", str(config_path))
        assert "parked already" in again.stdout
        assert tailrace("table", "resume", "prices", "--config", str(config_path)).returncode == 0
        equal(servers, config, shop, "prices", "id, note, more")
        assert daemon.stop() == 0


_DECLARED = """
CREATE TABLE keyed (a int NOT NULL UNIQUE, b text);
ALTER TABLE keyed REPLICA IDENTITY FULL;
CREATE TABLE part (a int, b int, c int, PRIMARY KEY (a, b));
CREATE TABLE wide (id int PRIMARY KEY, p_hidden text);
INSERT INTO keyed VALUES (1, 'one'); INSERT INTO part VALUES (1, 1, 1); INSERT INTO wide VALUES (1, 'one');
CREATE PUBLICATION tailrace FOR TABLE other, prices, keyed, part, wide
"""
_CHANGED = """
ALTER TABLE keyed DROP CONSTRAINT keyed_a_key;
ALTER PUBLICATION tailrace DROP TABLE part;
ALTER PUBLICATION tailrace ADD TABLE part (a, c);
ALTER TABLE wide ADD p_phone text
"""
_MENDED = """
ALTER TABLE keyed ADD CONSTRAINT keyed_a_key UNIQUE (a);
ALTER PUBLICATION tailrace DROP TABLE part;
ALTER PUBLICATION tailrace ADD TABLE part;
ALTER TABLE wide DROP p_phone
"""


def test_a_restart_parks_what_the_database_changed_and_refuses_what_the_configuration_changed(
    servers: Servers, shop: psycopg.Connection[Any], config_path: Path
) -> None:
    shop.execute(_DECLARED)
    written = config_path.read_text()
    options = 'exclude = ["public.wide.p_*"]\nmask = { "public.wide.*phone" = 0 }\n'
    config_path.write_text(written.replace("[source]", f'[source]\nkeys = {{ "public.keyed" = ["a"] }}\n{options}'))
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for_state(config, shop)
        assert daemon.stop() == 0
    shop.execute(_CHANGED)
    shop.execute("INSERT INTO keyed VALUES (2, 'two'); INSERT INTO wide VALUES (2, 'two'); UPDATE other SET n = 1")
    codes = {"public.keyed": "TR-124", "public.part": "TR-205", "public.wide": "TR-129"}
    with running(config_path) as daemon:
        equal(servers, config, shop, "other", "id, n")
        assert wait_for(config, lambda record: bool(record.parked)).parked == codes
        listed = tailrace("table", "list", "--config", str(config_path)).stdout
        assert 'CREATE UNIQUE INDEX CONCURRENTLY ON "public"."keyed" ("a");' in listed
        # a table that lacks a part of its key is no obstacle for a read of others
        read = tailrace("snapshot", "start", "other", "--config", str(config_path))
        assert read.returncode == 0, read.stderr
        equal(servers, config, shop, "other", "id, n")
        resumed = tailrace("table", "resume", "keyed", "part", "wide", "--config", str(config_path))
        assert resumed.returncode == 0, resumed.stderr
        wait_until(lambda: len(events(daemon, "table parked")) == 6)  # not mended yet
        for statement in _MENDED.strip().split(";"):  # one by one: together they could deadlock with a look
            shop.execute(statement.encode())
        resumed = tailrace("table", "resume", "keyed", "part", "wide", "--config", str(config_path))
        assert resumed.returncode == 0, resumed.stderr
        for table, columns in (("keyed", "a, b"), ("part", "a, b, c"), ("wide", "id")):
            equal(servers, config, shop, table, columns)
        assert daemon.stop() == 0
    config_path.write_text(config_path.read_text().replace('["a"]', '["b"]'))
    refused = tailrace("run", "--config", str(config_path))
    assert (refused.returncode, "ERROR  TR-124" in refused.stderr) == (3, True), refused.stderr
    config_path.write_text(config_path.read_text().replace('["b"]', '["a"]').replace(".p_*", ".id"))
    refused = tailrace("run", "--config", str(config_path))
    assert (refused.returncode, "ERROR  TR-128" in refused.stderr) == (3, True), refused.stderr


def _is_left_out_of_verify(config: Config, shop: psycopg.Connection[Any], folder: Path) -> None:
    """Compare views of both tables: that of the parked table and a late one are named, the other one is compared."""
    uri, location = f"{folder}/catalog.db", f"file://{folder}/data"
    warehouse = Warehouse(uri=f"jdbc:sqlite:{uri}", location=location)
    tables = {"never": "other", "prices": "prices", "other": "other"}  # no job maintains the first one
    views = {name: View(table=f"public.{table}") for name, table in tables.items()}
    config = config.model_copy(update={"warehouse": warehouse, "views": views})
    catalog = load_catalog("tailrace", type="sql", uri=f"sqlite:///{uri}", warehouse=location)
    catalog.create_namespace(warehouse.namespace)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("source read at"):
            # as `views follow` would, which needs Spark
            cut = wait_for_state(config, shop, tables=["public.other"])
            rows = shop.execute("SELECT id, n FROM other").fetchall()
            schema = pa.schema([("id", pa.int32()), ("n", pa.int32())])
            view = catalog.create_table((warehouse.namespace, "other"), schema)
            content = pa.table(list(map(list, zip(*rows, strict=True))), schema)
            view.append(content, {"tailrace.cut": cut.to_json(), "tailrace.generation": "1"})
            snapshot = view.refresh().current_snapshot()
            assert snapshot is not None
            record = ViewRecord("other", "warehouse", 1, cut, now_ms(), snapshot.snapshot_id)
            ViewsTopic(config.kafka, Topics(config.kafka.prefix)).publish(record)

    compared = verify(config, [], timeout_s=15, limit=1, say=say)
    result = next(compared)
    assert (result.view, result.equal) == ("other", True)
    with pytest.raises(
        SinkError,
        match=r'TR-343  view "prices" cannot be compared: its table "public\.prices" is parked; view "never"',
    ) as late:
        next(compared)
    assert "the view has nothing" in late.value.detail
    assert said[0] == "not compared: prices, table public.prices is parked (TR-430)"
