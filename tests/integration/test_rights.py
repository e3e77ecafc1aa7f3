"""The README's least rights on the source: a role with them works, and a missing right is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.postgres.catalog import table_relation
from tailrace.cdc.postgres.connect import connect
from tailrace.cdc.postgres.recipe import Recipe
from tailrace.cdc.postgres.rights import cannot_read_tables
from tailrace.schemas.config.file import load
from tailrace.schemas.errors import TailraceError
from tests.support.daemon import ROOT, events, running, tailrace, wait_for, wait_for_state, wait_until, write_config
from tests.support.refused import assert_refused
from tests.support.topics import latest, read_topic

_REFUSED = {
    " REPLICATION": ("TR-203", 'ALTER ROLE "{role}" REPLICATION;'),
    "GRANT USAGE ON SCHEMA": ("TR-227", 'GRANT USAGE ON SCHEMA "public" TO "{role}";'),
    "GRANT SELECT ON ALL": (
        "TR-227",
        'GRANT SELECT ON "public"."log", "public"."order_items", "public"."orders" TO "{role}";',
    ),
    'CREATE PUBLICATION "tailrace" ': (
        "TR-207",
        'CREATE PUBLICATION "{role}" FOR TABLE "public"."order_items", "public"."orders"'
        " WITH (publish_via_partition_root = true",
    ),
}

_TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE order_items (id int PRIMARY KEY); CREATE TABLE log (id int)"
)


def _readme() -> list[str]:
    """Return the README's statements, each on one line."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"\*\*Least privileges\*\*(?:.+\n)+\n((?: {4}.*\n)+)", readme)
    assert block is not None
    # deeper indentation continues the line before
    return re.sub(r"\n {5,}", " ", block[1]).replace("    ", "").splitlines()


def _grant(database: str, role: str, without: str | None = None, tables: str = _TABLES) -> str:
    """Run the README's statements without one right; return the role's DSN."""
    statements = _readme()
    with psycopg.connect(database, autocommit=True) as connection:
        if connection.info.server_version < 180000:
            statements = [each.replace(", publish_generated_columns = stored", "") for each in statements]
        if without is not None:
            assert sum(without in statement for statement in statements) == 1
            statements = [
                statement.replace(without, "") if without.startswith(" ") else statement
                for statement in statements
                if without.startswith(" ") or without not in statement
            ]
        # older versions, and servers upgraded from them, grant these rights to everybody
        connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        connection.execute(tables.encode())
        owner = connection.info.user
        for statement in statements:
            statement = re.sub(r"\btailrace", role, statement).replace('"owner"', f'"{owner}"')
            connection.execute(statement.encode())
    parts = urlsplit(database)
    return parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()


def test_the_readme_has_the_recipe_that_errors_print() -> None:
    tables, keyless = [("public", "orders"), ("public", "order_items")], [("public", "log")]
    recipe = Recipe("tailrace", "tailrace", "tailrace_nokey", tables, keyless, [("owner", "public")], 180000)
    assert _readme() == recipe.statements()
    before = Recipe("tailrace", "tailrace", "tailrace_nokey", tables, keyless, [("owner", "public")], 170000)
    assert before.statements() == [each.replace(", publish_generated_columns = stored", "") for each in _readme()]


@pytest.mark.parametrize("without", [None, "GRANT pg_monitor"])
def test_a_role_with_the_least_rights_works(
    tmp_path: Path, servers: Servers, database: str, prefix: str, without: str | None
) -> None:
    dsn = _grant(database, prefix, without)
    config = write_config(tmp_path, dsn, servers.bootstrap, prefix, source=f'publication = "{prefix}"\n')
    with running(config), psycopg.connect(database, autocommit=True) as connection:
        wait_for_state(load(config), connection)
        connection.execute("INSERT INTO orders VALUES (1); INSERT INTO log VALUES (1)")
        wait_for_state(load(config), connection)
    assert set(latest(read_topic(servers.bootstrap, prefix, "public.orders"))) == {(1,)}
    assert len(read_topic(servers.bootstrap, prefix, "public.log")) == 1


@pytest.mark.parametrize("without", _REFUSED)
def test_a_missing_right_is_named(tmp_path: Path, servers: Servers, database: str, prefix: str, without: str) -> None:
    dsn = _grant(database, prefix, without)
    config = write_config(tmp_path, dsn, servers.bootstrap, prefix, source=f'publication = "{prefix}"\n')
    code, said = _REFUSED[without]
    assert_refused(config, code, 4, said.format(role=prefix))


