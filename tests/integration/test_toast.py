"""Large values that the WAL lacks because an update left them as they are: all versions are exact."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tailrace.cdc.dev.state import Servers
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tests.support.daemon import Daemon, events, running, wait_for, wait_for_state, write_config
from tests.support.topics import assert_once_in_order, latest, read_topic

_COLUMNS = "id, n, body, data::text, raw, tags, huge::text, short"
_TABLE = (
    "CREATE TABLE docs (id int PRIMARY KEY, n int, body text, data jsonb, raw bytea, tags text[], huge numeric,"
    # ANALYZE causes a Relation message, after which cached values count only from a change that is later than the look
    # at the catalog; if autovacuum does it shortly before a daemon is stopped, the next daemon rereads
    " short varchar(20000)) WITH (autovacuum_enabled = off)"
)


def noise(size: int, seed: int | None = None) -> str:
    """Return text that does not compress, so that it is stored out of line."""
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size))


class Docs:
    """Changes the table `docs` and records every version of every row in order."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.versions: list[tuple[int, dict[str, Any] | None]] = []

    def row(self, id: int) -> dict[str, Any] | None:
        cursor = self.connection.execute(f"SELECT {_COLUMNS} FROM docs WHERE id = %s".encode(), (id,))
        assert cursor.description
        names = [column.name for column in cursor.description]
        row = cursor.fetchone()
        return dict(zip(names, row, strict=True)) if row else None

    def insert(self, id: int, size: int | None = 5000) -> None:
        """Insert a row with values that are out of line, or null ones if `size` is None."""
        text = noise(size, id) if size else None
        self.connection.execute(
            "INSERT INTO docs VALUES (%s, 0, %s, jsonb_build_object('a', %s::text), %s, ARRAY[%s, NULL, 'x,y'],"
            " %s, %s)",
            (id, text, text, text and text.encode(), text, 10 ** (size or 1) + 7, text),
        )
        self.versions.append((id, self.row(id)))

    def update(self, id: int, change: str, new_id: int | None = None) -> None:
        self.connection.execute(f"UPDATE docs SET {change} WHERE id = {id}".encode())
        if new_id is not None:
            self.versions.append((id, None))
        self.versions.append((new_id or id, self.row(new_id or id)))

    def delete(self, id: int) -> None:
        self.connection.execute("DELETE FROM docs WHERE id = %s", (id,))
        self.versions.append((id, None))


class Pipeline:
    """A configuration, its daemon, and the records on its topics."""

    def __init__(self, path: Path, bootstrap: str, connection: psycopg.Connection[Any]) -> None:
        self.path = path
        self.bootstrap = bootstrap
        self.connection = connection

    @property
    def config(self) -> Config:
        return load(self.path)

    @property
    def cache(self) -> Path:
        return self.path.parent / "toast"

    def records(self, table: str = "docs") -> list[Any]:
        cut = wait_for_state(self.config, self.connection)
        topic = f"{self.config.kafka.prefix}.public.{table}"
        found = read_topic(self.bootstrap, self.config.kafka.prefix, f"public.{table}", cut.offsets[topic])
        assert_once_in_order(found)
        return found

    def assert_versions(self, docs: Docs) -> None:
        """Compare every version on the topic with the recorded one."""
        records = sorted(self.records(), key=lambda record: record.position)
        found = [
            (record.key[0], record.value["after"])
            for record in records
            if record.value is not None and record.value["op"] != "t" and record.snapshot is None
        ]
        for n, (one, other) in enumerate(zip(found, docs.versions, strict=False)):
            assert one == other, f"version {n}"
        assert len(found) == len(docs.versions)

    def assert_latest(self, docs: Docs) -> None:
        """Compare the topic's newest rows with the table."""
        rows = latest(self.records())
        ids = [id for (id,) in self.connection.execute("SELECT id FROM docs")]
        assert rows == {(id,): docs.row(id) for id in ids}

    def stopped(self, daemon: Daemon) -> tuple[int, int]:
        """Stop the daemon; return the number of values from its cache and of rows that it reread."""
        before = len(events(daemon, "unchanged large values completed"))
        assert daemon.stop() == 0
        counts = events(daemon, "unchanged large values completed")[before:] or [{"from_cache": 0, "reread": 0}]
        return counts[-1]["from_cache"], counts[-1]["reread"]


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLE.encode())
        yield connection


