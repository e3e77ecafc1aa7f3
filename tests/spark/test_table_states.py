"""While a table is read again, views of other tables advance; a view that reads it waits and says why."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from tailrace.cdc.cli.status_page import status_lines
from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.read_status import read_shares, read_status, read_stored
from tailrace.cdc.operations.verify import verify
from tailrace.cdc.operations.wait import AppliedViews
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, View, Warehouse
from tailrace.schemas.errors import DeadlineError, SinkError, StateError
from tailrace.schemas.lsn import parse_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewsTopic, now_ms
from tailrace.sinks.kafka.groups import Groups
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.jobs.follow import follow
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.waiting import Waiting
from tailrace.spark_jobs.topics.cuts import Cuts
from tailrace.spark_jobs.topics.records import Records
from tests.spark.conftest import Bench
from tests.spark.pipeline import column
from tests.support.daemon import Daemon, events, running, tailrace, wait_for, wait_until, write_config

_HOUR_MS = 3_600_000
_BIG, _SMALL = "public.big", "public.small"
_JOIN = "SELECT s.id, b.label, s.n FROM public.small s LEFT JOIN public.big b ON b.id = s.id"
_ABOVE = "SELECT j.id, j.label, b.label AS again FROM {joined} j LEFT JOIN {big} b ON b.id = j.id"


@dataclass
class Pipeline:
    """Two tables, the daemon's configuration, and followed views of each table and of both."""

    path: Path
    config: Config
    source: psycopg.Connection[Any]
    suffix: str
    daemon: Daemon

    def name(self, view: str) -> str:
        return f"{view}_{self.suffix}"

    def commit(self, *statements: str) -> int:
        """Run statements in one transaction; return an LSN after its commit."""
        with self.source.transaction():
            for statement in statements:
                self.source.execute(statement.encode())
        row = self.source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        self.source.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
        assert row is not None
        return parse_lsn(row[0])

    def wait(self, lsn: int, *views: str, seconds: float = 600) -> dict[str, int]:
        with AppliedViews(self.config) as applied:
            return applied.wait(lsn, [self.name(view) for view in views], seconds)

    def rows(self, view: str) -> list[dict[str, Any]]:
        return sorted(read_view(self.config, self.name(view)).rows, key=lambda row: row["id"])

    def query(self, sql: str) -> list[dict[str, Any]]:
        with self.source.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(f"{sql} ORDER BY id".encode()).fetchall()

    def assert_equal(self) -> None:
        """Assert that all views equal their queries in the source."""
        joined = _JOIN.replace("s.id,", "s.id AS id,")
        above = _ABOVE.format(joined=f"({joined})", big="big").replace("SELECT j.id,", "SELECT j.id AS id,")
        assert self.rows("big") == self.query("SELECT * FROM big")
        assert self.rows("small") == self.query("SELECT * FROM small")
        assert self.rows("joined") == self.query(joined)
        assert self.rows("above") == self.query(above)

    def snapshot(self, action: str) -> None:
        done = tailrace("snapshot", action, "big", "--config", str(self.path))
        assert done.returncode == 0, done.stderr


@pytest.fixture
def pipeline(
    servers: Servers, spark: SparkSession, warehouse: Warehouse, database: str, prefix: str, tmp_path: Path
) -> Iterator[Pipeline]:
    more = "[snapshot]\nchunk_bytes = 8192\nmax_bytes_per_s = 5000\n[delivery]\nmax_transaction_ms = 50\n"
    path = write_config(tmp_path, database, servers.bootstrap, prefix, more)
    suffix = uuid.uuid4().hex[:8]
    names = {name: f"{name}_{suffix}" for name in ("big", "small", "joined", "above")}
    views = {
        names["big"]: View(table=_BIG),
        names["small"]: View(table=_SMALL),
        names["joined"]: View(query=_JOIN, key=["id"]),
        names["above"]: View(query=_ABOVE.format(**names), key=["id"]),
    }
    config = load(path).model_copy(update={"warehouse": warehouse, "views": views})
    stop = threading.Event()
    with psycopg.connect(database, autocommit=True) as source, Cuts(config) as cuts, running(path) as daemon:
        source.execute("CREATE TABLE big (id int PRIMARY KEY, label text)")
        source.execute("CREATE TABLE small (id int PRIMARY KEY, n int)")
        source.execute("INSERT INTO big SELECT g, 'row ' || g FROM generate_series(1, 4000) g")
        topic = ViewsTopic(config.kafka, Topics(prefix))
        shared = Shared(config, spark, Records(spark, config.kafka), cuts, topic, Groups(config.kafka))
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(follow, shared, [open_view(shared, name) for name in views], stop, None)
            try:
                yield Pipeline(path, config, source, suffix, daemon)
            finally:
                stop.set()
                job.result()