def test_the_statements_of_the_error_are_sufficient(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    """For a role without rights on tables: after the statements of the hint, the daemon runs."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        connection.execute(_TABLES.encode())
        connection.execute(f"CREATE ROLE {prefix} LOGIN REPLICATION".encode())
        parts = urlsplit(database)
        dsn = parts._replace(netloc=f"{prefix}@{parts.hostname}:{parts.port}").geturl()
        config = write_config(tmp_path, dsn, servers.bootstrap, prefix, source=f'publication = "{prefix}"\n')
        said = assert_refused(config, "TR-207", 4)
        for line in said[said.index("HINT") :].splitlines()[1:]:
            connection.execute(line.encode())
        with running(config):
            wait_for(load(config), lambda record: record.is_state)


_PARTITIONED = """
CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE order_items (id int, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE TABLE items_1 PARTITION OF order_items FOR VALUES FROM (0) TO (10); INSERT INTO order_items VALUES (1);
CREATE TABLE log (id int)
"""


def test_a_later_partition_needs_default_privileges_or_a_grant(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    """Default privileges allow to read it. Without them, its table waits for the GRANT, others continue."""
    dsn = _grant(database, prefix, tables=_PARTITIONED)
    config = write_config(tmp_path, dsn, servers.bootstrap, prefix, source=f'publication = "{prefix}"\n')

    def copied() -> list[str]:
        return [event["table"] for event in events(daemon, "table copied")]

    with running(config) as daemon, psycopg.connect(database, autocommit=True) as connection:
        wait_for(load(config), lambda record: record.is_state)
        connection.execute("CREATE TABLE items_2 (id int PRIMARY KEY); INSERT INTO items_2 VALUES (12)")
        connection.execute("ALTER TABLE order_items ATTACH PARTITION items_2 FOR VALUES FROM (10) TO (20)")
        wait_until(lambda: copied().count("public.order_items") == 2)
        connection.execute(
            f"CREATE TABLE items_3 (id int PRIMARY KEY); REVOKE SELECT ON items_3 FROM {prefix};"
            "INSERT INTO items_3 VALUES (22)".encode()
        )
        connection.execute("ALTER TABLE order_items ATTACH PARTITION items_3 FOR VALUES FROM (20) TO (30)")
        wait_until(lambda: events(daemon, "table not readable: the role lacks privileges"))
        (said,) = events(daemon, "table not readable: the role lacks privileges")
        assert said["table"] == "public.order_items"
        connection.execute("INSERT INTO orders VALUES (5); INSERT INTO order_items VALUES (25), (5)")
        wait_until(lambda: (5,) in latest(read_topic(servers.bootstrap, prefix, "public.orders")))
        record = wait_for(load(config), lambda record: record.incomplete_tables)
        assert record.incomplete_tables == ("public.order_items",)
        assert said["statements"][0] == f'GRANT SELECT ON "public"."items_3" TO "{prefix}";'
        for statement in said["statements"]:
            connection.execute(statement.encode())
        wait_for_state(load(config), connection)
        # row-level security, too, makes only its table wait
        connection.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
        assert tailrace("snapshot", "start", "orders", "--config", str(config)).returncode == 0
        wait_until(lambda: len(events(daemon, "table not readable: the role lacks privileges")) == 2)
        said = events(daemon, "table not readable: the role lacks privileges")[1]
        assert said["table"] == "public.orders"
        (statement,) = said["statements"]
        assert statement.startswith(f'ALTER ROLE "{prefix}" BYPASSRLS;')
        connection.execute(statement.encode())
        wait_until(lambda: copied().count("public.orders") == 2)
        wait_for_state(load(config), connection)
        assert daemon.stop() == 0
    assert len(events(daemon, "stream resumed")) == 1
    rows = latest(read_topic(servers.bootstrap, prefix, "public.order_items"))
    assert set(rows) == {(1,), (12,), (22,), (25,), (5,)}


def test_a_table_whose_large_values_may_not_be_read_waits_for_the_grant(
    tmp_path: Path, servers: Servers, database: str, prefix: str
) -> None:
    """An update lacks a large value, which the role must no longer read: the table is read again once it may."""
    large = "ALTER TABLE orders ADD n int DEFAULT 0, ADD note text; ALTER TABLE orders ALTER note SET STORAGE EXTERNAL"
    dsn = _grant(database, prefix, tables=f"{_TABLES}; {large}; INSERT INTO orders VALUES (1, 0, repeat('x', 9000))")
    source = f'publication = "{prefix}"\ntoast = "reread"\n'
    config = write_config(tmp_path, dsn, servers.bootstrap, prefix, source=source)
    with running(config) as daemon, psycopg.connect(database, autocommit=True) as connection:
        wait_for_state(load(config), connection)
        connection.execute(f"REVOKE SELECT ON orders FROM {prefix}".encode())
        connection.execute("UPDATE orders SET n = 1; INSERT INTO order_items VALUES (7)")
        wait_until(lambda: events(daemon, "table not readable: the role lacks privileges"))
        (said,) = events(daemon, "table not readable: the role lacks privileges")
        wait_until(lambda: (7,) in latest(read_topic(servers.bootstrap, prefix, "public.order_items")))
        record = wait_for(load(config), lambda record: record.incomplete_tables)
        assert record.incomplete_tables == ("public.orders",)
        for statement in said["statements"]:
            connection.execute(statement.encode())
        wait_for_state(load(config), connection)
        assert daemon.stop() == 0
    rows = latest(read_topic(servers.bootstrap, prefix, "public.orders"))
    assert rows == {(1,): {"id": 1, "n": 1, "note": "x" * 9000}}


def test_a_refused_read_names_role_table_and_statements(database: str, prefix: str) -> None:
    """Rights may be revoked after the checks at the start."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connection.execute(f"CREATE ROLE {prefix} LOGIN".encode())
        parts = urlsplit(database)
        dsn = parts._replace(netloc=f"{prefix}@{parts.hostname}:{parts.port}").geturl()
        relation = table_relation(connection, "public", "orders")
        assert relation is not None

        def refused(statement: LiteralString) -> TailraceError:
            with connect(dsn) as reader, pytest.raises(psycopg.Error) as failed:
                reader.execute(statement)
            return cannot_read_tables(failed.value, dsn, [relation])

        found = refused("SELECT FROM orders")
        assert (found.code, found.message) == ("TR-227", f'role "{prefix}" may not read all captured tables')
        assert f'GRANT SELECT ON "public"."orders" TO "{prefix}";' in found.hint
        for statement in found.hint.splitlines():
            connection.execute(statement.encode())
        connection.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
        found = refused("SELECT FROM orders")
        assert (found.code, '"orders"' in found.message) == ("TR-213", True)
        connection.execute(found.hint.encode())
        found = refused("SELECT pg_read_file('x')")
        assert (found.code, found.hint.partition("  #")[0]) == ("TR-227", "tailrace explain TR-227")
