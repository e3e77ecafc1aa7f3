"""Shapes `history` and `log` over a real database: PostgreSQL gives the table at each LSN and time."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.snapshots import TableSnapshot, read_snapshots
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Config, View, Warehouse
from tailrace.schemas.errors import TailraceError
from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.views_topic import ViewsTopic
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.kafka.groups import Groups
from tailrace.sinks.read.as_of import read_as_of_lsn, read_as_of_time
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.jobs.compare import compare
from tailrace.spark_jobs.jobs.generations import swap
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.topics.cuts import Cuts, SeenCut
from tailrace.spark_jobs.topics.records import Records
from tailrace.spark_jobs.views import declare
from tests.spark.conftest import Bench, reader, step
from tests.spark.pipeline import column
from tests.support.daemon import running, tailrace, wait_for_state, wait_until, write_config

Rows = list[tuple[tuple[str, Any], ...]]

_AUDIT: LiteralString = """
CREATE TABLE audit (n bigserial PRIMARY KEY, op text, old jsonb, new jsonb);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit (op, old, new) VALUES (TG_OP,
        CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN to_jsonb(OLD) END,
        CASE WHEN TG_OP IN ('UPDATE', 'INSERT') THEN to_jsonb(NEW) END);
    RETURN NULL;
END $$;
CREATE TABLE keyless (v int);
INSERT INTO keyless VALUES (0);
CREATE TABLE t (id int PRIMARY KEY, name text, n int);
INSERT INTO t SELECT i, 'row ' || i, i FROM generate_series(1, 40) AS i;
CREATE TRIGGER rows AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER whole AFTER TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
"""


@dataclass
class Source:
    """The table, its only writer, and its rows after every commit, by LSN and by time."""

    connection: psycopg.Connection[Any]
    random: random.Random = field(default_factory=lambda: random.Random(7))
    by_lsn: dict[int, Rows] = field(default_factory=dict)
    by_time: dict[datetime, Rows] = field(default_factory=dict)

    def run(self, *statements: LiteralString) -> None:
        """Commit one transaction, and record the table's rows after it."""
        with self.connection.transaction():
            for statement in statements:
                self.connection.execute(statement)
        self.note()

    def note(self) -> None:
        # Commit times are stored in milliseconds.
        time.sleep(0.003)
        found = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()").fetchone()
        assert found is not None
        lsn, now = found
        with self.connection.cursor(row_factory=dict_row) as cursor:
            rows = compared(cursor.execute("SELECT * FROM t").fetchall())
        self.by_lsn[parse_lsn(lsn)] = rows
        self.by_time[now] = rows
        time.sleep(0.003)

    def change(self) -> None:
        """Commit a random transaction: several versions of a row, deletes, inserts and changed keys."""
        pick = self.random
        with self.connection.transaction():
            for _ in range(pick.randint(1, 12)):
                key, other, n = pick.randint(1, 60), pick.randint(1, 60), pick.randint(0, 3)
                match pick.randint(0, 9):
                    case 0:
                        self.connection.execute("DELETE FROM t WHERE id = %s", (key,))
                    case 1:
                        # Both keys may exist, or none.
                        self.connection.execute(
                            "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)",
                            (other, key, other),
                        )
                    case 2:
                        self.connection.execute("UPDATE t SET n = n WHERE id = %s", (key,))
                    case _:
                        self.connection.execute(
                            "INSERT INTO t (id, n) VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET n = excluded.n",
                            (key, n),
                        )
        self.note()


def compared(rows: list[dict[str, Any]]) -> Rows:
    """Put rows into one form; a column that a row's version lacks equals NULL."""
    return sorted(tuple(sorted((k, v) for k, v in row.items() if v is not None)) for row in rows)


