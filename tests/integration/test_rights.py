"""The README's least rights on the source: a role with exactly those works, one right less is named."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from cdc.dev.state import Servers
from schemas.configfile import load
from tests.daemon import ROOT, running, tailrace, wait_for_state, write_config
from tests.topics import latest, read_topic

_REFUSED = {
    " REPLICATION": ("TR-203", 'ALTER ROLE "{role}" REPLICATION;'),
    "GRANT USAGE ON SCHEMA": ("TR-227", "permission denied for schema public"),
    "GRANT SELECT": ("TR-227", "permission denied for table order"),
    "CREATE PUBLICATION": ("TR-207", 'CREATE PUBLICATION "{role}" FOR TABLE "public"."order_items", "public"."orders"'),
}


def _grant(database: str, role: str, without: str | None = None) -> str:
    """Run the README's statements but the one right; return the role's DSN."""
    block = re.search(r"\*\*Least rights\*\*.*?\n\n((?: {4}.*\n)+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert block is not None
    statements = [line.strip() for line in re.sub(r"\btailrace\b", role, block[1]).splitlines()]
    if without is not None:
        assert sum(without in statement for statement in statements) == 1
        statements = [
            statement.replace(without, "") if without.startswith(" ") else statement
            for statement in statements
            if without.startswith(" ") or without not in statement
        ]
    with psycopg.connect(database, autocommit=True) as connection:
        # what older versions, and who upgraded from them, let everybody do
        connection.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        for table in ("orders", "order_items"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)".encode())
        for statement in statements:
            connection.execute(statement.encode())
    parts = urlsplit(database)
    return parts._replace(netloc=f"{role}@{parts.hostname}:{parts.port}").geturl()


@pytest.mark.parametrize("without", [None, "GRANT pg_monitor"])
def test_a_role_with_these_rights_works(
    tmp_path: Path, servers: Servers, database: str, prefix: str, without: str | None
) -> None:
    dsn = _grant(database, prefix, without)
    config = write_config(tmp_path, dsn, servers.bootstrap, prefix, source=f'publication = "{prefix}"\n')
    with running(config), psycopg.connect(database, autocommit=True) as connection:
        wait_for_state(load(config), connection)
        connection.execute("INSERT INTO orders VALUES (2)")
        wait_for_state(load(config), connection)
    assert set(latest(read_topic(servers.bootstrap, prefix, "public.orders"))) == {(1,), (2,)}


@pytest.mark.parametrize("without", _REFUSED)
def test_one_right_less_is_named(tmp_path: Path, servers: Servers, database: str, prefix: str, without: str) -> None:
    dsn = _grant(database, prefix, without)
    config = write_config(tmp_path, dsn, servers.bootstrap, prefix, source=f'publication = "{prefix}"\n')
    refused = tailrace("run", "--config", str(config))
    code, said = _REFUSED[without]
    assert refused.returncode == 4
    assert f"ERROR  {code}" in refused.stderr
    assert said.format(role=prefix) in refused.stderr
