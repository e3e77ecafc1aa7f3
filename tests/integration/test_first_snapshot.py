"""The first copy: exact at its LSN under load, resumed when interrupted, patient with locks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tailrace.cdc.backfill.exported_snapshot import ExportedSnapshot
from tailrace.cdc.daemon.pipeline import Pipeline
from tailrace.cdc.daemon.session import Session
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.tables.stored_reads import stored_reads
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config
from tailrace.snapshot.plan import Chunk
from tests.support.bank import TABLES, Writer, create_tables, source_rows
from tests.support.daemon import Daemon, events, running, tailrace, wait_for, wait_for_state, write_config
from tests.support.topics import assert_once_in_order, latest, read_topic


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


class Watched(Session):
    """A session that records the rows that its workers see before they begin to read."""

    def __init__(self, config: Config, stop: threading.Event) -> None:
        super().__init__(config, stop)
        self.seen: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}

    def _copy(self, pipeline: Pipeline, point: int, exported: ExportedSnapshot | None) -> None:
        assert exported is not None
        row = exported.workers.connections[0].execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        with psycopg.connect(self._config.source.dsn.get_secret_value()) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(row[0])))
            self.seen = {table: source_rows(connection, table) for table in TABLES}
        super()._copy(pipeline, point, exported)


def test_the_first_copy_is_exact_at_its_lsn_under_load(
    source: psycopg.Connection[Any], database: str, servers: Servers, prefix: str, tmp_path: Path
) -> None:
    """The snapshot's records are those of SELECT at its LSN, although a writer changes rows meanwhile."""
    create_tables(source)
    more = "[snapshot]\nworkers = 3\nchunk_bytes = 65536\nmax_bytes_per_s = 500000\n"
    config = load(write_config(tmp_path, database, servers.bootstrap, prefix, more))
    stop = threading.Event()
    with Writer(database, 5).writing():
        time.sleep(0.3)
        session = Watched(config, stop)
        try:
            session.start()
        finally:
            stop.set()
            session.close()
    offsets = session.pipeline.progress.newest.here.offsets
    for table in TABLES:
        records = read_topic(servers.bootstrap, prefix, f"public.{table}", offsets[f"{prefix}.public.{table}"])
        assert_once_in_order(records)
        copied = [record for record in records if record.snapshot is not None]
        assert len(copied) == len(session.seen[table])
        assert latest(copied) == session.seen[table]
        assert source_rows(source, table) != session.seen[table], f"{table} was not changed behind the snapshot's back"


_ROWS = 4000


def _make_wide(source: psycopg.Connection[Any]) -> dict[int, int]:
    """Create a table of some hundred blocks; return the block of each row."""
    source.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, text text) WITH (autovacuum_enabled = false);"
        f"INSERT INTO wide SELECT g, repeat('x', 200) FROM generate_series(1, {_ROWS}) g"
    )
    return dict(source.execute("SELECT id, (ctid::text::point)[0]::int FROM wide").fetchall())


def _chunks(config: Config, *, done: bool) -> list[Chunk]:
    return [Chunk.from_dict(value) for value in stored_reads(config).chunks.values() if value["done"] is done]


def _tuples_read(source: psycopg.Connection[Any]) -> int:
    source.execute("SELECT pg_stat_force_next_flush()")
    row = source.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'wide'").fetchone()
    assert row is not None
    return int(row[0])


def _readers(source: psycopg.Connection[Any]) -> list[int]:
    query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'tailrace snapshot'"
    return [pid for (pid,) in source.execute(query)]


def _cut_short(source: psycopg.Connection[Any], daemon: Daemon, how: str) -> None:
    if how == "killed":
        daemon.kill()
    elif how == "stopped":
        assert daemon.stop() == 0
    else:
        source.execute("SELECT pg_terminate_backend(%s)", (_readers(source)[0],))
        while not events(daemon, "snapshot resumed in windows"):
            time.sleep(0.05)
            assert daemon.process.poll() is None


