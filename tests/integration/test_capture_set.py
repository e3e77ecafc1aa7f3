"""The patterns of ``source.tables`` decide what is captured, whatever else the publication has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.position import PositionRecord
from tests.integration.test_health import metrics
from tests.support.daemon import (
    Daemon,
    events,
    first_state,
    running,
    tailrace,
    wait_for,
    wait_for_cuts,
    wait_for_state,
    wait_until,
    write_config,
)
from tests.support.topics import all_bytes, assert_once_in_order, latest, read_topic

_OUTSIDE = "published tables outside source.tables are not captured"
_MISSING = "tables match source.tables but are in no publication"
_SECRET = "s3cr3t-of-others"

_TABLES = f"""
CREATE SCHEMA shop; CREATE SCHEMA hr;
CREATE TABLE shop.orders (id int PRIMARY KEY, note text);
CREATE TABLE shop.items (id int PRIMARY KEY, note text);
CREATE TABLE shop.audit_log (id int PRIMARY KEY, note text);
CREATE TABLE hr.people (id int PRIMARY KEY, note text);
INSERT INTO shop.orders SELECT g, 'o' || g FROM generate_series(1, 5) g;
INSERT INTO shop.items SELECT g, 'i' || g FROM generate_series(1, 5) g;
INSERT INTO shop.audit_log VALUES (1, '{_SECRET}');
INSERT INTO hr.people VALUES (1, '{_SECRET}');
"""

_PUBLICATIONS = {
    "tables": "FOR TABLE shop.orders, shop.items, shop.audit_log, hr.people",
    "all tables": "FOR ALL TABLES",
    "schemas": "FOR TABLES IN SCHEMA shop, hr",
}


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLES.encode())
        yield connection


def _config(folder: Path, servers: Servers, database: str, prefix: str, tables: str, more: str = "") -> Path:
    return write_config(folder, database, servers.bootstrap, prefix, source=f"tables = {tables}\n{more}")


def _publish(source: psycopg.Connection[Any], what: str) -> None:
    source.execute(f"CREATE PUBLICATION tailrace {what} WITH (publish_via_partition_root = true)".encode())


def _assert_equal(
    source: psycopg.Connection[Any], servers: Servers, config: Config, cuts: list[PositionRecord], *tables: str
) -> None:
    """Compare each table with its topic at the first of the cuts that is a state of the table."""
    for table in tables:
        cut = first_state(config, cuts, table)
        records = read_topic(
            servers.bootstrap, config.kafka.prefix, table, cut.offsets[f"{config.kafka.prefix}.{table}"]
        )
        assert_once_in_order(records)
        rows = source.execute(f"SELECT id, note FROM {table}".encode()).fetchall()
        assert {key[0]: row["note"] for key, row in latest(records).items()} == dict(rows)


def _assert_nothing_of_others(servers: Servers, config: Config, daemon: Daemon) -> None:
    raw = all_bytes(servers.bootstrap, config.kafka.prefix)
    assert b"orders" in raw
    assert _SECRET.encode() not in raw
    assert _SECRET not in daemon.log.read_text()


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize("what", _PUBLICATIONS)
def test_patterns_restrict_an_existing_publication(
    tmp_path: Path,
    servers: Servers,
    database: str,
    prefix: str,
    source: psycopg.Connection[Any],
    what: str,
    streaming: str,
) -> None:
    """In first copy, single changes, truncates and large transactions, no value of other tables leaks."""
    _publish(source, _PUBLICATIONS[what])
    source.execute(f"ALTER DATABASE {source.info.dbname} SET logical_decoding_work_mem = '64kB'".encode())
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit_log"]', f"streaming = {streaming}\n")
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute(
            f"BEGIN; INSERT INTO shop.audit_log VALUES (2, '{_SECRET}'); INSERT INTO shop.orders VALUES (6, 'six');"
            f"UPDATE hr.people SET note = note || '{_SECRET}'; UPDATE shop.orders SET note = 'seven' WHERE id = 1;"
            "DELETE FROM shop.audit_log WHERE id = 1; TRUNCATE shop.audit_log, shop.items;"
            "INSERT INTO shop.items VALUES (9, 'nine'); COMMIT".encode()
        )
        source.execute(
            f"BEGIN; INSERT INTO shop.audit_log SELECT g, '{_SECRET}' || repeat('x', 500) FROM"
            " generate_series(10, 3000) g; INSERT INTO shop.orders SELECT g, 'large' FROM generate_series(10, 3000) g;"
            f"SAVEPOINT a; UPDATE hr.people SET note = '{_SECRET}'; ROLLBACK TO a;"
            f"INSERT INTO hr.people SELECT g, '{_SECRET}' || repeat('x', 500) FROM generate_series(10, 3000) g;"
            "UPDATE shop.orders SET note = 'last' WHERE id = 2; COMMIT".encode()
        )
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.orders", "shop.items")
        wait_until(lambda: events(daemon, _OUTSIDE))
        _assert_nothing_of_others(servers, config, daemon)
        assert daemon.stop() == 0
    (said,) = events(daemon, _OUTSIDE)
    assert (said["count"], said["tables"]) == (2, ["hr.people", "shop.audit_log"])


def test_renames_decide_whether_the_patterns_capture_a_table(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """A table is captured while its name matches; when it matches again, its topic is filled again."""
    _publish(source, "FOR ALL TABLES")
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit*"]')
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute("ALTER TABLE shop.items SET SCHEMA hr; ALTER TABLE shop.orders RENAME TO audit_orders")
        source.execute(f"UPDATE hr.items SET note = '{_SECRET}'; DELETE FROM hr.items WHERE id = 1")
        source.execute(f"INSERT INTO shop.audit_orders VALUES (50, '{_SECRET}')")
        source.execute("CREATE TABLE shop.other (id int PRIMARY KEY, note text); INSERT INTO shop.other VALUES (1, '')")
        wait_for_state(config, source)
        _assert_nothing_of_others(servers, config, daemon)
        # also in one transaction: out, a change, in again
        source.execute(
            f"BEGIN; ALTER TABLE shop.other RENAME TO audit; INSERT INTO shop.audit VALUES (2, '{_SECRET}');"
            "UPDATE shop.audit SET note = 'public' WHERE id = 2; ALTER TABLE shop.audit RENAME TO other; COMMIT"
        )
        source.execute("INSERT INTO shop.other VALUES (3, 'three')")
        source.execute("UPDATE hr.items SET note = 'public'; ALTER TABLE hr.items SET SCHEMA shop")
        source.execute("INSERT INTO shop.items VALUES (60, 'sixty')")
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.items", "shop.other")
        source.execute("DELETE FROM shop.audit_orders WHERE id = 50; ALTER TABLE shop.audit_orders RENAME TO orders")
        source.execute("UPDATE shop.orders SET note = 'again'")
        wait_for_state(config, source)
        # out with a change, in again without one
        source.execute("ALTER TABLE shop.items SET SCHEMA hr; UPDATE hr.items SET note = 'quiet'")
        source.execute("ALTER TABLE hr.items SET SCHEMA shop")
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.orders", "shop.items", "shop.other")
        _assert_nothing_of_others(servers, config, daemon)
        assert tailrace("status", "--config", str(path)).returncode == 0
        source.execute("ALTER SCHEMA shop RENAME TO store")
        status = tailrace("status", "--config", str(path))
        assert "NOTHING is captured: no published table matches source.tables." in status.stdout
        assert status.returncode == 7
        assert daemon.stop() == 0


_PLACE = "(id int PRIMARY KEY, note text, n numeric(10, 2))"

_MOVES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "adds": (
        f"CREATE TABLE shop.fresh {_PLACE}; INSERT INTO shop.fresh SELECT g, 'f' || g FROM generate_series(1, 5) g;"
        f"CREATE TABLE hr.fresh {_PLACE}; INSERT INTO hr.fresh VALUES (1, '{_SECRET}', 'NaN');"
        f"CREATE TABLE shop.audit_fresh {_PLACE}; INSERT INTO shop.audit_fresh VALUES (1, '{_SECRET}', 'NaN')",
        ("shop.fresh", "hr.fresh", "shop.audit_fresh"),
        "UPDATE shop.fresh SET note = 'later' WHERE id = 1;"
        f"UPDATE hr.fresh SET note = note || '{_SECRET}'; INSERT INTO shop.audit_fresh VALUES (2, '{_SECRET}', 'NaN')",
    ),
    "drops": (
        "DROP TABLE shop.items, hr.people",
        (),
        f"INSERT INTO shop.orders VALUES (20, 'twenty'); INSERT INTO shop.audit_log VALUES (20, '{_SECRET}', 'NaN')",
    ),
    "recreations": (
        "DROP TABLE shop.orders, shop.items, shop.audit_log;"
        f"CREATE TABLE shop.orders {_PLACE}; INSERT INTO shop.orders VALUES (1, 'new'), (70, 'seventy');"
        f"CREATE TABLE shop.items {_PLACE}; CREATE TABLE shop.audit_log {_PLACE};"
        f"INSERT INTO shop.audit_log VALUES (1, '{_SECRET}', 'NaN')",
        ("shop.orders", "shop.items", "shop.audit_log"),
        f"DELETE FROM shop.orders WHERE id = 70; INSERT INTO shop.audit_log VALUES (2, '{_SECRET}', 'NaN')",
    ),
    "renames out": (
        "ALTER TABLE shop.orders RENAME TO audit_orders; ALTER TABLE shop.items SET SCHEMA hr",
        (),
        f"INSERT INTO shop.audit_orders VALUES (80, '{_SECRET}', 'NaN'); UPDATE hr.items SET note = '{_SECRET}'",
    ),
    "renames in": (
        "UPDATE hr.people SET note = 'public', n = 1; UPDATE shop.audit_log SET note = 'public', n = 1;"
        "ALTER TABLE shop.audit_log RENAME TO log; ALTER TABLE hr.people SET SCHEMA shop",
        (),
        "UPDATE shop.log SET note = 'here' WHERE id = 1; INSERT INTO shop.people VALUES (90, 'ninety')",
    ),
    "swaps": (
        "UPDATE shop.audit_log SET note = 'public', n = 1; UPDATE hr.people SET note = 'public', n = 1;"
        "ALTER TABLE shop.orders RENAME TO audit_was; ALTER TABLE shop.audit_log RENAME TO orders;"
        "ALTER TABLE shop.items SET SCHEMA hr; ALTER TABLE hr.people RENAME TO items2;"
        "ALTER TABLE hr.items2 SET SCHEMA shop; ALTER TABLE shop.items2 RENAME TO items",
        (),
        f"INSERT INTO shop.audit_was VALUES (99, '{_SECRET}', 'NaN'); UPDATE hr.items SET note = '{_SECRET}';"
        "INSERT INTO shop.orders VALUES (99, 'swapped')",
    ),
    "out and in again": (
        "ALTER TABLE shop.orders RENAME TO audit_orders; ALTER TABLE shop.items SET SCHEMA hr;"
        f"INSERT INTO shop.audit_orders VALUES (80, '{_SECRET}', 'NaN'); DELETE FROM shop.audit_orders WHERE id < 3;"
        f"UPDATE hr.items SET note = '{_SECRET}', n = 'NaN'; UPDATE hr.items SET note = 'public', n = 0;"
        "UPDATE shop.audit_orders SET note = 'public', n = 0 WHERE id = 80;"
        "ALTER TABLE shop.audit_orders RENAME TO orders; ALTER TABLE hr.items SET SCHEMA shop",
        (),
        "UPDATE shop.orders SET note = 'again' WHERE id = 80; DELETE FROM shop.items WHERE id = 5",
    ),
}
"""Statements by name, the tables that an owner adds to the publication after them, and later changes."""


@pytest.mark.parametrize(
    ("what", "moment"),
    [
        ("FOR TABLES IN SCHEMA shop", "idle"),
        ("FOR TABLES IN SCHEMA shop", "one transaction"),
        ("FOR TABLES IN SCHEMA shop", "stopped"),
        ("FOR TABLES IN SCHEMA shop, hr", "idle"),
        ("FOR ALL TABLES", "idle"),
        (_PUBLICATIONS["tables"], "one transaction"),
        (_PUBLICATIONS["tables"], "stopped"),
    ],
)
@pytest.mark.parametrize("move", _MOVES)
def test_tables_that_come_to_match_are_copied_and_no_others_are_seen(
    tmp_path: Path,
    servers: Servers,
    database: str,
    prefix: str,
    source: psycopg.Connection[Any],
    move: str,
    what: str,
    moment: str,
) -> None:
    """Topics equal their tables at the first state; no value of other tables leaks, even in dead letters."""
    source.execute(
        "ALTER TABLE shop.orders ADD n numeric(10, 2); ALTER TABLE shop.items ADD n numeric(10, 2);"
        "ALTER TABLE shop.audit_log ADD n numeric(10, 2); ALTER TABLE hr.people ADD n numeric(10, 2);"
        "UPDATE shop.audit_log SET n = 'NaN'; CREATE TABLE hr.events (note text, n numeric(10, 2))"
    )
    _publish(source, what)
    patterns = '["shop.*", "!shop.audit*"]'
    path = _config(tmp_path, servers, database, prefix, patterns, 'on_table_error = "divert"\n')
    config = load(path)
    ddl, listed, changes = _MOVES[move]
    if "FOR TABLE " in what and listed:
        ddl += f"; ALTER PUBLICATION tailrace ADD TABLE {', '.join(listed)}"
    with ExitStack() as stack:
        daemon = stack.enter_context(running(path))
        wait_for(config, lambda record: record.is_state)
        if moment == "idle":
            _execute_each(source, ddl)
            cuts = wait_for_cuts(config, source)
            _assert_captured_equal(source, servers, config, cuts)
            _assert_nothing_of_others(servers, config, daemon)
            _execute_each(source, changes)
        elif moment == "one transaction":
            source.execute(f"{ddl}; {changes}".encode())
        elif moment == "stopped":
            assert daemon.stop() == 0
            _execute_each(source, f"{ddl}; {changes}")
            daemon = stack.enter_context(running(path))
        cuts = wait_for_cuts(config, source)
        _assert_captured_equal(source, servers, config, cuts)
        _assert_nothing_of_others(servers, config, daemon)
        assert daemon.stop() == 0
    assert not [event for event in _lines(daemon) if event.get("level") == "error"]


@pytest.mark.parametrize("moment", ["running", "stopped"])
def test_a_schema_that_returns_to_the_publication_is_read_again(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any], moment: str
) -> None:
    """The stream lacks the changes of the meantime, so the tables are read again."""
    _publish(source, "FOR TABLES IN SCHEMA shop")
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit*"]')
    config = load(path)
    away = (
        "ALTER PUBLICATION tailrace DROP TABLES IN SCHEMA shop;"
        "DELETE FROM shop.orders WHERE id < 3; UPDATE shop.items SET note = 'unseen';"
        "ALTER PUBLICATION tailrace ADD TABLES IN SCHEMA shop"
    )
    with ExitStack() as stack:
        daemon = stack.enter_context(running(path))
        wait_for(config, lambda record: record.is_state)
        if moment == "stopped":
            assert daemon.stop() == 0
        _execute_each(source, away)
        if moment == "stopped":
            daemon = stack.enter_context(running(path))
        cuts = wait_for_cuts(config, source)
        _assert_captured_equal(source, servers, config, cuts)
        assert daemon.stop() == 0


def _execute_each(source: psycopg.Connection[Any], statements: str) -> None:
    """Execute each statement in its own transaction."""
    for statement in statements.split(";"):
        source.execute(statement.encode())


def _assert_captured_equal(
    source: psycopg.Connection[Any], servers: Servers, config: Config, cuts: list[PositionRecord]
) -> None:
    tables = source.execute(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname = 'shop' AND tablename NOT LIKE 'audit%'"
    ).fetchall()
    _assert_equal(source, servers, config, cuts, *(table for (table,) in tables))


def _lines(daemon: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("what", ["schemas", "all tables"])
def test_tables_unpublished_for_a_while_are_read_again(
    tmp_path: Path,
    servers: Servers,
    database: str,
    prefix: str,
    source: psycopg.Connection[Any],
    what: str,
    apart: bool,
) -> None:
    """The stream has no sign of changes of that time, and neither have the table's oid, file and columns."""
    _publish(source, _PUBLICATIONS[what])
    path = _config(tmp_path, servers, database, prefix, '["shop.*"]')
    config = load(path)
    steps = ["ALTER TABLE shop.items SET UNLOGGED", "UPDATE shop.items SET note = 'changed'; DELETE FROM shop.items "
             "WHERE id = 1", "ALTER TABLE shop.items SET LOGGED"]  # fmt: skip
    if what == "schemas":
        steps = ["CREATE SCHEMA aside; ALTER TABLE shop.items SET SCHEMA aside; ALTER PUBLICATION tailrace DROP TABLES "
                 "IN SCHEMA shop", "UPDATE shop.orders SET note = 'changed'; DELETE FROM aside.items WHERE id = 1",
                 "ALTER TABLE aside.items SET SCHEMA shop; ALTER PUBLICATION tailrace ADD TABLES IN SCHEMA shop"
                ]  # fmt: skip
    with running(path) as daemon:
        wait_for_state(config, source)
        for step in steps if apart else ["BEGIN; " + "; ".join(steps) + "; COMMIT"]:
            source.execute(step.encode())
            if apart:
                wait_for_state(config, source, tables=[])
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.items", "shop.orders")
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("tables", "code", "said", "exists"),
    [
        ('["nope.*"]', "TR-120", 'no table matches "nope.*" of source.tables', False),
        ('["nope.*"]', "TR-120", 'no table matches "nope.*" of source.tables', True),
        ('["shop.*", "shop.oders"]', "TR-120", "Nearest table names: shop.orders", False),
        ('["shop.*", "shop[.*"]', "TR-127", '"shop[.*": its [ has no ]', True),
        ('["orders", "", "!"]', "TR-127", '"orders": it has no dot between schema and table; "": it is empty', False),
        ('["hr.*", "!hr.people"]', "TR-120", 'publication "tailrace" has no table that matches source.tables', True),
        ('["shop.other"]', "TR-120", 'ALTER PUBLICATION "tailrace" ADD TABLE "shop"."other";', True),
    ],
)
def test_patterns_that_match_nothing_or_are_malformed_are_refused(
    tmp_path: Path,
    servers: Servers,
    database: str,
    prefix: str,
    source: psycopg.Connection[Any],
    tables: str,
    code: str,
    said: str,
    exists: bool,
) -> None:
    source.execute("CREATE TABLE shop.other (id int PRIMARY KEY)")
    if exists:
        _publish(source, _PUBLICATIONS["tables"])
    refused = tailrace("run", "--config", str(_config(tmp_path, servers, database, prefix, tables)))
    assert (refused.returncode, f"ERROR  {code}" in refused.stderr) == (3, True), refused.stderr
    assert said in refused.stderr
    left = source.execute("SELECT count(*) FROM pg_publication WHERE NOT %s", (exists,)).fetchone()
    assert left == (0,)