@dataclass
class Views:
    """A history and two logs, maintained in this process; the daemon is a process of its own."""

    bench: Bench
    source: Source
    kept: dict[str, KeptView] = field(default_factory=dict)

    def step(self) -> SeenCut:
        """Bring all views to a cut that has everything committed."""
        cut = wait_for_state(self.bench.config, self.source.connection)
        cuts, declared = self.bench.shared.cuts, declare(self.bench.config, self.history)
        seen = cuts.wait(declared)
        while seen.cut.order < cut.order:
            seen = cuts.newest(declared, wait=1.0) or seen
        for view in self.kept.values():
            assert view.step(seen, Report())
        self.bench.shared.records.release()
        return seen

    @property
    def history(self) -> str:
        return next(iter(self.kept))

    @property
    def log(self) -> str:
        return list(self.kept)[1]

    @property
    def keyless(self) -> str:
        return list(self.kept)[2]

    def check(self, many: int = 8) -> None:
        """Compare the history with the table, now and at `many` past commits, and the log with the audit."""
        past = list(self.source.by_lsn)
        for lsn in {past[-1], past[0], *self.source.random.sample(past, min(many, len(past)))}:
            assert compared(list(read_as_of_lsn(self.bench.config, self.history, lsn))) == self.source.by_lsn[lsn]
        times = self.source.random.sample(list(self.source.by_time), 2)
        for at in times:
            assert compared(list(read_as_of_time(self.bench.config, self.history, at))) == self.source.by_time[at]
        assert compared(self.bench.rows(self.history)) == self.source.by_lsn[past[-1]], "open is what is there now"
        self._check_log()

    def _check_log(self) -> None:
        rows = sorted(self.bench.rows(self.log), key=lambda row: (row["commit_lsn"], row["ordinal"]))
        found = [row for row in rows if row["op"] != "r"]
        expected = list(self._audited())
        assert [(row["op"], row["id"]) for row in found] == [(op, image.get("id")) for op, image in expected]
        for row, (op, image) in zip(found, expected, strict=True):
            assert op == "d" or {name: row[name] for name in image} == image
        first = [row for row in rows if row["op"] == "r"][:40]
        assert [row["id"] for row in sorted(first, key=lambda row: row["id"])] == list(range(1, 41))

    def _audited(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the trigger's rows as changes of keys: a changed key is a delete and a create."""
        for op, old, new in self.source.connection.execute("SELECT op, old, new FROM audit ORDER BY n").fetchall():
            if op == "TRUNCATE":
                yield "t", {}
            elif op == "UPDATE" and old["id"] == new["id"]:
                yield "u", new
            else:
                if old:
                    yield "d", old
                if new:
                    yield "c", new


@contextmanager
def kept(
    servers: Servers, spark: SparkSession, warehouse: Warehouse, database: str, prefix: str, folder: Path
) -> Iterator[Views]:
    suffix = uuid.uuid4().hex[:8]
    views = {
        f"h_{suffix}": View(table="public.t", shape="history"),
        f"l_{suffix}": View(table="public.t", shape="log"),
        f"k_{suffix}": View(table="public.keyless", shape="log"),
    }
    file = write_config(folder, database, servers.bootstrap, prefix, source='tables = ["public.t", "public.keyless"]\n')
    config = load(file).model_copy(update={"warehouse": warehouse, "views": views})
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_AUDIT)
        with running(file), Cuts(config) as cuts:
            topic = ViewsTopic(config.kafka, Topics(prefix))
            groups = Groups(config.kafka)
            shared = Shared(config, spark, Records(spark, config.kafka), cuts, topic, groups)
            made = Views(Bench(config, None, shared), Source(connection))  # type: ignore[arg-type]
            made.kept = {name: made.bench.kept(name) for name in views}
            yield made


def test_history_and_log_give_every_past_state_and_change(
    servers: Servers, spark: SparkSession, warehouse: Warehouse, database: str, prefix: str, tmp_path: Path
) -> None:
    with kept(servers, spark, warehouse, database, prefix, tmp_path) as views:
        source, bench = views.source, views.bench
        wait_for_state(bench.config, source.connection)
        source.note()
        for _ in range(4):
            source.change()
        source.run(
            "DELETE FROM t WHERE id < 5", "INSERT INTO t VALUES (1, 'again', 1)", "INSERT INTO keyless VALUES (1)"
        )
        first = views.step()
        views.check()

        source.run("ALTER TABLE t ADD COLUMN extra bigint", "UPDATE t SET extra = id WHERE id % 3 = 0")
        for _ in range(4):
            source.change()
        source.run("TRUNCATE t, keyless", "INSERT INTO keyless VALUES (2), (2)")
        source.run("INSERT INTO t (id, n) VALUES (7, 7), (8, 8)", "TRUNCATE t", "INSERT INTO t (id, n) VALUES (8, 8)")
        for _ in range(3):
            source.change()
        source.run("ALTER TABLE t ALTER n TYPE bigint, DROP COLUMN name", "UPDATE t SET n = 1::bigint << 40")
        views.step()
        views.check()

        # Killed after the commit, before publishing it: the next process continues from the table's own cut.
        source.change()
        wait_for_state(bench.config, source.connection)
        seen = bench.shared.cuts.wait(declare(bench.config, views.history))
        for name, view in views.kept.items():
            view.batch.advance(view.load()[0], seen, Report())
            views.kept[name] = open_view(bench.shared, name)
        # Then an older batch is replayed.
        for view in views.kept.values():
            assert view.step(first, Report())
        views.step()
        views.check()

        events = sorted(bench.rows(views.keyless), key=lambda row: (row["commit_lsn"], row["ordinal"]))
        assert [(row["op"], row["v"]) for row in events] == [("r", 0), ("c", 1), ("t", None), ("c", 2), ("c", 2)]

        read_again(views)
        views.check()
        rebuilt(views)
        refused(views)
        begun_later(views)


