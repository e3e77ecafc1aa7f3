"""Publications limit snapshot and stream alike: parts of tables, partitions, generated columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.records.position import PositionRecord
from tests.support.daemon import (
    do_as_the_hint_says,
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
from tests.support.refused import assert_refused
from tests.support.topics import assert_once_in_order, latest, read_topic


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    return write_config(tmp_path, database, servers.bootstrap, prefix)


def _assert_equal(
    connection: psycopg.Connection[Any],
    servers: Servers,
    config: Config,
    cuts: list[PositionRecord],
    table: str,
    query: str = "",
) -> int:
    """Compare a topic with the query's rows, by `id`; return the number of rows."""
    name = f"public.{table}"
    end = first_state(config, cuts, name).offsets[f"{config.kafka.prefix}.{name}"]
    records = read_topic(servers.bootstrap, config.kafka.prefix, name, end)
    assert_once_in_order(records)
    cursor = connection.cursor(row_factory=dict_row)
    rows = {(row["id"],): row for row in cursor.execute((query or f"SELECT * FROM {table}").encode())}
    assert latest(records) == rows
    return len(rows)


_PARTITIONED = """
CREATE TABLE visit (id int PRIMARY KEY, page text, body text) PARTITION BY RANGE (id);
ALTER TABLE visit ALTER body SET STORAGE EXTERNAL;
CREATE TABLE visit_low PARTITION OF visit FOR VALUES FROM (0) TO (100);
CREATE TABLE visit_mid PARTITION OF visit FOR VALUES FROM (100) TO (300) PARTITION BY RANGE (id);
CREATE TABLE visit_mid_a PARTITION OF visit_mid FOR VALUES FROM (100) TO (200);
CREATE TABLE visit_mid_b (body text, gone int, id int NOT NULL, page text);
ALTER TABLE visit_mid_b DROP gone, ALTER body SET STORAGE EXTERNAL;
ALTER TABLE visit_mid ATTACH PARTITION visit_mid_b FOR VALUES FROM (200) TO (300);
INSERT INTO visit SELECT g, 'page ' || g, repeat('body' || g, 1000) FROM generate_series(0, 299, 10) g;
"""


def _change_partitions(connection: psycopg.Connection[Any]) -> None:
    connection.execute("INSERT INTO visit SELECT g, 'streamed', NULL FROM generate_series(1, 299, 10) g")
    # the body does not change: unchanged TOAST, also in a partition with another order of columns
    connection.execute("UPDATE visit SET page = 'updated' WHERE id % 20 = 0")
    connection.execute("UPDATE visit SET id = id + 153 WHERE id IN (10, 30)")
    connection.execute("UPDATE visit SET id = id + 5 WHERE id IN (210, 230)")
    connection.execute("DELETE FROM visit WHERE id % 100 = 51")


