"""Views that read views: after every batch, each equals its query over the tables at its cut."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import SinkError, TailraceError
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.iceberg.direct.writers import index_folder
from tailrace.sinks.iceberg.maintenance import compact
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.read.views import read_view
from tailrace.sinks.tracing.traces import Traces
from tailrace.spark_jobs.health.health import ViewHealth
from tailrace.spark_jobs.jobs.follow import keep
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.lookup.known_tables import rows_of_view
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tailrace.spark_jobs.maintain.waiting import Waiting
from tests.spark.conftest import ROUNDS, Bench, newest, no_scan, write_half
from tests.spark.pipeline import column
from tests.spark.shop import plain
from tests.support.shop_engine import Engine, over_new
from tests.support.shop_model import COLUMNS, EXAMPLES, KEYS, ShopModel

Make = Callable[..., Bench]

QUERIES = {
    "spending": "SELECT customer_id, count(*) AS n, sum(amount) AS total FROM public.orders GROUP BY customer_id",
    # A table and a view, and a group over rows of the view whose key may be NULL.
    "countries": "SELECT c.country, count(*) AS customers, sum(s.total) AS total FROM public.customer c"
    " LEFT JOIN spending s ON s.customer_id = c.id GROUP BY c.country",
    "feed": EXAMPLES["timeline"].sql,
    # Two views, one of them twice, and no table.
    "loud": "SELECT f.reader, f.post, s.n FROM feed f LEFT JOIN spending s ON s.customer_id = f.reader"
    " WHERE NOT EXISTS (SELECT 1 FROM feed g WHERE g.reader = f.reader AND g.post > f.post)",
    "home": "SELECT reader, sort_array(collect_list(struct(at, post))) AS posts FROM feed GROUP BY reader",
}
KEYED = {"spending": ["customer_id"], "countries": ["country"], "feed": ["reader", "post"], "loud": ["reader", "post"]}


class Cascade:
    """The views above over the tables of `tests.support.shop_model`; DuckDB gives the expected rows."""

    def __init__(self, bench: Make, search: str, seed: int = 7) -> None:
        self.suffix = uuid.uuid4().hex[:8]
        views = {
            self.called(name): View(
                query=self.renamed(sql),
                key=KEYED.get(name, ["reader"]),
                target="search" if name == "home" else "warehouse",
            )
            for name, sql in QUERIES.items()
        }
        self.bench = bench(views, search)
        self.model = ShopModel(seed)
        for table, columns in COLUMNS.items():
            self.bench.pipeline.table(table, [column(name, kind) for name, kind in columns.items()], KEYS[table])
        self.views = {name: self.bench.kept(self.called(name)) for name in QUERIES}
        self.engine = Engine()
        self.queries = dict(QUERIES)

    def called(self, name: str) -> str:
        return f"{name}_{self.suffix}"

    def renamed(self, sql: str) -> str:
        for name in QUERIES:
            sql = sql.replace(f" {name} ", f" {self.called(name)} ")
        return sql

    def commit(self, changes: list[tuple[str, str, Any]]) -> None:
        with self.bench.pipeline.transaction() as tx:
            for kind, table, what in changes:
                if kind == "put":
                    tx.put(table, what)
                elif kind == "delete":
                    tx.delete(table, *what)
                else:
                    tx.truncate(table)

    def step(self, *names: str) -> dict[str, Report]:
        """Run one round; return each view's report."""
        seen, reports = newest(self.bench), {}
        for name in names or self.views:
            reports[name] = Report()
            assert self.views[name].step(seen, reports[name])
        self.bench.shared.records.release()
        return reports

    def again(self, name: str) -> KeptView:
        """Open a view again, as another process does."""
        self.views[name] = self.bench.kept(self.called(name))
        return self.views[name]

    def check(self, *names: str) -> None:
        self.engine.load({table: {} for table in COLUMNS}, {t: dict(rows) for t, rows in self.model.tables.items()})
        assert self.bench.pipeline.cut is not None
        for name, sql in self.queries.items():
            if name != "home":
                self.engine.step(name, over_new(sql))
        for name in names or self.queries:
            state = read_view(self.bench.config, self.called(name))
            assert state.cut.flushed_lsn == self.bench.pipeline.cut.flushed_lsn, name
            if name == "home":
                assert {row["reader"]: row["posts"] for row in state.rows} == self.lists()
                continue
            found = sorted((tuple(row.values()) for row in state.rows), key=repr)
            expected = [tuple(map(plain, row)) for row in self.engine.query(f'SELECT * FROM "{name}"')]
            assert found == sorted(expected, key=repr), name

    def post(self, number: int) -> list[tuple[str, str, Any]]:
        """Let customer 1, who follows themselves, post something new, so that it is in the home timeline."""
        customer = {"id": 1, "country": "a", "segment": None, "boss": 1}
        order = {"id": number, "customer_id": 1, "status": "a", "amount": 1, "at": 1_800_000_000_000_000}
        return [self.model.put("customer", customer), self.model.put("orders", order)]

    def lists(self) -> dict[int, list[dict[str, Any]]]:
        found: dict[int, list[dict[str, Any]]] = {}
        rows = self.engine.query('SELECT reader, post, "at" FROM feed ORDER BY "at" NULLS FIRST, post')
        for reader, post, at in rows:
            found.setdefault(reader, []).append({"at": plain(at), "post": post})
        return found

    def said(self, name: str) -> str:
        return read_views(self.bench.config.kafka, self.bench.pipeline.topics)[self.called(name)].error or ""


