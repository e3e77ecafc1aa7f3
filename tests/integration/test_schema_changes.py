"""Tables altered while the daemon runs or is stopped: topics equal them, row by row.

Topics are read with their newest schema. If a statement changes rows without a change in the WAL, they are read again;
changes that readers cannot follow stop the daemon before it writes any of it. Names refer to other projects' cases.
"""

from __future__ import annotations

import io
import json
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fastavro
import psycopg
import pytest
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.schemas.envelope import SNAPSHOT_HEADER, TRUNCATE_KEY
from tests.support.bank import Writer, assert_equal, create_tables
from tests.support.daemon import Daemon, events, running, tailrace, wait_for, wait_for_state, write_config
from tests.support.topics import assert_once_in_order, read_raw, read_topic, schemas

ROWS = 300
SEEDS = range(int(os.environ.get("TAILRACE_TEST_SEEDS", "1")))


class Topics:
    """The topics of one pipeline and their tables."""

    def __init__(self, servers: Servers, config: Config, connection: psycopg.Connection[Any]) -> None:
        self.bootstrap = servers.bootstrap
        self.config = config
        self.prefix = config.kafka.prefix
        self.connection = connection

    def equal(self, *tables: str) -> dict[Any, dict[str, Any]]:
        """Wait for a state, compare tables and topics row by row; return the last table's rows by `id`."""
        cut = wait_for_state(self.config, self.connection)
        rows: dict[Any, dict[str, Any]] = {}
        for table in tables:
            topic = f"{self.prefix}.public.{table}"
            rows, expected = self._latest(topic, cut.offsets[topic]), self._source(table)
            assert rows.keys() == expected.keys(), table
            different = [key for key, row in expected.items() if rows[key] != row]
            assert not different, (
                f"{table}, {len(different)} rows: {rows[different[0]]} is not {expected[different[0]]}"
            )
        return rows

    def runs(self, table: str) -> set[int]:
        """Return the snapshot runs that have left rows on a topic."""
        found = set()
        for message in read_raw(self.bootstrap, f"{self.prefix}.public.{table}"):
            headers = dict(message.headers())
            if SNAPSHOT_HEADER in headers:
                found.add(int.from_bytes(headers[SNAPSHOT_HEADER], "big"))
        return found

    def _source(self, table: str) -> dict[Any, dict[str, Any]]:
        cursor = self.connection.cursor(row_factory=dict_row)
        cursor.execute(f"SELECT * FROM {table}".encode())
        return {row[next(iter(row))]: row for row in cursor}

    def _latest(self, topic: str, end: list[int]) -> dict[Any, dict[str, Any]]:
        """Return the newest record of each key, resolved by Avro to the topic's newest schema."""
        writers = schemas(self.bootstrap, self.prefix)
        stored = [
            json.loads(message.value()) for message in read_raw(self.bootstrap, f"{self.prefix}.tailrace.schemas")
        ]
        newest = writers[max(each["id"] for each in stored if each["subject"] == f"{topic}-value")]
        rows: dict[tuple[int, bytes], Any] = {}
        for message in read_raw(self.bootstrap, topic, end):
            place = message.partition(), message.key()
            if message.key() == TRUNCATE_KEY:
                rows = {at: value for at, value in rows.items() if at[0] != place[0]}
            elif message.value() is None:
                rows.pop(place, None)
            else:
                rows[place] = message.value()
        decoded = []
        for raw in rows.values():
            writer = writers[int.from_bytes(raw[1:5], "big")]
            record = fastavro.schemaless_reader(io.BytesIO(raw[5:]), writer, newest)
            assert isinstance(record, dict)
            if record["op"] != "d":
                decoded.append(record["after"])
        return {row[next(iter(row))]: row for row in decoded}


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'ok');"
            "CREATE TABLE t (id int PRIMARY KEY, name varchar(10), price numeric(10,2), n int, feeling mood, old text);"
            "CREATE TABLE other (id int PRIMARY KEY, x int); INSERT INTO other VALUES (1, 1);"
            "CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish_via_partition_root = true)"
        )
        connection.execute(
            "INSERT INTO t SELECT g, 'row ' || g, g / 4.0, g, 'ok', 'old ' || g FROM generate_series(1, %s) g", (ROWS,)
        )
        yield connection