def test_partitions_published_by_their_root_share_its_topic(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """Nested roots; PeerDB's Partitioned_Table_With_Different_Column_Ordering; ATTACH and DETACH at work."""
    source.execute(_PARTITIONED.encode())
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        _change_partitions(source)
        source.execute(
            "CREATE TABLE visit_high (page text, id int PRIMARY KEY, body text);"
            "ALTER TABLE visit ATTACH PARTITION visit_high FOR VALUES FROM (300) TO (400);"
            "INSERT INTO visit SELECT g, 'attached', repeat('x', 5000) FROM generate_series(300, 310) g;"
            "UPDATE visit SET page = 'again' WHERE id = 303;"
            "UPDATE visit SET id = 320 WHERE id = 304;"
        )
        cuts = wait_for_cuts(config, source)
        assert _assert_equal(source, servers, config, cuts, "visit") == 30 + 30 + 11 - 3
        everything = "SELECT * FROM visit"
        rows = source.execute(f"{everything} WHERE id >= 300".encode()).fetchall()
        source.execute("ALTER TABLE visit DETACH PARTITION visit_high")
        # rows that leave with a partition are no change in the WAL: they stay on the topic
        source.execute("DELETE FROM visit_high WHERE id < 305; INSERT INTO visit VALUES (2, 'behind', NULL)")
        cuts = wait_for_cuts(config, source)
        _assert_equal(source, servers, config, cuts, "visit", f"{everything} UNION ALL VALUES {_values(rows)}")
        source.execute("TRUNCATE visit")
        cuts = wait_for_cuts(config, source)
        assert _assert_equal(source, servers, config, cuts, "visit") == 0
        assert daemon.stop() == 0


def _values(rows: list[tuple[Any, ...]]) -> str:
    return ", ".join(f"({number}, '{page}', '{body}')" for number, page, body in rows)


def test_partitions_published_by_their_own_names_are_tables(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """The owner's publication has no publish_via_partition_root, so each partition is a table."""
    source.execute(_PARTITIONED.encode())
    source.execute("CREATE PUBLICATION tailrace FOR TABLE visit WITH (publish_via_partition_root = false)")
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        _change_partitions(source)
        source.execute(
            "CREATE TABLE visit_high PARTITION OF visit FOR VALUES FROM (300) TO (400);"
            "INSERT INTO visit SELECT g, 'attached', NULL FROM generate_series(300, 310) g;"
            "ALTER TABLE visit DETACH PARTITION visit_low"
        )
        source.execute("UPDATE visit_low SET page = 'no longer published' WHERE id = 0")
        leaves = ["visit_mid_a", "visit_mid_b", "visit_high"]
        published = [f"public.{leaf}" for leaf in leaves]
        cuts = wait_for_cuts(config, source, published)
        assert cuts[-1].waits_for(["public.visit_low"]), "it lacks an update"
        for leaf in leaves:
            assert _assert_equal(source, servers, config, cuts, leaf) > 5
        source.execute("TRUNCATE visit_mid")
        cuts = wait_for_cuts(config, source, published)
        assert _assert_equal(source, servers, config, cuts, "visit_mid_a") == 0
        assert _assert_equal(source, servers, config, cuts, "visit_mid_b") == 0
        assert daemon.stop() == 0


def test_a_partition_that_leaves_and_returns_is_read_again(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """The stream lacks the changes of the meantime; the same holds if its root leaves the publication."""
    source.execute(_PARTITIONED.encode())
    source.execute("CREATE PUBLICATION tailrace FOR TABLE visit WITH (publish_via_partition_root = false)")
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute("ALTER TABLE visit DETACH PARTITION visit_low")
        source.execute("DELETE FROM visit_low WHERE id < 50; UPDATE visit_low SET page = 'unseen'")
        source.execute("ALTER TABLE visit ATTACH PARTITION visit_low FOR VALUES FROM (0) TO (100)")
        cuts = wait_for_cuts(config, source)
        assert _assert_equal(source, servers, config, cuts, "visit_low") == 5
        source.execute("ALTER PUBLICATION tailrace DROP TABLE visit")
        source.execute("DELETE FROM visit WHERE id BETWEEN 100 AND 150")
        source.execute("ALTER PUBLICATION tailrace ADD TABLE visit")
        cuts = wait_for_cuts(config, source)
        for leaf in ("visit_low", "visit_mid_a", "visit_mid_b"):
            _assert_equal(source, servers, config, cuts, leaf)
        assert daemon.stop() == 0


def test_column_lists_and_row_filters_limit_what_is_captured(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    source.execute(
        "CREATE TABLE part (secret text, id int PRIMARY KEY, a text, n int,"
        " made int GENERATED ALWAYS AS (n * 2) STORED);"
        "CREATE TABLE filtered (id int, n int, t text, PRIMARY KEY (id, n));"
        "CREATE TABLE events (id int, n int, t text);"
        "CREATE TABLE careless (n int);"
        "INSERT INTO part SELECT 'no', g, 'a' || g, g FROM generate_series(1, 50) g;"
        "INSERT INTO filtered SELECT g, g % 3, 'f%s' FROM generate_series(1, 50) g;"
        "INSERT INTO events SELECT g, g % 3, 'e' FROM generate_series(1, 50) g;"
        "CREATE PUBLICATION tailrace FOR TABLE part (id, made, a), filtered WHERE (n > 0), careless;"
        "CREATE PUBLICATION tailrace_nokey FOR TABLE events (t, id) WHERE (n <> 1 AND t LIKE '%')"
        " WITH (publish = 'insert, truncate')"
    )
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute("INSERT INTO part (id, a, n) SELECT g, 'b', -g FROM generate_series(51, 60) g")
        source.execute("UPDATE part SET n = 1000 WHERE id < 5; DELETE FROM part WHERE id = 60")
        # rows that enter the filter, and rows that leave it
        source.execute("UPDATE filtered SET n = (n + 1) % 3 WHERE id <= 30; DELETE FROM filtered WHERE id > 45")
        source.execute("INSERT INTO events SELECT g, g % 3, 'e' FROM generate_series(51, 59) g")
        source.execute("UPDATE events SET t = 'in place' WHERE id = 3")
        cuts = wait_for_cuts(config, source)
        assert _assert_equal(source, servers, config, cuts, "part", "SELECT id, a, made FROM part") == 59
        assert daemon.stop() == 0
    (said,) = events(daemon, "updates and deletes fail on the source: no replica identity")
    assert (said["table"], said["publication"]) == ("public.careless", "tailrace")
    records = read_topic(servers.bootstrap, config.kafka.prefix, "public.filtered")
    assert_once_in_order(records)
    cursor = source.cursor(row_factory=dict_row).execute("SELECT * FROM filtered WHERE n > 0")
    assert latest(records) == {(row["id"], row["n"]): row for row in cursor}
    inserted = [each.value for each in read_topic(servers.bootstrap, config.kafka.prefix, "public.events")]
    assert [each and each["after"] for each in inserted] == [{"id": g, "t": "e"} for g in range(1, 60) if g % 3 != 1]


def test_stored_generated_columns_are_captured_and_virtual_ones_reported(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """The topic has stored ones by snapshot and stream; the WAL lacks virtual ones, which is logged once."""
    source.execute(
        "CREATE TABLE made (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED,"
        " thrice int GENERATED ALWAYS AS (n * 3) VIRTUAL,"
        " large text GENERATED ALWAYS AS (repeat(n::text, 3000)) STORED);"
        "ALTER TABLE made ALTER large SET STORAGE EXTERNAL;"
        "INSERT INTO made (id, n) SELECT g, g FROM generate_series(1, 20) g"
    )
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute("INSERT INTO made (id, n) SELECT g, g FROM generate_series(21, 40) g")
        source.execute("UPDATE made SET n = -n WHERE id % 3 = 0; UPDATE made SET id = 100 WHERE id = 9")
        source.execute("UPDATE made SET n = NULL WHERE id = 10")
        cuts = wait_for_cuts(config, source)
        assert _assert_equal(source, servers, config, cuts, "made", "SELECT id, n, twice, large FROM made") == 40
        assert daemon.stop() == 0
    (said,) = events(daemon, "generated columns not published")
    assert said["columns"] == ["public.made.thrice"]


def test_a_column_list_with_only_a_part_of_the_key_is_refused(
    source: psycopg.Connection[Any], config_path: Path
) -> None:
    """The hint adds the column, and leaves the row filter and the other table as they are."""
    source.execute(
        'CREATE TABLE t (a int, "B" int, c int, d int, PRIMARY KEY (a, "B")); CREATE TABLE u (id int PRIMARY KEY);'
        "CREATE PUBLICATION tailrace FOR TABLE t (a, c) WHERE (a > 0), u"
    )
    source.execute(assert_refused(config_path, "TR-205", 4).partition("HINT")[2].encode())
    published = "SELECT tablename::text, attnames::text[], rowfilter FROM pg_publication_tables ORDER BY 1"
    assert source.execute(published).fetchall() == [("t", ["a", "B", "c"], "(a > 0)"), ("u", ["id"], None)]
    with running(config_path):
        wait_for(load(config_path), lambda record: record.is_state)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP PUBLICATION tailrace; CREATE PUBLICATION tailrace FOR TABLE t", "was dropped and recreated"),
        ("DROP PUBLICATION tailrace_nokey", '"tailrace_nokey" is missing'),
    ],
)
def test_a_dropped_or_recreated_publication_is_refused(
    source: psycopg.Connection[Any], config_path: Path, statement: str, said: str
) -> None:
    """The stream lacks the changes of the meantime, and nothing else would reveal that."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        assert daemon.stop() == 0
    assert not events(daemon, "updates and deletes fail on the source: no replica identity")
    source.execute(statement.encode())
    assert_refused(config_path, "TR-404", 6, said)


def test_a_table_moved_to_the_keyless_publication_is_parked(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """It was moved to the keyless publication: its topic would never change again, and be called a state."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2)")
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        assert daemon.stop() == 0
    source.execute("ALTER PUBLICATION tailrace DROP TABLE t; ALTER PUBLICATION tailrace_nokey ADD TABLE t")
    source.execute("UPDATE t SET n = 3 WHERE id = 1; DELETE FROM t WHERE id = 2")
    with running(config_path) as daemon:
        assert wait_for(config, lambda record: bool(record.parked)).parked == {"public.t": "TR-428"}
        listed = tailrace("table", "list", "--config", str(config_path)).stdout
        for command in ("table remove public.t", "table add public.t", "table resume public.t"):
            assert f"tailrace {command}" in listed
            assert tailrace(*command.split(), "--config", str(config_path)).returncode == 0
        cuts = wait_for_cuts(config, source)
        assert _assert_equal(source, servers, config, cuts, "t") == 1
        assert daemon.stop() == 0


def test_a_table_added_to_the_keyless_publication_is_a_log(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """Also with a primary key, and while the daemon runs: a topic by key would lack its updates."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY, n int)")
    source.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    source.execute("CREATE PUBLICATION tailrace_nokey WITH (publish = 'insert, truncate')")
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for(config, lambda record: record.is_state)
        source.execute("ALTER PUBLICATION tailrace_nokey ADD TABLE late")
        wait_until(lambda: [event["table"] for event in events(daemon, "table copied")][1:] == ["public.late"])
        source.execute("INSERT INTO late VALUES (1, 1); UPDATE late SET n = 2; DELETE FROM late")
        wait_for_state(config, source)
        records = read_topic(servers.bootstrap, config.kafka.prefix, "public.late")
        assert [(each.key, each.value and each.value["after"]) for each in records] == [((None,), {"id": 1, "n": 1})]
        assert daemon.stop() == 0


def test_changes_under_a_renamed_publication_are_recovered_by_the_hint(
    source: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """The server omits them, with a warning from PostgreSQL 18 on; the daemon finds the old name again."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    config = load(config_path)
    with running(config_path) as daemon:
        wait_for_state(config, source)
        assert daemon.stop() == 0
    source.execute("ALTER PUBLICATION tailrace RENAME TO other")
    source.execute("INSERT INTO t VALUES (2)")
    source.execute("ALTER PUBLICATION other RENAME TO tailrace")
    source.execute("INSERT INTO t VALUES (3)")
    do_as_the_hint_says(config_path)
    with running(config_path) as daemon:
        wait_for_state(config, source)
        source.execute("INSERT INTO t VALUES (4)")
        cuts = wait_for_cuts(config, source)
        assert _assert_equal(source, servers, config, cuts, "t") == 4
        assert daemon.stop() == 0