@pytest.fixture
def pipeline(
    tmp_path: Path, servers: Servers, database: str, prefix: str, connection: psycopg.Connection[Any]
) -> Pipeline:
    source = 'streaming = true\ntoast_by_table = {"public.docs" = "${WAY:-cache}"}\n'
    path = write_config(tmp_path, database, servers.bootstrap, prefix, source=source)
    return Pipeline(path, servers.bootstrap, connection)


_SMALL = "n = n + 1"

DEBEZIUM = {
    "shouldHandleToastedArrayColumn": ("text[]", "ARRAY[%s]"),
    "shouldHandleToastedArrayColumnCharacterVarying": ("varchar(20000)[]", "ARRAY[%s]"),
    "shouldHandleToastedDateArrayColumn": (
        "date[]",
        "(SELECT array_agg('2000-01-01'::date + (g * 7919) %% 100003) FROM generate_series(1, 5000) g)",
    ),
    "shouldHandleToastedByteArrayColumn": ("bytea[]", "ARRAY[%s::bytea]"),
    "shouldHandleToastedIntegerArrayColumn": (
        "int[]",
        "(SELECT array_agg((g * 7919) %% 1000003) FROM generate_series(1, 5000) g)",
    ),
    "shouldHandleToastedBigIntArrayColumn": (
        "bigint[]",
        "(SELECT array_agg((g * 7919) %% 1000003 + 10000000000) FROM generate_series(1, 5000) g)",
    ),
    "shouldHandleToastedJsonArrayColumn": ("json[]", "ARRAY[json_build_object('a', %s::text)]"),
    "shouldHandleToastedUuidArrayColumn": (
        "uuid[]",
        "(SELECT array_agg(md5(g::text)::uuid) FROM generate_series(1, 1000) g)",
    ),
}


def change_docs(docs: Docs) -> None:
    connection = docs.connection
    docs.update(1, _SMALL)
    docs.update(1, "body = 'short'")
    docs.update(1, _SMALL)
    docs.update(1, f"body = '{noise(7000)}', tags = NULL")
    docs.update(1, _SMALL)
    # a value that becomes null and returns
    docs.update(2, "body = NULL, raw = NULL")
    docs.update(2, _SMALL)
    docs.update(2, f"body = '{noise(6000)}'")
    docs.update(2, _SMALL)
    # materialize toast-columns: update of the key, the large values unchanged
    docs.update(2, "id = 102", 102)
    docs.update(102, _SMALL)
    docs.update(102, f"id = 2, body = '{noise(5500)}'", 2)
    docs.update(2, _SMALL)
    # ingestr#706, posthog#72435: insert and update of one row in one transaction
    with connection.transaction():
        docs.insert(10)
        docs.update(10, _SMALL)
        docs.update(10, "id = 110", 110)
        docs.insert(10, 3000)
        docs.update(110, _SMALL)
        docs.update(10, _SMALL)
    # the same in a transaction streamed before its commit, with a part rolled back
    with connection.transaction():
        for id in range(20, 40):
            docs.insert(id)
        docs.update(3, _SMALL)
        with connection.transaction(force_rollback=True):
            connection.execute(f"UPDATE docs SET body = '{noise(9000)}'".encode())
        for id in range(20, 40):
            docs.update(id, _SMALL)
    with connection.transaction(force_rollback=True):
        connection.execute(f"UPDATE docs SET body = '{noise(9000)}'".encode())
    docs.update(20, _SMALL)
    # update, then delete; the same key again with smaller values, and enlarged by an update
    docs.update(21, _SMALL)
    docs.delete(21)
    docs.insert(21, None)
    docs.update(21, f"short = '{noise(4000)}'")
    docs.update(21, _SMALL)
    with connection.transaction():
        docs.update(22, _SMALL)
        docs.delete(22)
        docs.insert(22, None)
        docs.update(22, _SMALL)