@pytest.fixture
def config_path(tmp_path: Path, servers: Servers, database: str, prefix: str) -> Path:
    more = "[snapshot]\nchunk_bytes = 8192\n[delivery]\nmax_transaction_ms = 50\n"
    return write_config(tmp_path, database, servers.bootstrap, prefix, more)


STEPS = [
    # name, statements, and whether all rows are read again (None: depends on timing)
    ("a column added: rows read as null", "ALTER TABLE t ADD a int", False),
    ("added with a default", "ALTER TABLE t ADD b int DEFAULT 7", True),
    ("added with a volatile default", "ALTER TABLE t ADD c float8 DEFAULT random()", True),
    ("added, then filled, in one transaction", "BEGIN; ALTER TABLE t ADD d int; UPDATE t SET d = id; COMMIT", False),
    ("dropped", "ALTER TABLE t DROP old", False),
    ("materialize#17927: dropped and added again", "ALTER TABLE t DROP a, DROP b, ADD b int, ADD a int", True),
    ("a name of long ago comes back", "ALTER TABLE t ADD old text", True),
    ("PeerDB Drop_Consecutive_Columns", "ALTER TABLE t DROP a; ALTER TABLE t DROP b; ALTER TABLE t DROP d", False),
    ("renamed", "ALTER TABLE t RENAME old TO older", True),
    ("renamed and back", "ALTER TABLE t RENAME older TO old", True),
    ("widened: a promotion, rewritten", "ALTER TABLE t ALTER n TYPE bigint", True),
    ("the same type, other values", "ALTER TABLE t ALTER n TYPE bigint USING n * 3", True),
    ("a longer varchar", "ALTER TABLE t ALTER name TYPE varchar(40)", False),
    ("varchar to text", "ALTER TABLE t ALTER name TYPE text", False),
    ("more digits", "ALTER TABLE t ALTER price TYPE numeric(14,2)", False),
    ("dbz#304: a value added to an enum", "ALTER TYPE mood ADD VALUE 'glad'", False),
    ("rewritten with the same contents", "VACUUM FULL t", False),
    ("clustered", "CLUSTER t USING t_pkey", False),
    ("full identity", "ALTER TABLE t REPLICA IDENTITY FULL", False),
    ("a column added under full identity", "ALTER TABLE t ADD e text DEFAULT 'e'", True),
    ("PeerDB Schema_Changes_Cutoff_Bug", "ALTER TABLE t ADD f int; UPDATE t SET f = 1; ALTER TABLE t DROP f", None),
    ("rolled back", "BEGIN; SAVEPOINT s; ALTER TABLE t ADD g int DEFAULT 9; UPDATE t SET g = 1 WHERE id < 9;"
     " ROLLBACK TO s; UPDATE t SET n = 5 WHERE id = 3; COMMIT", False),
    ("between two changes of one transaction", "BEGIN; UPDATE t SET n = 1 WHERE id = 4; ALTER TABLE t ADD h int"
     " DEFAULT 1; UPDATE t SET h = 2 WHERE id = 4; ALTER TABLE t DROP c; DELETE FROM t WHERE id = 5; COMMIT", True),
    ("emptied and altered", "TRUNCATE t; ALTER TABLE t ADD i int DEFAULT 3", True),
]  # fmt: skip