def read_again(views: Views) -> None:
    """A snapshot run changes no row, so it adds no version; the log shows the rows that were read."""
    config, folder = views.bench.config, Path(views.bench.config.source.toast_cache_dir or "").parent
    before = versions(views)
    logged = len(views.bench.rows(views.log))
    run = read(config).run
    done = tailrace("snapshot", "start", "public.t", "--reconcile", "--config", str(folder / "tailrace.toml"))
    assert done.returncode == 0, done.stderr

    def ran() -> bool:
        table = read(config)
        return table.run > run and table.state == "done"

    wait_until(ran, 60)
    views.step()
    assert versions(views) == before
    assert len(views.bench.rows(views.log)) > logged


def read(config: Config) -> TableSnapshot:
    return next(each for each in read_snapshots(config).tables if each.table == "public.t")


def versions(views: Views) -> int:
    name = f"{views.bench.config.warehouse.catalog}.{views.bench.config.warehouse.namespace}.{views.history}"  # type: ignore[union-attr]
    return views.bench.shared.session.table(name).count()


def rebuilt(views: Views) -> None:
    """A rebuild loses nothing: versions that the topic may lack come from the live generation."""
    before, begins = versions(views), views.kept[views.history].applied
    views.source.change()
    wait_for_state(views.bench.config, views.source.connection)
    for name in (views.history, views.log):
        assert rebuild(views.bench.shared, views.bench.kept(name)).generation == 2
    assert begins is not None
    after = views.bench.kept(views.history).load()[0]
    assert after is not None
    assert after.history_from == begins.history_from
    assert versions(views) >= before
    views.source.change()
    views.step()
    views.check(20)


def refused(views: Views) -> None:
    """A view refuses reads outside of its history, and a batch over records that may be compacted."""
    config, shared = views.bench.config, views.bench.shared
    begins = views.kept[views.history].applied
    assert begins is not None
    assert begins.history_from is not None
    with pytest.raises(TailraceError, match="TR-561"):
        read_as_of_lsn(config, views.history, begins.history_from.lsn - 1)
    with pytest.raises(TailraceError, match="TR-562"):
        read_as_of_lsn(config, views.history, read_view(config, views.history).cut.flushed_lsn + 1)
    # With a short lag, records that are not read yet may have been compacted.
    views.source.change()
    cut = wait_for_state(config, views.source.connection)
    time.sleep(0.1)
    short = config.model_copy(update={"kafka": config.kafka.model_copy(update={"min_compaction_lag_ms": 50})})
    behind = replace(shared, config=short)
    for name in (views.history, views.log):
        with pytest.raises(TailraceError, match="TR-560"):
            open_view(behind, name).step(SeenCut(cut, 2**62), Report())
    shared.records.release()
    # A new view begins where the topic is certainly whole: at the cut.
    fresh = {f"{name}_new": config.views[name] for name in (views.history, views.log)}
    begun = replace(shared, config=short.model_copy(update={"views": fresh}))
    for name in fresh:
        view = open_view(begun, name)
        assert view.step(SeenCut(cut, 2**62), Report())
        assert view.applied is not None
        assert view.applied.history_from is not None
        assert view.applied.history_from.lsn == cut.flushed_lsn
    now = views.source.by_lsn[list(views.source.by_lsn)[-1]]
    assert compared(list(read_view(begun.config, next(iter(fresh))).rows)) == now
    stood = [{k: v for k, v in row.items() if k in ("id", "n", "extra")} for row in _rows(begun, list(fresh)[-1])]
    assert compared(stood) == now