@pytest.mark.parametrize("how", ["killed", "stopped", "disconnected"])
def test_an_interrupted_copy_resumes_without_rereading_done_chunks(
    source: psycopg.Connection[Any], database: str, servers: Servers, prefix: str, tmp_path: Path, how: str
) -> None:
    """Only the open chunks are read again, one for each worker."""
    block = _make_wide(source)
    settings = "[snapshot]\nworkers = 2\nchunk_bytes = 32768\n{}[delivery]\nmax_transaction_ms = 20\n"
    slow = settings.format("max_bytes_per_s = 200000\n")
    path = write_config(tmp_path, database, servers.bootstrap, prefix, slow)
    config = load(path)
    before = _tuples_read(source)
    with running(path) as daemon:
        wait_for(config, lambda record: "public.wide" in record.incomplete_tables)
        while "public.wide" not in (stored := stored_reads(config)).states or not stored.chunks:
            assert daemon.process.poll() is None
        total = len(stored.chunks)
        while len(_chunks(config, done=True)) < total / 2:
            assert daemon.process.poll() is None
        if how == "disconnected":
            done = _chunks(config, done=True)
        _cut_short(source, daemon, how)
        if how != "disconnected":
            done = _chunks(config, done=True)
    while _readers(source):
        time.sleep(0.05)
    assert total / 2 <= len(done) < total
    write_config(tmp_path, database, servers.bootstrap, prefix, settings.format(""))
    with running(path) as daemon:
        cut = wait_for_state(config, source)
        assert events(daemon, "snapshot resumed in windows")
        daemon.stop()
    records = read_topic(servers.bootstrap, prefix, "public.wide", cut.offsets[f"{prefix}.public.wide"])
    assert_once_in_order(records)
    assert latest(records).keys() == {(n,) for n in range(1, _ROWS + 1)}
    times = Counter(record.key[0] for record in records)
    finished = {n for n, at in block.items() if any(c.first <= at and (c.end is None or at < c.end) for c in done)}
    assert len(finished) >= _ROWS / 2 - 200
    assert {times[n] for n in finished} == {1}
    # the chunks that the two workers had open, and those whose Kafka transaction was still open
    again = _tuples_read(source) - before - _ROWS
    assert 0 <= again <= 6 * max(Counter(at // 4 for at in block.values()).values())


@pytest.mark.parametrize("mode", ["exported", "interleaved"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_topic_with_early_changes_is_refilled_only_if_keys_changed(
    source: psycopg.Connection[Any],
    database: str,
    servers: Servers,
    prefix: str,
    tmp_path: Path,
    rewritten: bool,
    mode: str,
) -> None:
    """A topic with changes from before the copy is emptied and refilled only if their keys have changed."""
    source.execute("CREATE TABLE t (id text PRIMARY KEY, n int)")
    source.execute("INSERT INTO t SELECT 'k' || g, g FROM generate_series(1, 9) g")
    path = write_config(tmp_path, database, servers.bootstrap, prefix, f'[snapshot]\nmode = "{mode}"\n')
    killed = subprocess.run([sys.executable, "-m", "tests.faults.daemon", path, "record:before:1"], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert source.execute("SELECT FROM pg_replication_slots WHERE database = current_database()").fetchall() == [()]
    source.execute("UPDATE t SET n = n + 1 WHERE n < 4")
    if rewritten:
        source.execute("ALTER TABLE t ALTER id TYPE text USING upper(id)")
        source.execute("INSERT INTO t VALUES ('more', 0)")
    config = load(path)
    with running(path) as daemon:
        cut = wait_for_state(config, source)
        assert events(daemon, "table copied")
    records = read_topic(servers.bootstrap, prefix, "public.t", cut.offsets[f"{prefix}.public.t"])
    assert any(record.snapshot is None for record in records)
    assert ("t" in {record.value["op"] for record in records if record.value is not None}) == rewritten
    assert latest(records) == source_rows(source, "t")


def test_waiting_for_a_locked_table_blocks_no_other_session(
    source: psycopg.Connection[Any], database: str, servers: Servers, prefix: str, tmp_path: Path
) -> None:
    """While it waits for one table, no other session waits for it on another; finally all tables are read."""
    source.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); INSERT INTO a VALUES (1)")
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    config = load(path)
    with psycopg.connect(database) as holder:
        holder.execute("LOCK TABLE b")
        pid = holder.info.backend_pid
        with running(path) as daemon:
            while not (found := events(daemon, "session failed: restarting")):
                time.sleep(0.02)
                assert daemon.process.poll() is None
            assert found[0]["code"] == "TR-240"
            assert f"b by process {pid}" in found[0]["detail"]
            source.execute("SET lock_timeout = '20s'")
            source.execute("ALTER TABLE a ADD COLUMN n int DEFAULT 7")
            holder.execute("INSERT INTO b VALUES (2)")
            holder.commit()
            cut = wait_for_state(config, source)
            daemon.stop()
    for table, rows in (("a", {(1,): {"id": 1, "n": 7}}), ("b", {(2,): {"id": 2}})):
        offsets = cut.offsets[f"{prefix}.public.{table}"]
        assert latest(read_topic(servers.bootstrap, prefix, f"public.{table}", offsets)) == rows


def test_timeouts_of_the_database_end_no_session(
    source: psycopg.Connection[Any], database: str, servers: Servers, prefix: str, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE slow (id int PRIMARY KEY); INSERT INTO slow SELECT generate_series(1, 100)")
    source.execute("CREATE TABLE quick (id int PRIMARY KEY)")
    names = ["statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"]
    if source.info.server_version >= 170000:
        names.append("transaction_timeout")
    for name in names:
        source.execute(f"ALTER DATABASE {source.info.dbname} SET {name} = '2s'".encode())
    more = '[snapshot]\nwhere = { "public.slow" = "pg_sleep(0.03) IS NOT NULL" }\n'
    path = write_config(tmp_path, database, servers.bootstrap, prefix, more)
    with running(path) as daemon:
        cut = wait_for_state(load(path), source)
        (copied,) = [event for event in events(daemon, "table copied") if event["table"] == "public.slow"]
        time.sleep(4)  # twice what the database gives an idle session
        assert not events(daemon, "session failed: restarting")
        daemon.stop()
    assert copied["rows"] == 100
    assert len(read_topic(servers.bootstrap, prefix, "public.slow", cut.offsets[f"{prefix}.public.slow"])) == 100


def test_the_copy_reads_what_the_plan_and_the_conditions_say(
    source: psycopg.Connection[Any], database: str, servers: Servers, prefix: str, tmp_path: Path
) -> None:
    """Nested partitions, nested inheritance and conditions: the copy reads exactly the planned chunks."""
    source.execute(
        "CREATE TABLE part (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
        "CREATE TABLE part_25 PARTITION OF part FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');"
        "CREATE TABLE part_26 PARTITION OF part FOR VALUES FROM ('2026-01-01') TO ('2027-01-01')"
        " PARTITION BY HASH (id);"
        "CREATE TABLE part_26_0 (at date NOT NULL, id int NOT NULL);"
        "ALTER TABLE part_26 ATTACH PARTITION part_26_0 FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE part_26_1 PARTITION OF part_26 FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
        "INSERT INTO part SELECT g, '2025-06-01'::date + g FROM generate_series(1, 400) g;"
        "CREATE TABLE top (id int PRIMARY KEY); INSERT INTO top SELECT generate_series(1, 3);"
        "CREATE TABLE middle (PRIMARY KEY (id)) INHERITS (top); INSERT INTO middle VALUES (4);"
        "CREATE TABLE bottom (PRIMARY KEY (id)) INHERITS (middle); INSERT INTO bottom VALUES (5), (6);"
        "CREATE TABLE keyless (a int); INSERT INTO keyless SELECT generate_series(1, 5000); ANALYZE"
    )
    # grouped as a whole: its parentheses do not end ours
    condition = "false) OR (part.at >= '2025-12-25' AND part.id < 390 -- and no more"
    more = f'[snapshot]\nworkers = 1\nchunk_bytes = 8192\nwhere = {{ "public.part" = "{condition}" }}\n'
    path = write_config(tmp_path, database, servers.bootstrap, prefix, more)

    done = tailrace("snapshot", "plan", "--json", "--config", str(path))
    assert done.returncode == 0, done.stderr
    planned = {each["table"]: each for each in json.loads(done.stdout)["tables"]}
    assert next(iter(planned)) == "public.keyless"
    sizes = [each["bytes"] for each in planned.values()]
    assert sizes[1:] == sorted(sizes[1:])
    leaves = {chunk["leaf"][1] for chunk in planned["public.part"]["chunks"]}
    assert leaves == {"part_25", "part_26_0", "part_26_1"}
    assert planned["public.part"]["rows"] == 400
    assert len(planned["public.keyless"]["chunks"]) > 10
    assert [planned[f"public.{name}"]["rows"] for name in ("top", "middle", "bottom")] == [3, 1, 2]
    assert "public.keyless" in tailrace("snapshot", "plan", "--config", str(path)).stdout
    assert source.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)

    with running(path) as daemon:
        cut = wait_for_state(load(path), source)
        copied = [event["table"] for event in events(daemon, "table copied")]
        assert copied == list(planned)
        daemon.stop()

    def ids(table: str) -> list[int]:
        records = read_topic(servers.bootstrap, prefix, f"public.{table}", cut.offsets[f"{prefix}.public.{table}"])
        return sorted(record.value["after"]["id"] for record in records if record.value is not None)

    expected = source.execute("SELECT id FROM part WHERE at >= '2025-12-25' AND id < 390 ORDER BY 1").fetchall()
    assert len(expected) > 100
    assert ids("part") == [id for (id,) in expected]
    assert [ids("top"), ids("middle"), ids("bottom")] == [[1, 2, 3], [4], [5, 6]]


@pytest.mark.parametrize(
    ("where", "code", "word"),
    [
        ('"public.t" = "no_such_column > 1"', "TR-136", "no_such_column"),
        ('"public.t" = "id > 1)) OR ((true"', "TR-136", "syntax"),
        ('"public.t" = "id > 1; DELETE FROM t"', "TR-136", "syntax"),
        ('"public.t" = "id"', "TR-136", "boolean"),
        ('"public.other" = "id > 1"', "TR-135", "public.t"),
    ],
)
def test_unusable_snapshot_conditions_are_refused_before_anything_changes(
    source: psycopg.Connection[Any],
    database: str,
    servers: Servers,
    prefix: str,
    tmp_path: Path,
    where: str,
    code: str,
    word: str,
) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    path = write_config(tmp_path, database, servers.bootstrap, prefix, f"[snapshot]\nwhere = {{ {where} }}\n")
    for command in (["snapshot", "plan"], ["run"]):
        done = tailrace(*command, "--config", str(path))
        assert done.returncode == 3, done.stderr
        assert code in done.stderr
        assert word in done.stderr
    assert source.execute("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", (prefix,)).fetchone() == (
        0,
    )
    assert source.execute("SELECT count(*) FROM t").fetchone() == (1,)
