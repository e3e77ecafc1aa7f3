"""Kill -9 of the daemon's container, one broker of three, or PostgreSQL, under load: no data differs."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.containers.servers import Daemon, Servers
from tests.support.bank import TABLES, Writer, assert_equal, create_tables
from tests.support.daemon import wait_for_state, wait_until
from tests.support.verified import differing_keys

_LOAD_S = 3.0
_ACCOUNTS = 400


class _PatientWriter(Writer):
    """A writer that resumes when PostgreSQL is back."""

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                super()._work()
            except psycopg.OperationalError:
                self.transactions += 1  # the transaction may have committed, and then its keys are used up
                time.sleep(0.1)


@pytest.mark.parametrize("victim", ["daemon", "broker", "postgres"])
def test_a_killed_container_loses_or_doubles_nothing(servers: Servers, database: str, prefix: str, victim: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        create_tables(connection, _ACCOUNTS)
    with Daemon(servers, database, prefix) as daemon:
        with psycopg.connect(database, autocommit=True) as connection:
            wait_for_state(daemon.config, connection)
        killed = {"daemon": daemon.container, "broker": servers.brokers[0], "postgres": servers.postgres}[victim]
        with _PatientWriter(database, 8, _ACCOUNTS).writing() as writer:
            time.sleep(_LOAD_S)
            wait_until(lambda: writer.transactions > 100, 60)
            before = writer.transactions
            killed.get_wrapped_container().kill("SIGKILL")
            time.sleep(_LOAD_S)
            killed.get_wrapped_container().start()
            time.sleep(_LOAD_S)
        assert writer.transactions > before
        servers.wait_until_ready()
        with psycopg.connect(database, autocommit=True) as connection:
            assert_equal(servers.bootstrap, daemon.config, connection)
        assert [differing_keys(daemon.config, table) for table in TABLES] == [0] * len(TABLES)