def begun_later(views: Views) -> None:
    """With a later `history_from`, a rebuild begins there and drops all earlier versions."""
    past = list(views.source.by_lsn)
    later = past[len(past) // 2]
    declared = views.bench.config.views[views.history].model_copy(update={"history_from": format_lsn(later)})
    config = views.bench.config.model_copy(update={"views": {views.history: declared}})
    shared = replace(views.bench.shared, config=config)
    view = open_view(shared, views.history)
    rebuild(shared, view, swap=False)
    with pytest.raises(TailraceError, match="TR-574"):
        compare(shared, view, 1)
    swap(shared, view)
    with pytest.raises(TailraceError, match="TR-561"):
        read_as_of_lsn(config, views.history, past[0])
    for lsn in (later, past[-3], past[-1]):
        assert compared(list(read_as_of_lsn(config, views.history, lsn))) == views.source.by_lsn[lsn]


def _rows(shared: Shared, name: str) -> list[dict[str, Any]]:
    return list(read_view(shared.config, name).rows)


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        (View(query="SELECT id FROM public.t", key=["id"], shape="log"), "TR-563"),
        (View(table="public.t", shape="history", target="search"), "TR-511"),
        (View(table="public.t", history_from="0/1"), "TR-563"),
        (View(table="public.t", shape="history", history_from="0/1"), "TR-565"),
        (View(table="public.t", shape="log"), "TR-564"),
    ],
)
def test_histories_and_logs_that_cannot_be_maintained_are_refused(
    bench: Callable[..., Bench], declared: View, code: str
) -> None:
    made = bench({"v": declared})
    made.pipeline.table("t", [column("id", "int4"), column("op", "text")], ("id",))
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 1})
    seen = made.shared.cuts.wait(reader(made.pipeline))
    with pytest.raises(TailraceError, match=code):
        made.kept("v").step(seen, Report())


def _all_versions(view: KeptView) -> list[dict[str, Any]]:
    assert view.applied is not None
    assert isinstance(view.batch.target, IcebergTarget)
    rows = view.batch.target.rows(view.applied.generation).collect()
    return sorted((row.asDict() for row in rows), key=lambda row: (row["id"], row["valid_from_lsn"]))


def test_batches_of_any_length_give_the_same_versions_of_a_column_that_goes(bench: Callable[..., Bench]) -> None:
    """A history that is brought forward often, and one that begins when the column is gone."""
    names = [f"{name}_{uuid.uuid4().hex[:8]}" for name in ("often", "rarely", "late")]
    made = bench({name: View(table="public.t", shape="history") for name in names})
    often, rarely, late = map(made.kept, names)
    pipeline = made.pipeline
    before = [column("id", "int4"), column("price", "int4"), column("note", "text")]
    pipeline.table("t", before, ("id",))

    def commit(*rows: dict[str, Any]) -> None:
        with pipeline.transaction() as tx:
            for row in rows:
                tx.put("t", row)
        step(made, often)

    commit({"id": 1, "price": 1, "note": "a"}, {"id": 2, "price": 1, "note": "b"})
    step(made, rarely)
    commit({"id": 1, "price": 2, "note": "a"})
    commit({"id": 1, "price": 3, "note": "a"})
    pipeline.reshape("t", [column("id", "int4"), column("amount", "int4"), column("note", "text")])
    commit({"id": 1, "amount": 3, "note": "a"})
    commit({"id": 1, "amount": 4, "note": "a"}, {"id": 2, "amount": None, "note": "b"})
    pipeline.reshape("t", [column("id", "int4"), column("amount", "int4")])
    commit({"id": 1, "amount": 4})
    commit({"id": 1, "amount": 4}, {"id": 2, "amount": None})
    step(made, rarely, late)
    found = [_all_versions(view) for view in (often, rarely, late)]
    assert [(row["price"], row["amount"], row["note"]) for row in found[0] if row["id"] == 1] == [
        *((1, None, "a"), (2, None, "a"), (3, None, "a")),
        *((None, 3, "a"), (None, 4, "a"), (None, 4, None)),
    ]
    assert [(row["price"], row["note"]) for row in found[0] if row["id"] == 2] == [(1, "b"), (None, "b"), (None, None)]
    assert found[1] == found[0]
    assert found[2] == found[0]
