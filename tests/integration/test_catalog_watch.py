"""`CatalogWatch` over a real catalog: the tables that an inspection leaves undecided, and until when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from tailrace.cdc.postgres import publication
from tailrace.cdc.postgres.capture_set import CaptureSet
from tailrace.cdc.postgres.keys import Keys
from tailrace.cdc.postgres.source_catalog import SourceCatalog
from tailrace.cdc.tables.catalog_watch import CatalogWatch
from tailrace.cdc.tables.decision import Action, TopicPast
from tailrace.cdc.tables.position import Progress, new_origin
from tailrace.cdc.tables.registry import TableRegistry
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Source
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.layout import TableState, TableStatus
from tailrace.schemas.records.topics import Topics
from tailrace.snapshot.window import Found, Look
from tests.support.daemon import wait_until

_TABLES = """
CREATE TEMP TABLE first_of_its_session (id int);
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, b mood);
CREATE TABLE t (id int PRIMARY KEY, n int);
CREATE TABLE typed (id int PRIMARY KEY, n pair);
CREATE TABLE parted (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (9);
CREATE SCHEMA shop;
CREATE TABLE shop.item (id int PRIMARY KEY, n int);
CREATE TABLE loose (id int PRIMARY KEY, n int);
CREATE PUBLICATION tailrace FOR TABLE t, typed, parted, shop.item WITH (publish_via_partition_root = true);
"""


@dataclass
class _Watched:
    """A watch whose first inspection is settled, its registry, and a session that alters tables."""

    watch: CatalogWatch
    registry: TableRegistry
    source: psycopg.Connection[Any]

    def lsn(self) -> int:
        row = self.source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def unsettled(self) -> set[str]:
        """Inspect the catalog; return the undecided tables."""
        self.watch.look()
        return set(self.registry.unsettled)


@pytest.fixture
def watched(database: str) -> Iterator[_Watched]:
    with (
        psycopg.connect(database, autocommit=True) as source,
        psycopg.connect(database, autocommit=True) as connection,
    ):
        source.execute(_TABLES.encode())
        capture_set = CaptureSet(["*.*"])
        publications = publication.ensure(connection, "tailrace", capture_set)
        catalog = SourceCatalog(connection, "", publications, capture_set, Keys(connection, {}))
        states = {
            each.name: TableState(
                1, each.layout.oid, each.layout, 0, each.columns, each.layout.member, status=TableStatus.STREAMING
            )
            for each in catalog.survey().found
        }
        given = Source(dsn="")
        progress = Progress(new_origin(1, 1, "1", 1, (1, 0), ()))
        registry = TableRegistry(given, Topics("p"), ColumnOptions(given), progress, lambda key, value: None, states)
        past = TopicPast(frozenset({"id", "n"}), ("id",), used=True)
        made = _Watched(CatalogWatch(catalog, registry, lambda schema, table: past, lambda: None), registry, source)
        made.watch.look()
        made.watch.passed(made.lsn())
        assert (made.watch.waits, registry.unsettled) == (False, frozenset())
        yield made


def test_unchanged_catalogs_are_not_inspected_again(watched: _Watched) -> None:
    watched.source.execute("INSERT INTO t VALUES (1, 1); ANALYZE t; CREATE TEMP TABLE aside (id int)")
    assert watched.unsettled() == set()
    assert not watched.watch.waits
    watched.watch.want_look()
    assert watched.unsettled() == set()
    assert watched.watch.waits


@pytest.mark.parametrize(
    ("ddl", "table", "status"),
    [
        ("ALTER TABLE t ADD m int DEFAULT 7", "public.t", TableStatus.WANTED),
        ("ALTER TABLE t RENAME n TO m", "public.t", TableStatus.WANTED),
        ("ALTER TABLE t RENAME TO was", "public.t", TableStatus.GONE),
        ("ALTER TABLE t SET SCHEMA shop", "public.t", TableStatus.GONE),
        ("ALTER TABLE t ALTER id TYPE int USING -id; DROP TABLE t", "public.t", TableStatus.STREAMING),
        ("ALTER SCHEMA shop RENAME TO store", "shop.item", TableStatus.GONE),
        ("ALTER TYPE mood RENAME VALUE 'sad' TO 'low'", "public.typed", TableStatus.WANTED),
        ("ALTER TYPE pair ADD ATTRIBUTE c int", "public.typed", TableStatus.WANTED),
        ("TRUNCATE part", "public.parted", TableStatus.WANTED),
        ("ALTER TABLE parted ATTACH PARTITION loose FOR VALUES FROM (10) TO (19)", "public.parted", TableStatus.WANTED),
        ("ALTER PUBLICATION tailrace DROP TABLE t; ALTER PUBLICATION tailrace ADD TABLE t", "public.t",
         TableStatus.WANTED),
    ],
)  # fmt: skip
def test_an_altered_table_is_unsettled_until_the_stream_has_passed(
    watched: _Watched, ddl: str, table: str, status: TableStatus
) -> None:
    before = watched.lsn()
    watched.source.execute(ddl.encode())
    assert table in watched.unsettled()
    watched.watch.passed(before)
    assert table in watched.registry.unsettled
    assert watched.registry.status(table) is TableStatus.STREAMING, "changes of the earlier shape may still come"
    watched.watch.passed(watched.lsn())
    assert watched.registry.unsettled == frozenset()
    assert watched.registry.status(table) is status


def test_a_table_that_is_known_to_be_dropped_does_not_become_unsettled_again(watched: _Watched) -> None:
    watched.source.execute("DROP TABLE t")
    assert watched.unsettled() == {"public.t"}
    watched.watch.passed(watched.lsn())
    watched.source.execute("ALTER TABLE typed ADD m int")
    assert watched.unsettled() == set()
    assert watched.watch.waits
    watched.source.execute("CREATE TABLE t (id int PRIMARY KEY, n int); ALTER PUBLICATION tailrace ADD TABLE t")
    watched.watch.want_look()
    assert watched.unsettled() == {"public.t"}


def test_an_alteration_that_leaves_all_rows_as_they_are_is_only_noted(watched: _Watched) -> None:
    watched.source.execute("ALTER TABLE t ADD m int")
    assert watched.unsettled() == set()
    watched.watch.passed(watched.lsn())
    state = watched.registry.states["public.t"]
    assert (state.status, state.columns) == (TableStatus.STREAMING, ("id", "n", "m"))


def test_an_old_transaction_is_found_when_it_commits(watched: _Watched, database: str) -> None:
    """Inspections and later transactions before its commit do not hide it."""
    with psycopg.connect(database) as other:
        other.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'low'")
        for column in ("a", "b"):
            watched.source.execute(f"ALTER TABLE t ADD {column} int".encode())
            assert watched.unsettled() == set(), "an idle session is not in the middle of its commit"
            watched.watch.passed(watched.lsn())
        other.commit()
    assert watched.unsettled() == {"public.typed"}


@contextmanager
def _busy_after(ddl: str, watched: _Watched, database: str) -> Iterator[None]:
    """Keep a session busy, in the block, in a transaction that has run `ddl`; afterwards it is rolled back."""
    watched.source.execute("SELECT pg_advisory_lock(1)")

    def alter() -> None:
        with psycopg.connect(database) as other:
            other.execute(ddl.encode())
            other.execute("SELECT pg_advisory_xact_lock(1)")
            other.rollback()

    thread = threading.Thread(target=alter)
    thread.start()
    try:
        waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: watched.source.execute(waits).fetchone() is not None)
        yield
    finally:
        watched.source.execute("SELECT pg_advisory_unlock(1)")
        thread.join()


def test_a_table_is_unsettled_while_a_busy_session_holds_its_lock(watched: _Watched, database: str) -> None:
    """Its commit may already be in the WAL although nobody sees it."""
    ddl = "ALTER TABLE t ADD m int DEFAULT 7; ALTER TYPE mood RENAME VALUE 'sad' TO 'low'"
    with _busy_after(ddl, watched, database):
        assert watched.unsettled() == {"public.t", "public.typed"}
        watched.watch.passed(watched.lsn())
        assert watched.registry.unsettled == {"public.t", "public.typed"}
    assert watched.unsettled() == set()


@pytest.mark.parametrize(
    ("ddl", "tables"),
    [
        (
            "ALTER PUBLICATION tailrace SET (publish = 'delete'); ALTER PUBLICATION tailrace SET (publish = 'insert')",
            {"public.t", "public.typed", "public.parted", "shop.item"},
        ),
        ("ALTER SCHEMA shop RENAME TO store", {"shop.item"}),
    ],
)
def test_a_table_is_unsettled_while_a_busy_session_has_altered_what_it_does_not_lock(
    watched: _Watched, database: str, ddl: str, tables: set[str]
) -> None:
    """These statements hold no lock until the commit. It may already be in the WAL, with changes that lack rows."""
    with _busy_after(ddl, watched, database):
        assert watched.unsettled() == tables
    assert watched.unsettled() == set()
    with psycopg.connect(database) as idle:
        idle.execute(ddl.encode())
        assert watched.unsettled() == set(), "an idle session is not in the middle of its commit"
        idle.rollback()


def test_a_lagging_stream_judges_tables_again_only_after_a_change(
    watched: _Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks after every read: a judgement of each table would take longer than the rows."""
    before = watched.lsn()
    watched.source.execute("ALTER TABLE t RENAME n TO m")
    assert watched.unsettled() == {"public.t"}
    judged: list[str] = []
    judge = watched.registry.judge

    def counted(look: Look, found: Found, past: TopicPast) -> Action | None:
        judged.append(found.name)
        return judge(look, found, past)

    monkeypatch.setattr(watched.registry, "judge", counted)
    for _ in range(9):
        watched.watch.passed(before)
    assert judged == []
    watched.registry.gone("public.typed")
    watched.watch.passed(before)
    assert sorted(judged) == ["public.parted", "public.t", "public.typed", "shop.item"]
    assert watched.registry.unsettled == {"public.t", "public.typed"}


def test_a_lagging_stream_settles_what_it_has_passed(watched: _Watched) -> None:
    """The oldest and the newest inspection wait; those in between are replaced."""
    watched.source.execute("ALTER TABLE t ADD m int DEFAULT 7")
    assert watched.unsettled() == {"public.t"}
    first = watched.lsn()
    for number in range(3):
        watched.source.execute(f"ALTER TABLE shop.item ADD m{number} int DEFAULT 7".encode())
        assert watched.unsettled() == {"public.t", "shop.item"}
    watched.watch.passed(first)
    assert "shop.item" in watched.registry.unsettled
    found = [watched.registry.status(table) for table in ("public.t", "shop.item")]
    assert found == [TableStatus.WANTED, TableStatus.STREAMING]
    watched.watch.passed(watched.lsn())
    assert (watched.watch.waits, watched.registry.unsettled) == (False, frozenset())
    assert watched.registry.status("shop.item") is TableStatus.WANTED


def test_a_lock_of_an_idle_session_does_not_hold_up_the_inspection(watched: _Watched, database: str) -> None:
    """PostgreSQL's own view of publications opens each table; until it can, no cut is called a state."""
    with psycopg.connect(database) as idle:
        idle.execute("ALTER TABLE t ADD m int")
        watched.source.execute("ALTER TABLE typed ADD o int")
        began = time.monotonic()
        assert watched.unsettled() >= {"public.t", "public.typed"}
        assert time.monotonic() - began < 20, "it waits for the lock"
        assert watched.watch.wants_look
        idle.rollback()
    assert "public.t" not in watched.unsettled()
    assert not watched.watch.wants_look


def test_any_table_may_be_new_while_another_is_locked(watched: _Watched, database: str) -> None:
    """The topic of a new name is empty, that of a name whose table has gone is not: no row change says so."""
    watched.source.execute("ALTER TABLE typed RENAME TO was; ALTER PUBLICATION tailrace DROP TABLE shop.item")
    watched.watch.look()
    watched.watch.passed(watched.lsn())
    with psycopg.connect(database) as idle:
        idle.execute("ALTER TABLE parted ADD m int")
        watched.source.execute("ALTER TABLE t RENAME TO typed; ALTER TABLE was RENAME TO new")
        watched.source.execute("ALTER SCHEMA shop RENAME TO store")
        assert watched.unsettled() >= {"public.typed", "public.new", "public.t", "public.was", "store.item"}
        idle.rollback()
    assert watched.unsettled() == {"public.typed", "public.new", "public.t", "public.was", "shop.item"}