def test_a_view_waits_for_its_own_tables_only(pipeline: Pipeline) -> None:
    config = pipeline.config
    first = pipeline.commit("INSERT INTO small SELECT g, 0 FROM generate_series(1, 20) g")
    pipeline.wait(first, "big", "small", "joined", "above")

    pipeline.commit("ALTER TABLE big ADD note text DEFAULT 'note'")
    wait_for(config, lambda record: read_shares(config, record).get(_BIG))
    pipeline.snapshot("pause")
    since = pipeline.commit("INSERT INTO small VALUES (21, 0)")
    for number in range(3):
        lsn = pipeline.commit(f"UPDATE small SET n = {number}", f"UPDATE big SET label = 'no {number}' WHERE id < 9")
        pipeline.wait(lsn, "small", seconds=60)
        assert pipeline.rows("small") == pipeline.query("SELECT * FROM small")
    record, _ = read_stored(config)
    assert record is not None
    assert record.incomplete_tables == (_BIG,)
    _verify_compares_the_others(pipeline)

    with pytest.raises(DeadlineError, match="TR-570") as late:
        pipeline.wait(since, "joined", "big", "above", seconds=1)
    assert f'"{pipeline.name("joined")}" waits for table {_BIG}: being read' in late.value.detail
    stuck = record.state_for([_BIG])
    assert stuck is not None
    for name in ("joined", "big", "above"):
        assert pipeline.wait(first, name, seconds=1) == {pipeline.name(name): stuck.flushed_lsn}
    status = read_status(config)
    waits = {view.name: [each.table for each in view.waits_for] for view in status.views}
    expected = {"big": [_BIG], "small": [], "joined": [_BIG], "above": [_BIG]}
    assert waits == {pipeline.name(name): tables for name, tables in expected.items()}
    assert not any(view.error for view in status.views)
    assert sum(f"waits for table {_BIG}: being read" in line for line in status_lines(status)) == 3
    assert {row["n"] for row in pipeline.rows("joined")} == {0}

    pipeline.snapshot("resume")
    last = pipeline.commit("INSERT INTO small VALUES (22, 5)", "DELETE FROM big WHERE id = 3")
    pipeline.wait(last, "big", "small", "joined", "above")
    pipeline.assert_equal()
    wait_until(lambda: not any(view.waits_for for view in read_status(config).views))


def test_views_of_a_table_that_lost_its_topic_continue_after_its_resume(pipeline: Pipeline) -> None:
    """The job runs all the time: it continues at the offsets that it has applied from the deleted topic."""
    config, topic = pipeline.config, f"{pipeline.config.kafka.prefix}.{_BIG}"
    first = pipeline.commit("INSERT INTO small SELECT g, 0 FROM generate_series(1, 20) g")
    pipeline.wait(first, "big", "small", "joined", "above")
    pipeline.assert_equal()
    old = pipeline.rows("big")
    assert pipeline.daemon.stop() == 0
    admin = AdminClient({"bootstrap.servers": config.kafka.bootstrap})
    admin.delete_topics([topic])[topic].result()

    lsn = pipeline.commit(
        "DELETE FROM big WHERE id % 5 = 0",
        "UPDATE big SET label = 'while lost' WHERE id % 7 = 0",
        "UPDATE small SET n = 1",
    )
    with running(pipeline.path) as daemon:
        pipeline.wait(lsn, "small")
        (parked,) = events(daemon, "table parked")
        assert (parked["table"], parked["code"]) == (_BIG, "TR-424")
        waits = {view.name: [str(each) for each in view.waits_for] for view in read_status(config).views}
        why = [f"{_BIG}: parked, see tailrace table list"]
        assert waits == {pipeline.name(name): why for name in ("big", "joined", "above")} | {pipeline.name("small"): []}
        assert daemon.stop() == 0
    with running(pipeline.path) as daemon:
        # the topic exists again, and has no record: no view must take that for an empty table
        lsn = pipeline.commit("UPDATE small SET n = 2", "INSERT INTO big VALUES (5000, 'before the resume')")
        pipeline.wait(lsn, "small")
        assert events(daemon, "topic created again")
        assert pipeline.rows("big") == old
        resumed = tailrace("table", "resume", "big", "--config", str(pipeline.path))
        assert resumed.returncode == 0, resumed.stderr
        last = pipeline.commit("INSERT INTO small VALUES (22, 5)", "DELETE FROM big WHERE id = 3")
        pipeline.wait(last, "big", "small", "joined", "above")
        pipeline.assert_equal()
        last = pipeline.commit("UPDATE big SET label = 'after' WHERE id < 9", "DELETE FROM big WHERE id = 4")
        pipeline.wait(last, "big", "small", "joined", "above")
        pipeline.assert_equal()

        def say(text: str) -> None:
            if text.startswith("source read at"):
                pipeline.wait(pipeline.commit("UPDATE small SET n = n", "UPDATE big SET label = label"), "big", "small")

        names = [pipeline.name("big"), pipeline.name("small")]
        compared = list(verify(config, names, timeout_s=300, limit=1, say=say))
        assert [(result.view, result.equal) for result in compared] == [(name, True) for name in names]
        assert not any(view.error or view.waits_for for view in read_status(config).views)


