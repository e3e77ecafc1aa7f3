"""Large transactions that are streamed before their commit give the same topics as those sent whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tests.support.bank import Writer, assert_equal, create_tables
from tests.support.daemon import running, wait_for, wait_for_state, write_config


def large_transaction(connection: psycopg.Connection[Any], first: int) -> None:
    """Write many rows, roll parts of them back, and change the same rows again."""
    with connection.transaction():
        connection.execute("UPDATE account SET version = version + 1")
        with connection.transaction(force_rollback=True):
            connection.execute(
                "INSERT INTO entry (account, n) SELECT 1, g FROM generate_series(%s::int, %s) g",
                (first, first + 20_000),
            )
            with connection.transaction():
                connection.execute("DELETE FROM document")
        with connection.transaction():
            connection.execute(
                "INSERT INTO entry (account, n) SELECT 2, g FROM generate_series(%s::int, %s) g",
                (first, first + 20_000),
            )
        connection.execute("UPDATE document SET title = title || '?'")
        connection.execute(
            "UPDATE entry SET n = n + 50000000 WHERE n % 7 = 0 AND n >= %s".replace("% 7", "%% 7"), (first,)
        )


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_large_transactions_equal_the_source_streamed_or_whole(
    servers: Servers,
    database: str,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    streaming: str,
) -> None:
    monkeypatch.setenv("TAILRACE__SOURCE__STREAMING", streaming)
    monkeypatch.setenv("TAILRACE__SOURCE__SPOOL_DIR", str(tmp_path / "spool"))
    path = write_config(tmp_path, database, servers.bootstrap, prefix, "[delivery]\nmax_transaction_bytes = 65536\n")
    config = load(path)
    with psycopg.connect(database, autocommit=True) as shop:
        create_tables(shop)
        shop.execute(f"ALTER DATABASE {shop.info.dbname} SET logical_decoding_work_mem = '64kB'".encode())
        with Writer(database, 7).writing():
            with running(path) as daemon:
                wait_for_state(config, shop)
                large_transaction(shop, 500_001)
                wait_for(config, lambda record: record.open is not None)
                daemon.kill()
            large_transaction(shop, 700_001)
            with shop.transaction(), shop.transaction(force_rollback=True):
                shop.execute("ALTER TABLE document ADD extra int DEFAULT 7; TRUNCATE document")
                shop.execute("INSERT INTO document (id, title) SELECT g, 'gone' FROM generate_series(1, 20000) g")
            with running(path):
                wait_for_state(config, shop)
        with running(path) as daemon:
            assert_equal(servers.bootstrap, config, shop)
            assert daemon.stop() == 0