def test_views_over_views_equal_their_queries_at_every_cut(
    bench: Make, search_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cascade = Cascade(bench, search_url)
    cascade.commit(cascade.model.fill())
    cascade.step()
    cascade.check()
    for _ in range(ROUNDS):
        cascade.commit([*cascade.model.change(), *cascade.model.change()])
        assert not any(report.replaced for report in cascade.step().values())
        cascade.check()

    # A view that is maintained alone advances those below it. A batch begun in the index ends at its cut.
    cascade.commit(cascade.post(91))
    refused = SinkError("TR-531", "planted")
    with monkeypatch.context() as patched:
        write_half(patched, refused)
        with pytest.raises(Exception, match=r"planted|PythonException"):
            cascade.step("home")
    cascade.views["home"].park(refused)
    cascade.commit(cascade.model.change(9))
    cascade.step("loud")
    cascade.step("home")
    cascade.step("home")
    cascade.check("loud", "home", "feed")

    # A view waits for one below it that is parked, and reports that.
    monkeypatch.setattr("tailrace.spark_jobs.maintain.kept_view._FIRST_PAUSE_S", 300.0)
    cascade.commit(cascade.model.change(9))
    below, above = cascade.views["spending"], cascade.views["countries"]
    below.park(refused)
    with pytest.raises(Waiting, match="TR-531"):
        cascade.step("countries")
    health = ViewHealth("countries", above.declared.topics)
    keep(above, newest(cascade.bench), threading.Event(), health, Traces(cascade.bench.config, "views", print))
    assert "TR-582" in cascade.said("countries")
    assert not above.parked
    cascade.again("spending")
    cascade.step()
    assert cascade.said("countries") == cascade.said("spending") == ""
    cascade.check()


def test_a_new_generation_below_replaces_the_views_that_read_it(bench: Make, search_url: str) -> None:
    cascade = Cascade(bench, search_url, seed=8)
    cascade.commit(cascade.model.fill())
    cascade.step()
    # The view below gets another query: the views above wait until it is rebuilt.
    cascade.queries["spending"] = QUERIES["spending"].replace("sum(amount)", "sum(amount + 1)")
    name = cascade.called("spending")
    views = cascade.bench.config.views
    views[name] = views[name].model_copy(update={"query": cascade.renamed(cascade.queries["spending"])})
    cascade.commit(cascade.model.change(9))
    with pytest.raises(TailraceError, match="TR-548"):
        cascade.again("spending").step(newest(cascade.bench), Report())
    with pytest.raises(Waiting, match="TR-548"):
        cascade.step("countries")
    rebuild(cascade.bench.shared, cascade.again("spending"))
    cascade.commit(cascade.model.change(9))
    reports = cascade.step()
    assert {name for name, report in reports.items() if report.replaced} == {"countries", "loud"}
    cascade.check()
    cascade.commit(cascade.model.change(9))
    assert not any(report.replaced for report in cascade.step().values())
    cascade.check()
    # The view above is rebuilt, and advances those below it.
    cascade.commit(cascade.model.change(9))
    assert rebuild(cascade.bench.shared, cascade.again("countries")).generation == 2
    cascade.check("countries", "spending")


def test_small_batches_look_up_the_rows_of_views(bench: Make, search_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed in a view below is known from its own batches; if not, both of its states are compared."""
    cascade = Cascade(bench, search_url, seed=9)
    cascade.commit(cascade.model.fill())
    cascade.step()

    def change() -> None:
        """Commit random changes, but no truncate, after which the whole table is a change."""
        changes = cascade.model.change()
        while any(kind == "truncate" for kind, _, _ in changes):
            cascade.commit(changes)
            cascade.step()
            changes = cascade.model.change()
        cascade.commit(changes)

    def changed(*names: str) -> None:
        for _ in range(2):
            change()
            cascade.step(*names)

    def compacted() -> None:
        target = cascade.views["spending"].batch.target
        assert isinstance(target, IcebergTarget)
        changed("spending")
        compact(target)

    def lost() -> None:
        cascade.bench.shared.known.close()
        warehouse = cascade.bench.config.warehouse
        assert warehouse is not None
        folder = index_folder(warehouse)
        assert folder is not None
        for name in ("feed", "spending"):
            shutil.rmtree(folder / ".rows" / rows_of_view(warehouse, cascade.called(name)))

    def large() -> None:
        """Batches of the views below that are too large to say what they change."""
        with monkeypatch.context() as patched:
            patched.setattr("tailrace.spark_jobs.maintain.query_batch.FEW_ROWS", 0)
            changed("feed", "spending")
        change()
        cascade.step()

    def advanced_elsewhere() -> None:
        """Another process maintains the views below for a while, so that the known rows are behind."""
        known = cascade.bench.shared.known
        with monkeypatch.context() as patched:
            patched.setattr(known, "changed", lambda *_: None)
            changed("feed", "spending")

    for disturb in (compacted, lost, large, advanced_elsewhere):
        disturb()
        # these batches may read whole tables, the second one for the sums of groups; the next ones may not
        for _ in range(2):
            change()
            cascade.step()
            cascade.check()
        for _ in range(ROUNDS):
            change()
            with monkeypatch.context() as patched:
                no_scan(patched)
                cascade.step()
            cascade.check()