def _verify_compares_the_others(pipeline: Pipeline) -> None:
    def say(text: str) -> None:
        if text.startswith("source read at"):
            pipeline.wait(pipeline.commit("UPDATE small SET n = n"), "small")

    names = [pipeline.name("big"), pipeline.name("small")]
    compared = verify(pipeline.config, names, timeout_s=1, limit=1, say=say)
    result = next(compared)
    assert (result.view, result.equal) == (names[1], True)
    with pytest.raises(SinkError, match="TR-343") as late:
        next(compared)
    assert f"It waits for table {_BIG}: being read" in late.value.detail


def _tables(made: Bench) -> None:
    for name in ("t", "u"):
        made.pipeline.table(name, [column("id", "int4"), column("n", "int4")], ("id",))


def _round(made: Bench, *views: KeptView) -> None:
    """Do one round of follow, and raise the error of a view."""
    made.shared.cuts.look(1.0)
    for view in views:
        seen = made.shared.cuts.seen(view.declared)
        assert seen is not None
        view.step(seen, Report())
    made.shared.records.release()


def test_a_view_that_waited_for_too_long_is_refused(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep a row whose delete came and expired while its table was incomplete; others continue."""
    suffix = uuid.uuid4().hex[:8]
    views = {f"{table}_{suffix}": View(table=f"public.{table}") for table in ("t", "u")}
    made = bench(views, delete_retention_ms=_HOUR_MS)
    passed_ms = 0
    for module in ("topics.cuts", "maintain.kept_view"):
        monkeypatch.setattr(f"tailrace.spark_jobs.{module}.now_ms", lambda: now_ms() + passed_ms)
    _tables(made)
    waits, follows = map(made.kept, views)
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 1})
        tx.put("u", {"id": 1})
    _round(made, waits, follows)
    for number in range(4):
        with made.pipeline.transaction(incomplete=("public.t",)) as tx:
            tx.put("t", {"id": 2, "n": number})
            tx.put("u", {"id": 2, "n": number})
        passed_ms += _HOUR_MS // 3
        _round(made, waits, follows)
        assert waits.applied is not None
        assert follows.applied is not None
        assert waits.applied.cut.order < follows.applied.cut.order
    with made.pipeline.transaction() as tx:
        tx.put("u", {"id": 3})
    _round(made, follows)
    with pytest.raises(StateError, match="TR-526"):
        _round(made, waits)


def test_a_view_does_not_begin_at_a_state_that_may_be_compacted(bench: Callable[..., Bench]) -> None:
    """Its table changes while incomplete; records up to the last state may be compacted after some time."""
    suffix = uuid.uuid4().hex[:8]
    views = {
        f"t_{suffix}": View(table="public.t"),
        f"h_{suffix}": View(table="public.t", shape="history"),
        f"j_{suffix}": View(query="SELECT t.id, u.n FROM public.t JOIN public.u ON u.id = t.id", key=["id"]),
        f"u_{suffix}": View(table="public.u"),
    }
    made = bench(views, min_compaction_lag_ms=500)
    _tables(made)
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "n": 1})
        tx.put("u", {"id": 1, "n": 1})
    made.shared.cuts.look()
    with made.pipeline.transaction(incomplete=("public.t",)) as tx:
        tx.put("t", {"id": 1, "n": 2})
    time.sleep(1.0)
    *stand, follows = map(made.kept, views)
    for view in stand:
        with pytest.raises(Waiting, match=r"(?s)TR-584.*public\.t.*min_compaction_lag_ms"):
            _round(made, view)
    _round(made, follows)
    assert made.agrees(follows.declared.name, "u") == 1
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 2, "n": 2})
    _round(made, *stand)
    assert made.agrees(stand[0].declared.name, "t") == 2