def change_composite(connection: psycopg.Connection[Any]) -> None:
    # PeerDB Composite_PKey_Toast_1 and _2, and with a part of the key that is itself out of line
    for a in ("x", noise(2000)):
        with connection.transaction():
            connection.execute(
                "INSERT INTO composite SELECT %s, g, 0, %s, %s FROM generate_series(1, 10) g",
                (a, noise(9000), noise(1900)),
            )
            connection.execute("UPDATE composite SET n = 1 WHERE b = 4")
        connection.execute("UPDATE composite SET n = 2, one = %s WHERE b = 5", (noise(8000),))
        connection.execute("UPDATE composite SET b = b + 100 WHERE b < 5")
        connection.execute("UPDATE composite SET n = n + 1")
        connection.execute("DELETE FROM composite WHERE b = 10")


def test_every_version_of_large_values_is_exact(pipeline: Pipeline, connection: psycopg.Connection[Any]) -> None:
    docs = Docs(connection)
    for id in (1, 2, 3):
        docs.insert(id)
    docs.versions.clear()  # the snapshot brings these
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _) in DEBEZIUM.items())
    values = ", ".join(value for _, value in DEBEZIUM.values())
    connection.execute(f"CREATE TABLE kinds (id int PRIMARY KEY, not_toast int, {columns})".encode())
    connection.execute(f"INSERT INTO kinds VALUES (1, 10, {values})".encode(), [noise(9000)] * values.count("%s"))
    connection.execute(
        "CREATE TABLE composite (a text, b int, n int, one text, two text, PRIMARY KEY (a, b));"
        "ALTER TABLE composite ALTER a SET STORAGE EXTERNAL"
    )
    connection.execute(f"ALTER DATABASE {connection.info.dbname} SET logical_decoding_work_mem = '64kB'".encode())
    with running(pipeline.path) as daemon:
        wait_for_state(pipeline.config, connection)
        change_docs(docs)
        change_composite(connection)
        connection.execute("UPDATE kinds SET not_toast = 2")
        connection.execute("ANALYZE docs")  # causes a Relation message without a change
        docs.update(30, _SMALL)
        pipeline.assert_versions(docs)
        pipeline.assert_latest(docs)
        rows = latest(pipeline.records("composite"))
        found = connection.execute("SELECT a, b, n, one, two FROM composite").fetchall()
        assert [(*row.values(),) for _, row in sorted(rows.items())] == sorted(found)
        kinds = latest(pipeline.records("kinds"))[1,]
        names = ", ".join(f'"{name}"{"::text[]" if kind == "json[]" else ""}' for name, (kind, _) in DEBEZIUM.items())
        assert (*kinds.values(),) == connection.execute(f"SELECT id, 2, {names} FROM kinds".encode()).fetchone()
        # truncated, and the same keys again
        connection.execute("TRUNCATE docs")
        docs.insert(1, None)
        docs.update(1, _SMALL)
        docs.update(1, f"raw = '{noise(3000)}'")
        docs.update(1, _SMALL)
        pipeline.assert_versions(docs)
        from_cache, reread = pipeline.stopped(daemon)
        assert (from_cache > 200, reread) == (True, 0)