def test_a_table_that_was_dropped_does_not_stop_the_next_start(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    _publish(source, _PUBLICATIONS["tables"])
    path = _config(tmp_path, servers, database, prefix, '["shop.orders", "shop.items", "!none.*"]')
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        assert daemon.stop() == 0
    source.execute("DROP TABLE shop.items; INSERT INTO shop.orders VALUES (7, 'seven')")
    with running(path) as daemon:
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.orders")
        assert daemon.stop() == 0
    said = [event["pattern"] for event in events(daemon, "source.tables pattern unmatched")]
    assert said == ["!none.*", "shop.items", "!none.*"]
    source.execute("DROP TABLE shop.orders")
    with running(path) as daemon:
        wait_for_state(config, source)
        assert daemon.stop() == 0


def test_a_table_that_matches_the_patterns_again_is_read_again(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """The topic does not lack the changes that were made while the patterns left the table out."""
    _publish(source, _PUBLICATIONS["all tables"])
    narrow, wide = '["shop.orders"]', '["shop.orders", "shop.items"]'
    for tables, statement in (
        (wide, ""),
        (narrow, "DELETE FROM shop.items WHERE id = 1; UPDATE shop.items SET note = 'now'; SELECT"),
        (wide, "UPDATE shop.orders SET note = 'now'"),
    ):
        path = _config(tmp_path, servers, database, prefix, tables)
        config = load(path)
        with running(path) as daemon:
            wait_for(config, lambda record: record.is_state)
            if statement:
                source.execute(statement.encode())
            cuts = wait_for_cuts(config, source)
            assert daemon.stop() == 0
    _assert_equal(source, servers, config, cuts, "shop.orders", "shop.items")


def test_matching_tables_in_no_publication_are_reported(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """In the log, the status and the metrics, with the statement to run; at the start and on appearance."""
    source.execute("CREATE PUBLICATION tailrace FOR TABLE shop.orders WITH (publish_via_partition_root = true)")
    source.execute("CREATE PUBLICATION tailrace_nokey WITH (publish = 'insert, truncate')")
    health = '\n[health]\nlisten = "127.0.0.1:0"\n'
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit_log"]', health)
    config = load(path)
    with running(path) as daemon:
        wait_until(lambda: events(daemon, _MISSING))
        (said,) = events(daemon, _MISSING)
        assert said["tables"] == ["shop.items"]
        assert said["statements"] == ['ALTER PUBLICATION "tailrace" ADD TABLE "shop"."items";']
        source.execute(
            'CREATE TABLE shop."New" (id int PRIMARY KEY, note text); CREATE TABLE shop.log (id int, note text);'
            "CREATE TABLE shop.parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);"
            "CREATE TABLE shop.part PARTITION OF shop.parts FOR VALUES FROM (0) TO (9);"
            "CREATE TABLE hr.other (id int PRIMARY KEY); CREATE TEMPORARY TABLE t (id int);"
            "INSERT INTO shop.\"New\" VALUES (1, 'new'); INSERT INTO shop.log VALUES (1, 'log');"
            "INSERT INTO shop.parts VALUES (1, 'part')"
        )
        wait_until(lambda: len(events(daemon, _MISSING)) > 1)
        said = events(daemon, _MISSING)[1]
        assert said["tables"] == ["shop.New", "shop.log", "shop.parts"]
        assert said["statements"] == [
            'ALTER PUBLICATION "tailrace" ADD TABLE "shop"."New", "shop"."parts";',
            'ALTER PUBLICATION "tailrace_nokey" ADD TABLE "shop"."log";',
        ]
        wait_until(lambda: metrics(daemon)["tailrace_missing_tables",] == 4)
        status = tailrace("status", "--config", str(path))
        assert "4 tables match source.tables and are in no publication" in status.stdout
        found = json.loads(tailrace("status", "--json", "--config", str(path)).stdout)["source"]
        assert found["missing_tables"] == ["shop.New", "shop.items", "shop.log", "shop.parts"]
        for statement in found["missing_statements"]:
            assert f"         {statement}" in status.stdout.splitlines()
            source.execute(statement.encode())
        wait_until(lambda: metrics(daemon)["tailrace_missing_tables",] == 0)
        added = {"shop.New", "shop.items", "shop.log", "shop.parts"}
        wait_until(lambda: added <= {event["table"] for event in events(daemon, "table copied")})
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.orders", "shop.items", "shop.parts")
        assert daemon.stop() == 0


@pytest.mark.parametrize("what", ["FOR TABLE shop.orders, shop.items", "FOR ALL TABLES"])
def test_a_recreated_table_leaves_no_old_rows_on_its_topic(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any], what: str
) -> None:
    """The new table is detected; once it is published, its topic has its rows and none of the old ones."""
    _publish(source, what)
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit_log"]')
    config = load(path)
    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute(
            "BEGIN; DROP TABLE shop.items; CREATE TABLE shop.items (id int PRIMARY KEY, note text);"
            "INSERT INTO shop.items VALUES (1, 'new'), (70, 'seventy'); COMMIT"
        )
        if "ALL" not in what:
            wait_until(lambda: events(daemon, _MISSING))
            (said,) = events(daemon, _MISSING)
            assert said["tables"] == ["shop.items"]
            refused = tailrace("snapshot", "start", "shop.items", "--config", str(path))
            assert (refused.returncode, "TR-130" in refused.stderr) == (3, True)
            (statement,) = said["statements"]
            assert f"HINT   {statement}" in refused.stderr
            source.execute(statement.encode())
        before = len(events(daemon, "table copied"))
        wait_until(lambda: len(events(daemon, "table copied")) > before)
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.orders", "shop.items")
        # also an empty one
        source.execute("DROP TABLE shop.orders; CREATE TABLE shop.orders (id int PRIMARY KEY, note text)")
        if "ALL" not in what:
            source.execute("ALTER PUBLICATION tailrace ADD TABLE shop.orders")
        before = len(events(daemon, "table copied"))
        wait_until(lambda: len(events(daemon, "table copied")) > before)
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.orders", "shop.items")
        assert daemon.stop() == 0


def test_requests_for_uncaptured_tables_are_refused_with_a_remedy(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    _publish(source, "FOR TABLE shop.orders, shop.audit_log")
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit*"]')
    with running(path) as daemon:
        wait_for(load(path), lambda record: record.is_state)
        names = ("shop.audit_log", "hr.people", "shop.items", "shop.itms")
        refused = tailrace("snapshot", "start", *names, "--config", str(path))
        assert (refused.returncode, "TR-130" in refused.stderr) == (3, True)
        for said in (
            'shop.audit_log: not captured, "!shop.audit*" of source.tables excludes it',
            "hr.people: not captured, no pattern of source.tables matches it",
            "shop.items: not captured, it is in no publication",
            "shop.itms: not captured, it does not exist",
            '       ALTER PUBLICATION "tailrace" ADD TABLE "shop"."items";',
        ):
            assert said in refused.stderr
        assert daemon.stop() == 0


def test_tables_are_added_and_removed_while_running(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """Added tables are read while streaming; removed ones keep their topic; re-added ones are reread."""
    source.execute("CREATE TABLE shop.log (id int, note text)")
    _publish(source, "FOR TABLE shop.orders")
    source.execute("CREATE PUBLICATION tailrace_nokey WITH (publish = 'insert, truncate')")
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit_log"]')
    config = load(path)

    def table(action: str, *names: str) -> dict[str, list[str]]:
        done = tailrace("table", action, *names, "--json", "--config", str(path))
        assert done.returncode == 0, done.stderr
        return {each["table"]: [each["publication"], each["outcome"]] for each in json.loads(done.stdout)["tables"]}

    def copied() -> list[str]:
        return [event["table"] for event in events(daemon, "table copied")]

    with running(path) as daemon:
        wait_for(config, lambda record: record.is_state)
        assert table("add", "shop.items", "shop.orders", "shop.log") == {
            "shop.items": ["tailrace", "added"],
            "shop.orders": [None, "published already"],
            "shop.log": ["tailrace_nokey", "added"],
        }
        source.execute("INSERT INTO shop.items VALUES (6, 'six'); INSERT INTO shop.log VALUES (1, 'one')")
        wait_until(lambda: "shop.items" in copied())
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.items", "shop.orders")
        (logged,) = read_topic(servers.bootstrap, prefix, "shop.log")
        assert logged.value is not None
        assert logged.value["after"] == {"id": 1, "note": "one"}
        before = len(read_topic(servers.bootstrap, prefix, "shop.items"))
        assert table("remove", "shop.items", "shop.items") == {"shop.items": ["tailrace", "removed"]}
        assert table("remove", "shop.items") == {"shop.items": [None, "not published"]}
        source.execute("DELETE FROM shop.items WHERE id = 1; INSERT INTO shop.items VALUES (7, 'seven')")
        source.execute("INSERT INTO shop.orders VALUES (70, 'seventy')")
        _assert_unpublished(path, source, "shop.items", "shop.orders")
        assert len(read_topic(servers.bootstrap, prefix, "shop.items")) == before
        table("add", "shop.items")
        wait_until(lambda: copied().count("shop.items") > 1)
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "shop.items", "shop.orders")
        assert daemon.stop() == 0


def _assert_unpublished(path: Path, source: psycopg.Connection[Any], table: str, other: str) -> None:
    """Views of `table` wait, status and table list show the line that helps; views of the other table go on."""
    config = load(path)
    before = wait_for(config, lambda record: table in record.incomplete_tables).state_for([table])
    wait_for_state(config, source, tables=[other])
    record = wait_for(config, lambda record: table in record.incomplete_tables and record.open is None)
    assert record.state_for([table]) == before
    schema, name = table.split(".")
    line = f'ALTER PUBLICATION "tailrace" ADD TABLE "{schema}"."{name}";'
    found = json.loads(tailrace("table", "list", "--json", "--config", str(path)).stdout)["tables"]
    shown = {each["table"]: (each["status"], each["hint"]) for each in found}
    assert shown[table] == ("unpublished", line)
    assert shown[other] == ("streaming", None)
    assert f"    {line}" in tailrace("table", "list", "--config", str(path)).stdout.splitlines()
    status = tailrace("status", "--config", str(path))
    assert f"incomplete: {table}: its changes are not published" in status.stdout
    assert f"         {line}" in status.stdout.splitlines()
    refused = tailrace("snapshot", "start", table, "--config", str(path))
    assert (refused.returncode, "TR-130" in refused.stderr, line in refused.stderr) == (3, True, True)


def test_table_add_and_remove_refuse_with_all_reasons_at_once(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """Nothing is changed; without the rights, the error has the statement that the owner must run."""
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit_log"]')
    for action in ("add", "remove"):
        refused = tailrace("table", action, "shop.items", "--config", str(path))
        assert (refused.returncode, "TR-235" in refused.stderr) == (4, True)
    source.execute("CREATE TABLE shop.log (id int)")
    _publish(source, "FOR TABLE shop.orders")
    names = ("shop.items", "shop.audit_log", "hr.people", "shop.none", "shop.log")
    refused = tailrace("table", "add", *names, "--config", str(path))
    assert (refused.returncode, "TR-132" in refused.stderr) == (3, True)
    for said in (
        "cannot add shop.audit_log, hr.people, shop.none, shop.log",
        '"!shop.audit_log" of source.tables excludes it',
        "shop.none: it does not exist",
        'ALTER TABLE "shop"."log" REPLICA IDENTITY FULL;',
    ):
        assert said in refused.stderr
    assert source.execute("SELECT count(*) FROM pg_publication_rel").fetchone() == (1,)
    source.execute(f"CREATE ROLE {prefix} LOGIN".encode())
    parts = urlsplit(database)
    dsn = parts._replace(netloc=f"{prefix}@{parts.hostname}:{parts.port}").geturl()
    role = _config(tmp_path, servers, dsn, prefix, '["shop.*"]')
    for action, table, statement in (
        ("add", "shop.items", 'ALTER PUBLICATION "tailrace" ADD TABLE "shop"."items";'),
        ("remove", "shop.orders", 'ALTER PUBLICATION "tailrace" DROP TABLE "shop"."orders";'),
    ):
        refused = tailrace("table", action, table, "--config", str(role))
        assert (refused.returncode, "TR-234" in refused.stderr) == (4, True), refused.stderr
        assert f"       {statement}" in refused.stderr
    source.execute("DROP PUBLICATION tailrace")
    _publish(source, "FOR ALL TABLES")
    refused = tailrace("table", "remove", "shop.items", "--config", str(path))
    assert (refused.returncode, "TR-132" in refused.stderr) == (3, True)
    assert 'tables = [..., "!shop.items"]' in refused.stderr


def test_a_start_reports_all_problems_with_tables_at_once(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """Keys, conditions, hidden columns, policies and rights are one error, incomplete keys another."""
    source.execute(
        f"CREATE ROLE {prefix} LOGIN REPLICATION; GRANT USAGE ON SCHEMA shop TO {prefix};"
        f"GRANT SELECT ON shop.orders, shop.audit_log TO {prefix};"
        "ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY; ALTER TABLE shop.audit_log ENABLE ROW LEVEL SECURITY;"
        "CREATE TABLE shop.one (a int, b int, c int, PRIMARY KEY (a, b));"
        "CREATE TABLE shop.two (a int, b int, c int, PRIMARY KEY (a, b))".encode()
    )
    _publish(source, "FOR TABLE shop.orders, shop.items, shop.audit_log, shop.one (a, c), shop.two (b, c)")
    more = (
        'keys = { "shop.nope" = ["a"], "shop.items" = ["x", "y"] }\nexclude = ["shop.orders.id"]\n'
        '[snapshot]\nwhere = { "hr.people" = "true", "shop.orders" = "nothing > 1" }\n'
    )
    parts = urlsplit(database)
    dsn = parts._replace(netloc=f"{prefix}@{parts.hostname}:{parts.port}").geturl()
    path = _config(tmp_path, servers, dsn, prefix, '["shop.*"]', more)
    refused = tailrace("run", "--config", str(path))
    assert (refused.returncode, "ERROR  TR-205" in refused.stderr) == (4, True)
    assert '"shop.one"' in refused.stderr
    assert '"shop.two"' in refused.stderr
    source.execute("ALTER PUBLICATION tailrace DROP TABLE shop.one, shop.two; DROP TABLE shop.one, shop.two")
    refused = tailrace("run", "--config", str(path))
    assert (refused.returncode, "ERROR  TR-213" in refused.stderr) == (4, True)
    for said in (
        'row-level security of tables "shop.audit_log", "shop.orders"',
        "may not read all captured tables (TR-227)",
        'names table "shop.nope", which is not captured (TR-121)',
        'table "shop.items" has no column "x", "y" (TR-122)',
        'snapshot.where names "hr.people", which is not captured (TR-135)',
        'the condition on table "shop.orders" in snapshot.where cannot be used (TR-136)',
        'column "id" is part of the key of table "shop.orders"',
        f'GRANT SELECT ON "shop"."items" TO "{prefix}";',
        f'ALTER ROLE "{prefix}" BYPASSRLS;',
    ):
        assert said in refused.stderr, refused.stderr


def test_patterns_must_match_partitions_published_by_their_own_names(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """Without publish_via_partition_root the WAL names partitions, so the patterns must match those."""
    source.execute(
        "CREATE TABLE shop.visits (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);"
        "CREATE TABLE shop.part_1 PARTITION OF shop.visits FOR VALUES FROM (0) TO (10);"
        f"INSERT INTO shop.visits VALUES (1, '{_SECRET}')"
    )
    source.execute("CREATE PUBLICATION tailrace FOR TABLE shop.visits, shop.orders, shop.items")
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.part*", "!shop.audit_log"]')
    with running(path) as daemon:
        wait_until(lambda: events(daemon, _MISSING))
        source.execute(f"INSERT INTO shop.visits VALUES (2, '{_SECRET}')")
        wait_for_state(load(path), source)
        _assert_nothing_of_others(servers, load(path), daemon)
        assert daemon.stop() == 0
    (said,) = events(daemon, _MISSING)
    assert said["tables"] == ["shop.visits"]
    assert said["statements"] == ['ALTER PUBLICATION "tailrace" SET (publish_via_partition_root = true);']
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP PUBLICATION tailrace")
        connection.execute("CREATE PUBLICATION tailrace FOR TABLE shop.visits, shop.orders")
    refused = tailrace("table", "add", "shop.visits", "--config", str(path))
    assert (refused.returncode, "published under its partitions' names" in refused.stderr) == (3, True), refused.stderr


_VIEWS = """
[warehouse]
uri = "jdbc:sqlite:{folder}/catalog.db"
location = "{folder}/warehouse"
[views.orders]
table = "shop.orders"
[views.items]
table = "shop.items"
[views.audit]
table = "shop.audit_log"
[views.people]
table = "hr.people"
[views.nothing]
table = "shop.none"
"""


def test_verify_compares_captured_tables_and_says_why_others_are_not(
    tmp_path: Path, servers: Servers, database: str, prefix: str, source: psycopg.Connection[Any]
) -> None:
    """Captured tables are those of the patterns that a publication has; a request for another is refused."""
    _publish(source, "FOR TABLE shop.orders, shop.audit_log")
    views = _VIEWS.format(folder=tmp_path)
    path = _config(tmp_path, servers, database, prefix, '["shop.*", "!shop.audit*"]', views)
    with running(path) as daemon:
        wait_for(load(path), lambda record: record.is_state)
        found = tailrace("verify", "--timeout", "1", "--config", str(path))
        # it cannot succeed: no job maintains the view, and an idle daemon may be up to 10 s behind the source
        assert found.returncode == 5, found.stderr
        assert "TR-342" in found.stderr or "TR-343" in found.stderr
        for said in (
            "items, table shop.items is not captured: it is in no publication",
            'audit, table shop.audit_log is not captured: "!shop.audit*" of source.tables excludes it',
            "people, table hr.people is not captured: no pattern of source.tables matches it",
            "nothing, table shop.none is not captured: it does not exist",
        ):
            assert f"not compared: {said}" in found.stderr
        refused = tailrace("verify", "orders", "audit", "items", "--config", str(path))
        assert (refused.returncode, "ERROR  TR-223" in refused.stderr) == (4, True), refused.stderr
        assert "cannot compare audit, items: the tables are not captured" in refused.stderr
        assert '(view audit): "!shop.audit*" of source.tables excludes it' in refused.stderr
        assert 'HINT   ALTER PUBLICATION "tailrace" ADD TABLE "shop"."items";' in refused.stderr
        assert daemon.stop() == 0