def test_a_table_altered_while_the_daemon_runs_equals_its_topic(
    shop: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    topics = Topics(servers, load(config_path), shop)
    with running(config_path) as daemon:
        assert len(topics.equal("t")) == ROWS
        for n, (what, statements, again) in enumerate(STEPS):
            runs = topics.runs("t")
            for statement in statements.split("; "):
                shop.execute(statement.encode())
            shop.execute("INSERT INTO t (id, n, feeling) VALUES (%s, 1, 'ok')", (1000 + n,))
            shop.execute("UPDATE t SET name = 'changed' WHERE id = %s", (100 + n,))
            try:
                topics.equal("t")
                assert again is None or bool(topics.runs("t") - runs) is again
                assert daemon.process.poll() is None
            except (AssertionError, KeyError) as error:
                raise AssertionError(f"{what}: {error}\n{daemon.log.read_text()[-3000:]}") from error
        assert daemon.stop() == 0
    assert_once_in_order(read_topic(servers.bootstrap, topics.prefix, "public.t"))


class Random:
    """Random statements from a seed: alterations of every kind, with and without row changes in between."""

    _TYPES = ("int", "bigint", "real", "float8", "varchar(20)", "text", "numeric(8,2)", "numeric(12,2)", "mood")
    _VALUES = ("7", "8", "0.5", "0.25", "'a'", "'b'", "1.25", "99.5", "'sad'")

    def __init__(self, shop: psycopg.Connection[Any], seed: int) -> None:
        self._shop = shop
        self._pick = random.Random(seed)
        self._id = 10_000
        self.done: list[str] = []

    def step(self) -> None:
        """Run some statements, each by itself or all in one transaction that may be rolled back."""
        pick = self._pick
        drawn = pick.random()
        count = pick.randint(1, 4)
        if drawn < 0.7:
            for _ in range(count):
                self._try()
        else:
            with self._shop.transaction(force_rollback=drawn > 0.9):
                for _ in range(count):
                    with self._shop.transaction(force_rollback=pick.random() < 0.2):
                        self._try()

    def _try(self) -> None:
        """Run a statement; one that PostgreSQL refuses leaves no trace."""
        statement = self._pick.choice((self._alter, self._change))()
        with suppress(psycopg.Error):
            if self._shop.info.transaction_status == TransactionStatus.IDLE:
                self._shop.execute(statement.encode())
            else:
                with self._shop.transaction():
                    self._shop.execute(statement.encode())
            self.done.append(statement)

    def _columns(self) -> list[str]:
        rows = self._shop.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 1 AND NOT attisdropped"
        )
        return [name for (name,) in rows]

    def _alter(self) -> str:
        pick, columns = self._pick, self._columns()
        free = sorted({"a", "b", "c", "d", "e"} - set(columns))
        column = pick.choice(columns) if columns else ""
        n = pick.randrange(len(self._TYPES))
        kind, value = self._TYPES[n], self._VALUES[n]
        choices = ["VACUUM FULL t"] if self._shop.info.transaction_status == TransactionStatus.IDLE else []
        choices += ["TRUNCATE t", "ALTER TABLE t REPLICA IDENTITY FULL", "ALTER TABLE t REPLICA IDENTITY DEFAULT"]
        if free:
            name = pick.choice(free)
            choices += 3 * [f"ALTER TABLE t ADD {name} {kind}", f"ALTER TABLE t ADD {name} {kind} DEFAULT {value}"]
        if column:
            cast = f"CASE WHEN id % 2 = 0 THEN {value}::{kind} END"
            choices += [f"ALTER TABLE t DROP {column}", f"ALTER TABLE t ALTER {column} TYPE {kind} USING {cast}"]
            choices += [f"ALTER TABLE t DROP {column}, ADD {column} {kind} DEFAULT {value}"]
        if column and free:
            choices += 2 * [f"ALTER TABLE t RENAME {column} TO {pick.choice(free)}"]
        if pick.random() < 0.1:
            choices = ["DROP TABLE t; CREATE TABLE t (id bigint PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'new')"]
        return pick.choice(choices)

    def _change(self) -> str:
        pick = self._pick
        self._id += 20
        first = pick.randrange(1, self._id)
        return pick.choice(
            [
                f"INSERT INTO t (id) SELECT generate_series({self._id}, {self._id} + 15)",
                f"DELETE FROM t WHERE id BETWEEN {first} AND {first} + 100",
                f"UPDATE t SET id = -id WHERE id BETWEEN {first} AND {first} + 10",
                *(f"UPDATE t SET {column} = NULL WHERE id > {first}" for column in self._columns()),
            ]
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_table_altered_at_random_equals_its_topic_at_every_state(
    shop: psycopg.Connection[Any], servers: Servers, config_path: Path, seed: int
) -> None:
    """Kills and alterations come at any moment; at each cut called a state the topic equals the table."""
    _choose(config_path, 'on_schema_change = "truncate"')  # the former name of "refill"
    topics = Topics(servers, load(config_path), shop)
    chance = random.Random(-seed)
    statements = Random(shop, seed)
    daemon = Daemon(config_path)
    try:
        topics.equal("t")
        for _ in range(12):
            if chance.random() < 0.3:
                daemon.kill()
            for _ in range(chance.randint(1, 5)):
                statements.step()
            if daemon.process.poll() is not None:
                daemon = Daemon(config_path)
            shop.execute("INSERT INTO t (id) SELECT max(id) + 1 FROM t HAVING count(*) > 0")
            shop.execute("UPDATE t SET id = id WHERE id = 1")
            topics.equal("t")
    except Exception as error:
        said = "\n".join([*statements.done, daemon.log.read_text()[-3000:]])
        raise AssertionError(f"{error}\n{said}") from error
    finally:
        daemon.kill()
    assert_once_in_order(read_topic(servers.bootstrap, topics.prefix, "public.t"))


def alter_and_write(shop: psycopg.Connection[Any], *statements: str) -> None:
    """Run statements, each followed by row changes, so that the WAL shows every shape."""
    for n, statement in enumerate(statements):
        shop.execute(statement.encode())
        shop.execute("UPDATE t SET n = n + 1 WHERE id BETWEEN %s AND %s", (10 * n, 10 * n + 12))
        shop.execute("INSERT INTO t (id, n) VALUES (%s, 0)", (2000 + n,))
        shop.execute("DELETE FROM t WHERE id = %s", (250 + n,))


def test_tables_altered_while_the_daemon_is_stopped_equal_their_topics(
    shop: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """The WAL shows shapes that the catalog no longer has, and names that other tables have by now."""
    topics = Topics(servers, load(config_path), shop)
    shop.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    with running(config_path) as daemon:
        topics.equal("t", "other")
        daemon.stop()
    alter_and_write(
        shop,
        "ALTER TABLE t ADD a int DEFAULT 1",
        "ALTER TABLE t RENAME a TO b",
        "ALTER TABLE t DROP b, ADD a int DEFAULT 2",
        "ALTER TABLE t DROP a, DROP old, DROP feeling",
        "DROP TYPE mood",
        "ALTER TABLE t ADD a int, ALTER n TYPE bigint USING n + 1",
    )
    # another table takes the name, and later the first one takes it back
    shop.execute("INSERT INTO other VALUES (2, 2)")
    shop.execute("ALTER TABLE other RENAME TO former")
    shop.execute("CREATE TABLE other (id text PRIMARY KEY, y int[])")
    shop.execute("INSERT INTO other VALUES ('a', '{1}'), ('b', NULL)")
    shop.execute("INSERT INTO former VALUES (3, 3)")
    with running(config_path) as daemon:
        topics.equal("t", "other", "former")
        daemon.stop()
    shop.execute("DROP TABLE other")
    shop.execute("UPDATE former SET x = 4")
    shop.execute("ALTER TABLE former RENAME TO other")
    shop.execute("DELETE FROM other WHERE id = 2")
    with running(config_path) as daemon:
        topics.equal("t", "other")
        assert daemon.stop() == 0
    assert_once_in_order(read_topic(servers.bootstrap, topics.prefix, "public.t"))
    assert_once_in_order(read_topic(servers.bootstrap, topics.prefix, "public.other"))


def test_alterations_without_a_row_change_reach_the_topics(
    shop: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    """The WAL shows none of it; one table is published that nobody writes to."""
    topics = Topics(servers, load(config_path), shop)
    shop.execute(
        "CREATE TABLE part (id int PRIMARY KEY, x int) PARTITION BY RANGE (id);"
        "CREATE TABLE back (id int PRIMARY KEY, x int); INSERT INTO back VALUES (1, 1), (2, 2), (3, 3);"
        "CREATE TABLE bare (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF part FOR VALUES FROM (0) TO (100); INSERT INTO part VALUES (1, 1);"
        # PeerDB Partitioned_Table_With_Different_Column_Ordering
        "CREATE TABLE loose (x int, id int PRIMARY KEY); INSERT INTO loose VALUES (1, 200), (NULL, 201);"
        "DROP PUBLICATION tailrace;"
        "CREATE PUBLICATION tailrace FOR TABLE t, back, part, bare WITH (publish_via_partition_root = true)"
    )
    with running(config_path) as daemon:
        topics.equal("t", "part", "back")
        shop.execute("ALTER TABLE t ADD a int DEFAULT 1")
        shop.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
        shop.execute("CREATE TABLE made PARTITION OF part FOR VALUES FROM (100) TO (200)")
        shop.execute("ALTER TABLE part ATTACH PARTITION loose FOR VALUES FROM (200) TO (300)")
        shop.execute("ALTER PUBLICATION tailrace DROP TABLE back")
        shop.execute("DELETE FROM back WHERE id = 2; UPDATE back SET x = 4 WHERE id = 3")
        shop.execute("ALTER PUBLICATION tailrace ADD TABLE back")
        shop.execute("ALTER PUBLICATION tailrace ADD TABLE other")
        late = f"{topics.prefix}.public.other"
        wait_for(topics.config, lambda record: late in record.here.offsets and record.is_state)
        assert topics.equal("other", "part", "back", "t")[1]["a"] == 1
        assert daemon.stop() == 0


def test_a_change_that_readers_cannot_follow_stops_the_daemon(
    shop: psycopg.Connection[Any], servers: Servers, config_path: Path
) -> None:
    topics = Topics(servers, load(config_path), shop)
    _choose(config_path, 'on_schema_change = "stop"')
    with running(config_path) as daemon:
        topics.equal("t")
        shop.execute("ALTER TABLE t ALTER price TYPE text USING price || ' EUR'")
        shop.execute("UPDATE t SET n = 0 WHERE id = 1")
        assert daemon.process.wait(30)
        shop.execute("UPDATE t SET n = 0 WHERE id = 2")
    remedy = 'as_text = ["public.t.price"]'
    words = ("TR-407", "public.t", '"price"', "decimal(10,2)", "string", 'on_schema_change = "refill"', remedy)
    _assert_stopped(config_path, *words)
    _choose(config_path, remedy)
    with running(config_path) as daemon:
        assert topics.equal("t")[5]["price"] == "1.25 EUR"
        daemon.stop()
    shop.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (n, id)")
    shop.execute("UPDATE t SET n = 2 WHERE id = 1")
    _assert_stopped(config_path, "TR-407", "the key: id int → id int, n int", 'on_schema_change = "refill"')
    config_path.write_text(config_path.read_text().replace('on_schema_change = "stop"', ""))
    with running(config_path) as daemon:
        topics.equal("t")
        shop.execute("ALTER TABLE t ALTER n TYPE bigint")
        shop.execute("UPDATE t SET name = 'retyped' WHERE id = 1")
        topics.equal("t")
        assert daemon.stop() == 0
    assert_once_in_order(read_topic(servers.bootstrap, topics.prefix, "public.t"))


def _assert_stopped(config_path: Path, *words: str) -> None:
    done = tailrace("run", "--config", str(config_path))
    assert done.returncode == 6, done.stderr
    for word in words:
        assert word in done.stderr, f"{word!r} is missing in: {done.stderr}"


def _choose(config_path: Path, line: str) -> None:
    config_path.write_text(config_path.read_text().replace("[source]", f"[source]\n{line}"))


def test_a_reread_that_is_killed_midway_is_resumed(servers: Servers, database: str, config_path: Path) -> None:
    """Under load, and altered again meanwhile: each next daemon knows the remaining chunks."""
    config = load(config_path)
    with psycopg.connect(database, autocommit=True) as bank:
        create_tables(bank, 1000)
        with Writer(database, 5, 1000).writing() as writer:
            with running(config_path) as daemon:
                wait_for(config, lambda record: record.is_state)
                bank.execute("ALTER TABLE entry ADD note text DEFAULT 'note'")
                newest = wait_for(config, lambda record: events(daemon, "table read started"))
                for _ in range(8):
                    before = newest.here.position
                    newest = wait_for(config, lambda record, before=before: record.here.position > before)
                daemon.kill()
            with running(config_path) as daemon:
                wait_for(config, lambda record: events(daemon, "snapshot resumed in windows"))
                (left,) = events(daemon, "snapshot resumed in windows")
                (planned,) = events(daemon, "table read started")
                assert 0 < left["chunks"] < planned["chunks"]
                bank.execute("ALTER TABLE entry RENAME note TO remark")
                bank.execute("VACUUM FULL account")
                bank.execute("ALTER TABLE account ADD opened date DEFAULT '2026-01-01'")
                wait_for(config, lambda record: "public.account" in record.incomplete_tables)
                daemon.kill()
            with running(config_path) as daemon:
                wait_for(config, lambda record: record.is_state)
                writer.stop()
                assert_equal(servers.bootstrap, config, bank)
                assert daemon.stop() == 0