def test_versions_are_exact_whatever_the_cache_file_is(
    pipeline: Pipeline, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon may find the file current, missing, old, damaged or not updated."""
    docs = Docs(connection)
    backup = pipeline.path.parent / "backup"
    with running(pipeline.path) as daemon:
        wait_for_state(pipeline.config, connection)
        for id in range(1, 6):
            docs.insert(id)
        pipeline.assert_versions(docs)
        assert pipeline.stopped(daemon) == (0, 0)
    shutil.copytree(pipeline.cache, backup)

    def behind() -> None:
        """Update every row several times: when the daemon reads the versions, the source is ahead."""
        for id in range(1, 6):
            docs.update(id, _SMALL)
            docs.update(id, f"body = '{noise(4000)}'")
            docs.update(id, _SMALL)
        docs.update(5, "id = 6", 6)
        docs.update(6, _SMALL)
        docs.update(6, "id = 5", 5)

    behind()
    with running(pipeline.path) as daemon:
        pipeline.assert_versions(docs)
        from_cache, reread = pipeline.stopped(daemon)
        assert (from_cache > 20, reread) == (True, 0)

    def run() -> tuple[int, int]:
        behind()
        with running(pipeline.path) as daemon:
            pipeline.assert_latest(docs)
            docs.update(1, _SMALL)  # after the moment at which the catalog was read
            pipeline.assert_latest(docs)
            return pipeline.stopped(daemon)

    shutil.rmtree(pipeline.cache)
    assert run()[1] > 0
    shutil.rmtree(pipeline.cache)
    shutil.copytree(backup, pipeline.cache)
    assert run()[1] > 0
    assert '"toast cache caught up"' in (pipeline.path.parent / "run.log").read_text()
    (pipeline.cache / "toast.db").write_bytes(b"\1" * 100_000)
    assert run()[1] > 0
    monkeypatch.setenv("WAY", "reread")
    assert run() == (0, 19)
    monkeypatch.delenv("WAY")
    assert run()[1] > 0
    assert run()[1] == 0


def test_rows_that_are_gone_at_their_reread_stay_exact(
    pipeline: Pipeline, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = Docs(connection)
    for id in range(1, 8):
        docs.insert(id)
    monkeypatch.setenv("WAY", "reread")
    with running(pipeline.path) as daemon:
        wait_for_state(pipeline.config, connection)
        daemon.kill()
    docs.update(1, "id = 101", 101)
    docs.delete(101)
    docs.update(2, _SMALL)
    docs.delete(2)
    # two rows exchange their keys
    docs.update(3, "id = 103", 103)
    docs.update(4, "id = 3", 3)
    docs.update(103, "id = 4", 4)
    docs.update(5, _SMALL)
    docs.update(5, "id = 105", 105)
    docs.update(6, "id = 5", 5)
    docs.update(5, _SMALL)
    docs.update(105, _SMALL)
    for way in ("reread", "cache"):
        monkeypatch.setenv("WAY", way)
        with running(pipeline.path) as daemon:
            pipeline.assert_latest(docs)
            assert pipeline.stopped(daemon)[1] > 0
        docs.update(5, _SMALL)
        docs.update(5, "id = 106", 106)
        docs.update(105, "id = 5", 5)
        docs.update(106, "id = 105", 105)
    with running(pipeline.path) as daemon:
        pipeline.assert_latest(docs)


def test_values_from_before_an_alteration_are_never_used(
    pipeline: Pipeline, connection: psycopg.Connection[Any]
) -> None:
    """Values from before an alteration are never used for the present columns."""
    docs = Docs(connection)
    for id in range(1, 10):
        docs.insert(id)

    def touch(id: int) -> None:
        connection.execute(f"UPDATE docs SET n = n + 1 WHERE id = {id}".encode())

    def assert_same(*ids: int) -> None:
        rows = latest(pipeline.records())
        for id in ids:
            assert rows[id,] == docs.row(id)

    def rewrite() -> None:
        connection.execute("ALTER TABLE docs ALTER body TYPE text USING upper(body)")

    def again() -> None:
        connection.execute(f"ALTER TABLE docs DROP short, ADD short varchar(20000) DEFAULT '{noise(3000)}' || random()")

    def elsewhere() -> None:
        connection.execute("ALTER TABLE docs RENAME TO papers")
        connection.execute("UPDATE papers SET body = reverse(body)")
        connection.execute("ALTER TABLE papers RENAME TO docs")

    def unpublished() -> None:
        connection.execute("ALTER PUBLICATION tailrace DROP TABLE docs")
        connection.execute("UPDATE docs SET body = 'a' || body")
        connection.execute("ALTER PUBLICATION tailrace ADD TABLE docs")

    with running(pipeline.path):
        wait_for_state(pipeline.config, connection)
        for alter in (rewrite, again, elsewhere, unpublished):
            touch(1)
            alter()
            touch(1)
            touch(2)
            assert_same(1, 2)
        # a value that is out of line although it is smaller than the usual threshold
        touch(5)
        assert_same(5)
        connection.execute("ALTER TABLE docs SET (toast_tuple_target = 128)")
        connection.execute("UPDATE docs SET body = %s WHERE id = 5", (noise(100),))
        touch(5)
        assert_same(5)
    # the same while the daemon is stopped: then the catalog is ahead of the stream
    for alter in (rewrite, again, elsewhere, unpublished):
        touch(3)
        alter()
        touch(3)
        touch(4)
        with running(pipeline.path):
            assert_same(3, 4)


def test_kills_leave_the_topic_and_the_cache_exact(
    pipeline: Pipeline, connection: psycopg.Connection[Any], database: str
) -> None:
    docs = Docs(connection)
    count = 60
    for id in range(count):
        connection.execute("INSERT INTO docs (id, n, body) VALUES (%s, 0, %s)", (id, f"{id}:" + noise(4000)))
    stop = threading.Event()
    pick = random.Random(5)

    def write() -> None:
        with psycopg.connect(database) as writer:
            while not stop.is_set():
                for _ in range(pick.randint(1, 6)):
                    id = pick.randrange(count)
                    drawn = pick.random()
                    if drawn < 0.7:
                        writer.execute("UPDATE docs SET n = n + 1 WHERE id = %s", (id,))
                    elif drawn < 0.9:
                        writer.execute("UPDATE docs SET body = %s WHERE id = %s", (f"{id}:" + noise(4000), id))
                    else:
                        writer.execute("DELETE FROM docs WHERE id = %s", (id,))
                        writer.execute(
                            "INSERT INTO docs (id, n, body) VALUES (%s, 0, %s)", (id, f"{id}:" + noise(3000))
                        )
                        writer.execute("UPDATE docs SET n = n + 1 WHERE id = %s", (id,))
                writer.commit()
                time.sleep(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with running(pipeline.path):
            wait_for(pipeline.config, lambda record: record.is_state)
        for _ in range(5):
            with running(pipeline.path):
                time.sleep(pick.uniform(0.7, 1.6))
    finally:
        stop.set()
        thread.join()
    with running(pipeline.path) as daemon:
        pipeline.assert_latest(docs)
        for record in pipeline.records():
            after = record.value and record.value["after"]
            assert not after or after["body"].startswith(f"{record.key[0]}:")
        # after a kill between Kafka's commit and the cache's, the cache lacks the newest values: fill it again
        for id in range(count):
            docs.update(id, _SMALL)
        pipeline.assert_latest(docs)
        assert daemon.stop() == 0
    with running(pipeline.path) as daemon:
        for id in range(count):
            docs.update(id, _SMALL)
        pipeline.assert_latest(docs)
        assert pipeline.stopped(daemon) == (count, 0)


def test_a_full_cache_stays_below_its_limit_and_rows_are_reread(
    pipeline: Pipeline, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE__SOURCE__TOAST_CACHE_BYTES", str(2**20))
    docs = Docs(connection)
    with running(pipeline.path) as daemon:
        wait_for_state(pipeline.config, connection)
        connection.execute(
            "INSERT INTO docs (id, n, raw) SELECT g, 0, (SELECT string_agg(decode(md5(g::text || h), 'hex'), '')"
            " FROM generate_series(1, 500) h) FROM generate_series(1, 150) g"
        )
        connection.execute("UPDATE docs SET n = n + 1 WHERE id > 130")
        connection.execute("UPDATE docs SET n = n + 1")
        pipeline.assert_latest(docs)
        from_cache, reread = pipeline.stopped(daemon)
        assert from_cache >= 20
        assert reread > 50
        assert '"toast cache full: ' in daemon.log.read_text()
    assert (pipeline.cache / "toast.db").stat().st_size < 1.5 * 2**20
