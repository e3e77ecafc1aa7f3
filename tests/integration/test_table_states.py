"""While one table is read again, cuts are states of the other tables, and of them only."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.read_status import read_shares, read_stored
from tailrace.cdc.operations.verify_log import verify_log
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.position import Cut, PositionRecord
from tests.support.daemon import Daemon, events, running, tailrace, wait_for, wait_for_state, write_config
from tests.support.topics import latest, read_topic

_ROWS = 4000
_BIG, _SMALL = "public.big", "public.small"


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE big (id int PRIMARY KEY, label text)")
        connection.execute("CREATE TABLE small (id int PRIMARY KEY)")
        connection.execute("INSERT INTO big SELECT g, 'row ' || g FROM generate_series(1, %s) g", (_ROWS,))
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    more = "[snapshot]\nchunk_bytes = 8192\nmax_bytes_per_s = 5000\n[delivery]\nmax_transaction_ms = 50\n"
    return write_config(tmp_path, database, servers.bootstrap, prefix, more)


class _Topics:
    """Compares the rows of topics up to a cut with those of the source."""

    def __init__(self, servers: Servers, config: Config, source: psycopg.Connection[Any]) -> None:
        self._bootstrap, self._config, self._source = servers.bootstrap, config, source

    def state(self, tables: Collection[str]) -> Cut:
        """Return the state of some tables with all present commits, after comparing them with the source."""
        cut = wait_for_state(self._config, self._source, tables=tables)
        for table in tables:
            topic = f"{self._config.kafka.prefix}.{table}"
            records = read_topic(self._bootstrap, self._config.kafka.prefix, table, cut.offsets[topic])
            rows = {key: tuple(row.values()) for key, row in latest(records).items()}
            there = self._source.execute(f"SELECT * FROM {table}".encode()).fetchall()
            assert rows == {row[:1]: row for row in there}, table
        return cut


def _alter(source: psycopg.Connection[Any], config: Config, daemon: Daemon) -> None:
    """Alter `big` so that its rows are reread; pause that read when a part of it is done."""
    source.execute("ALTER TABLE big ADD note text DEFAULT 'note'")
    wait_for(config, lambda record: _BIG in record.incomplete_tables and events(daemon, "table read started"))
    wait_for(config, lambda record: read_shares(config, record).get(_BIG))
    done = tailrace("snapshot", "pause", "big", "--config", f"{daemon.log.parent / 'tailrace.toml'}")
    assert done.returncode == 0, done.stderr


def test_other_tables_states_advance_while_one_is_reread(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    config = load(config_path)
    topics = _Topics(servers, config, source)
    with running(config_path) as daemon:
        before = topics.state([_BIG, _SMALL])
        _alter(source, config, daemon)
        for number in range(1, 4):
            source.execute("INSERT INTO small VALUES (%s)", (number,))
            source.execute("UPDATE big SET label = 'changed' WHERE id = %s", (number,))
            moved = topics.state([_SMALL])
        record = _newest(config)
        assert record.waits_for([_SMALL, _BIG]) == (_BIG,)
        assert record.state_for([_SMALL]) == record.here
        assert record.here.order >= moved.order
        stuck = record.state_for([_BIG])
        assert stuck is not None
        assert before.order <= stuck.order < moved.order
        assert stuck == record.state_for([_BIG, _SMALL]) == record.state
        assert 0 < read_shares(config, record)[_BIG] < 1

        # the daemon dies, and the next one knows the state
        daemon.kill()
    with running(config_path) as daemon:
        source.execute("INSERT INTO small VALUES (4)")
        topics.state([_SMALL])
        assert _newest(config).state_for([_BIG]) == stuck
        done = tailrace("snapshot", "resume", "big", "--config", str(config_path))
        assert done.returncode == 0, done.stderr
        source.execute("INSERT INTO small VALUES (5)")
        assert topics.state([_BIG, _SMALL]).order > stuck.order
        assert not _newest(config).states
        assert daemon.stop() == 0
    assert verify_log(config).tally.findings == []


def _newest(config: Config) -> PositionRecord:
    record, _ = read_stored(config)
    assert record is not None
    return record
