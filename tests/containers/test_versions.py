"""PostgreSQL 14 to 18 and one broker, in containers: a snapshot under load, the stream, and verify."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.containers.servers import Daemon, Servers, of_version
from tests.containers.servers import servers as running_servers
from tests.support.bank import TABLES, Writer, assert_equal, create_tables
from tests.support.daemon import wait_for
from tests.support.postgres_versions import OLDER
from tests.support.servers import fresh_database
from tests.support.verified import differing_keys

_ACCOUNTS = 400


@pytest.fixture(scope="module")
def one_broker(engine: None) -> Iterator[Servers]:
    with running_servers(brokers=1) as started:
        yield started


@pytest.fixture(params=[18, *OLDER])
def version(request: pytest.FixtureRequest, one_broker: Servers) -> Iterator[Servers]:
    if request.param == 18:
        yield one_broker
        return
    with of_version(request.param, one_broker) as started:
        with psycopg.connect(started.dsn) as connection:
            assert connection.info.server_version // 10_000 == request.param
        yield started


def test_snapshot_under_load_and_stream_equal_the_source(version: Servers, prefix: str) -> None:
    with fresh_database(version.dsn) as database, psycopg.connect(database, autocommit=True) as connection:
        create_tables(connection, _ACCOUNTS)
        with Writer(database, 1, _ACCOUNTS).writing() as writer, Daemon(version, database, prefix) as daemon:
            wait_for(daemon.config, lambda record: record.is_state and writer.transactions > 100)
            connection.execute("UPDATE account SET id = id + 1000000 WHERE id > 390")
            connection.execute("UPDATE document SET title = 'the body stays out of line' WHERE id % 3 = 0")
            writer.stop()
            assert_equal(version.bootstrap, daemon.config, connection)
            assert [differing_keys(daemon.config, table) for table in TABLES] == [0] * len(TABLES)
