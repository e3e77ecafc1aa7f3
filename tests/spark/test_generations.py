"""Generations of a view: staged, compared, swapped, rolled back, expired, dropped, in either target."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from tailrace.cdc.operations.resume import resume
from tailrace.schemas.config.model import Search, View
from tailrace.schemas.errors import TailraceError
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.opensearch.bulk import connect
from tailrace.sinks.read.views import generations_there, read_view
from tailrace.sinks.target.comparison import Counts
from tailrace.spark_jobs.jobs.compare import compare
from tailrace.spark_jobs.jobs.follow import follow as follow_views
from tailrace.spark_jobs.jobs.generations import drop, rollback, swap, what_may_refuse
from tailrace.spark_jobs.jobs.rebuild import foretell, rebuild
from tailrace.spark_jobs.jobs.swap import swap_in
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tests.spark.conftest import Bench, newest, step
from tests.spark.pipeline import column
from tests.support.daemon import wait_until

Make = Callable[..., Bench]

COLUMNS = [column("id", "int4"), column("name", "text"), column("n", "int4")]


@pytest.fixture(params=["warehouse", "search"])
def made(request: pytest.FixtureRequest, bench: Make) -> Bench:
    """A bench with 50 rows in a table, and a view that has applied them."""
    search = request.getfixturevalue("search_url") if request.param == "search" else None
    made = bench({f"g_{uuid.uuid4().hex[:8]}": View(table="public.t", target=request.param)}, search)
    made.pipeline.table("t", COLUMNS, ("id",))
    put(made, range(50), 0)
    step(made, view_of(made))
    return made


def name_of(made: Bench) -> str:
    return next(iter(made.config.views))


def view_of(made: Bench) -> KeptView:
    """Open the view as another process would."""
    return made.kept(name_of(made))


def put(made: Bench, ids: range, n: int) -> None:
    with made.pipeline.transaction() as tx:
        for i in ids:
            tx.put("t", {"id": i, "name": f"row {i}", "n": n})


def live(made: Bench) -> int:
    return read_view(made.config, name_of(made)).generation


def there(made: Bench) -> list[int]:
    """Return the generations that Spark finds; reading without Spark must find the same."""
    target, found = view_of(made).batch.target, generations_there(made.config, name_of(made))
    generations, is_live = target.generations(), target.live()
    assert found is not None
    assert found.live is not None
    assert is_live is not None
    assert {number: applied.cut for number, applied in found.generations.items()} == {
        number: applied.cut for number, applied in generations.items()
    }
    assert found.live.generation == is_live.generation
    return sorted(generations)


def someone_else_changes(made: Bench, spark: SparkSession) -> None:
    """Delete rows 3 and 4 and change row 5, without the view's knowledge."""
    name = name_of(made)
    if made.config.search is None:
        table = f"tailrace.{made.config.warehouse.namespace}.{name}" if made.config.warehouse else ""
        spark.sql(f"DELETE FROM {table} WHERE id IN (3, 4)")
        spark.sql(f"UPDATE {table} SET name = 'wrong', n = NULL WHERE id = 5")
        return
    index = f"{made.config.search.index_prefix}{name}"
    with connect(made.config.search) as client:
        for number in (3, 4):
            client.delete(index=index, id=f"[{number}]")
        client.update(index=index, id="[5]", body={"doc": {"name": "wrong", "n": None}}, params={"refresh": "true"})


def test_generations_are_staged_compared_swapped_and_rolled_back(made: Bench, spark: SparkSession) -> None:
    follow = view_of(made)
    with pytest.raises(TailraceError, match="TR-571"):
        compare(made.shared, view_of(made), 10)
    staged = rebuild(made.shared, view_of(made), swap=False)
    assert (staged.generation, live(made), there(made)) == (2, 1, [1, 2])
    put(made, range(40, 60), 1)
    found = compare(made.shared, view_of(made), 10)
    assert (found.different, found.counts, found.keys) == (False, Counts(60, 60), ())

    someone_else_changes(made, spark)
    put(made, range(1), 2)
    step(made, follow)
    found = compare(made.shared, view_of(made), 2)
    assert found.different
    assert found.counts == Counts(58, 60, only_staged=2, changed=1)
    assert len(found.keys) == 2
    keys = {each.key["id"]: each for each in compare(made.shared, view_of(made), 10).keys}
    assert {number: each.what for number, each in keys.items()} == {3: "only staged", 4: "only staged", 5: "different"}
    assert keys[5].columns == ("name", "n")

    swapped = swap(made.shared, view_of(made))
    assert (swapped.generation, live(made), made.agrees(name_of(made), "t")) == (2, 2, 60)
    with made.pipeline.transaction() as tx:
        tx.delete("t", 7)
        tx.put("t", {"id": 3, "name": "new", "n": 9})
        tx.put("t", {"id": 5, "name": "new", "n": 9})
    step(made, follow)
    assert made.agrees(name_of(made), "t") == 59

    # back to the first generation's state, with the changes by hand in it; then it continues from there
    behind = read_view(made.config, name_of(made)).cut
    before = rollback(made.shared, view_of(made))
    state = read_view(made.config, name_of(made))
    assert (before.generation, state.generation) == (1, 1)
    assert state.cut.flushed_lsn < behind.flushed_lsn
    assert len(list(state.rows)) == 58
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 4, "name": "new", "n": 9})
    step(made, follow)
    assert (live(made), made.agrees(name_of(made), "t")) == (1, 59)
    with pytest.raises(TailraceError, match="TR-572"):
        rollback(made.shared, view_of(made))
    assert there(made) == [1, 2]
    # forward again: it includes the changes of the meantime
    assert swap(made.shared, view_of(made)).generation == 2
    assert made.agrees(name_of(made), "t") == 59


def test_old_and_dropped_generations_leave_nothing_behind(made: Bench, spark: SparkSession) -> None:
    follow = view_of(made)
    for expected in (2, 3):
        assert rebuild(made.shared, view_of(made)).generation == expected
        assert there(made) == [expected - 1, expected]
    assert_nothing_else(made, spark, {2, 3})
    rebuild(made.shared, view_of(made), swap=False)
    assert drop(made.shared, view_of(made), 2, None) == [2]
    assert drop(made.shared, view_of(made), 4, None) == [4]
    assert there(made) == [3]
    assert_nothing_else(made, spark, {3})
    for generation in (None, 3):
        with pytest.raises(TailraceError, match="TR-575"):
            drop(made.shared, view_of(made), generation, None)
    with pytest.raises(TailraceError, match="TR-571"):
        drop(made.shared, view_of(made), 2, name_of(made))
    step(made, follow)
    assert made.agrees(name_of(made), "t") == 50
    assert drop(made.shared, view_of(made), None, name_of(made)) == [3]
    assert name_of(made) not in read_views(made.config.kafka, made.pipeline.topics)
    with pytest.raises(TailraceError, match="TR-512"):
        live(made)
    step(made, follow)
    assert made.agrees(name_of(made), "t") == 50


def assert_nothing_else(made: Bench, spark: SparkSession, generations: set[int]) -> None:
    """Dropped generations leave nothing: no snapshots in the warehouse, no indexes in the search engine."""
    name = name_of(made)
    if made.config.search is not None:
        with connect(made.config.search) as client:
            indexes = client.indices.get(index=f"{made.config.search.index_prefix}{name}-g*")
        assert {int(index.rpartition("-g")[2]) for index in indexes} == generations
        return
    assert made.config.warehouse is not None
    snapshots = spark.sql(f"SELECT summary FROM tailrace.{made.config.warehouse.namespace}.{name}.snapshots")
    assert {int(row.summary["tailrace.generation"]) for row in snapshots.collect()} == generations


def test_generations_with_other_columns_are_swapped_and_rolled_back(made: Bench) -> None:
    follow = view_of(made)
    made.pipeline.reshape("t", [column("id", "int4"), column("n", "int8"), column("extra", "text")])
    put(made, range(5), 1)
    rebuild(made.shared, view_of(made), swap=False)
    found = compare(made.shared, view_of(made), 5)
    assert (found.only_live_columns, found.only_staged_columns) == (("name",), ())
    assert (found.different, found.counts) == (True, Counts(50, 50))
    assert there(made) == [1, 2]
    swap(made.shared, view_of(made))
    assert set(made.rows(name_of(made))[0]) == {"id", "n", "extra"}
    rollback(made.shared, view_of(made))
    assert live(made) == 1
    # rows of the first generation that changed since then have no name
    assert {row["name"] for row in made.rows(name_of(made))} == {None, *(f"row {i}" for i in range(5, 50))}
    with made.pipeline.transaction() as tx:
        tx.delete("t", 49)
    step(made, follow)
    assert made.agrees(name_of(made), "t") == 49
    again = rebuild(made.shared, view_of(made))
    assert again.generation == 2
    assert set(made.rows(name_of(made))[0]) == {"id", "n", "extra"}
    assert made.agrees(name_of(made), "t") == 49


def test_a_changed_query_is_compared_swapped_and_rolled_back(bench: Make, spark: SparkSession) -> None:
    name = f"g_{uuid.uuid4().hex[:8]}"
    old = bench({name: View(query="SELECT id, n FROM public.t WHERE n > 10", key=["id"])})
    old.pipeline.table("t", COLUMNS, ("id",))
    put(old, range(10), 5)
    put(old, range(10, 20), 15)
    put(old, range(20, 30), 25)
    follow = old.kept(name)
    step(old, follow)
    config = old.config.model_copy(
        update={"views": {name: View(query="SELECT id, n FROM public.t WHERE n > 20", key=["id"])}}
    )
    new = replace(old, config=config, shared=replace(old.shared, config=config, bases={}))
    rebuild(new.shared, new.kept(name), swap=False)
    found = compare(new.shared, new.kept(name), 3)
    assert (found.counts, len(found.keys)) == (Counts(20, 10, only_live=10), 3)
    put(old, range(2), 30)
    step(old, follow)
    assert len(old.rows(name)) == 22
    swap(new.shared, new.kept(name))
    assert len(old.rows(name)) == 12
    with pytest.raises(TailraceError, match="TR-548"):
        step(old, follow)
    follow.forget()
    rollback(new.shared, new.kept(name))
    put(old, range(2, 4), 30)
    step(old, follow)
    assert {row["id"] for row in old.rows(name)} == {*range(4), *range(10, 30)}

    # the base table no longer has the state at its cut
    put(old, range(4, 6), 30)
    swap(new.shared, new.kept(name))
    before = rollback(new.shared, new.kept(name))
    assert what_may_refuse(old.shared, old.kept(name), before) is None
    base = f"_base.{old.pipeline.topics.table('public', 't').replace('.', '_')}"
    spark.sql(
        f"CALL tailrace.system.expire_snapshots(table => '{base}', older_than => TIMESTAMP '2100-01-01 00:00:00',"
        " retain_last => 1)"
    )
    error = what_may_refuse(old.shared, old.kept(name), before)
    assert error is not None
    assert error.code == "TR-551"


def test_a_parked_view_is_resumed_once_its_index_is_writable(bench: Make, search_url: str) -> None:
    """A full disk makes an index read-only; when there is room again, a resume need not wait."""
    name = f"g_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.t", target="search")}, search_url)
    made.pipeline.table("t", COLUMNS, ("id",))
    put(made, range(5), 0)
    step(made, made.kept(name))
    put(made, range(5), 1)
    index = f"{made.pipeline.kafka.prefix}-{name}-g1"
    stop = threading.Event()
    following = threading.Thread(target=follow_views, args=(made.shared, [made.kept(name)], stop, None), daemon=True)
    with connect(Search(hosts=[search_url])) as client:
        client.indices.put_settings(index=index, body={"index.blocks.write": True})
        following.start()
        try:
            wait_until(lambda: read_views(made.config.kafka, made.pipeline.topics)[name].error, 60)
            with pytest.raises(TailraceError, match="TR-576") as failed:
                resume(made.config, name, 60)
            assert "ERROR  TR-531" in failed.value.detail
            client.indices.put_settings(index=index, body={"index.blocks.write": None})
            assert made.pipeline.cut is not None
            assert resume(made.config, name, 60) == made.pipeline.cut.flushed_lsn
        finally:
            stop.set()
            following.join(60)
    assert made.agrees(name, "t") == 5
    made.kept(name).park(TailraceError("TR-999", "it"))
    with pytest.raises(TailraceError, match="TR-577"):
        resume(made.config, name, 0.5)


def test_a_rebuild_foretells_its_size_and_reports_progress(
    bench: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench({f"g_{uuid.uuid4().hex[:8]}": View(table="public.t")})
    made.pipeline.table("t", COLUMNS, ("id",))
    put(made, range(50), 0)
    step(made, view_of(made))
    put(made, range(15_000), 1)
    newest(made)
    capsys.readouterr()
    foretell(made.config, [name_of(made)], as_json=True)
    foretold = json.loads(capsys.readouterr().out)
    # each partition has a marker for each transaction
    assert 15_050 <= foretold["records"] <= 15_050 + 6
    assert 30 * 15_000 < foretold["bytes"] < 1000 * 15_000
    assert foretold["target"] == "warehouse"
    monkeypatch.setattr("tailrace.spark_jobs.jobs.progress.EVERY_S", 0.05)
    rebuild(made.shared, view_of(made))
    lines = [json.loads(text) for text in capsys.readouterr().err.splitlines() if text.startswith("{")]
    told = [each for each in lines if each["event"] == "progress"]
    assert {each["stage"] for each in told} == {"read", "write"}
    assert max(each["share"] for each in told) > 0
    for each in told:
        assert 0 <= each["share"] <= 1
        assert 0 <= each["rows"] <= foretold["records"]
        assert (each["seconds_left"] is None) == (each["share"] < 0.01)
    assert [each["event"] for each in lines if each["event"] != "progress"][-1] == "generation swapped"


_SWAPS = 12
"""A new transaction comes before four of them, and is applied to the live generation before two."""


@pytest.mark.parametrize("target", ["warehouse", "search"])
def test_a_reader_sees_whole_transactions_in_order_during_swaps(
    request: pytest.FixtureRequest, bench: Make, target: Any
) -> None:
    """Every transaction writes all rows: a reader sees all rows of one transaction, never an older one."""
    search = request.getfixturevalue("search_url") if target == "search" else None
    made = bench({f"g_{uuid.uuid4().hex[:8]}": View(table="public.t", target=target)}, search)
    made.pipeline.table("t", COLUMNS, ("id",))
    put(made, range(50), 0)
    follow, view = view_of(made), view_of(made)
    step(made, follow)
    rebuild(made.shared, view, swap=False)
    reader = Reader(warehouse_reader(made) if search is None else search_reader(made, search))
    reader.start()
    written = 0
    for swap_number in range(_SWAPS):
        if swap_number % 3 == 0:
            written += 1
            put(made, range(50), written)
            newest(made)
        if swap_number % 6 == 0:
            # the generation that is swapped out is more recent than the one swapped in
            step(made, follow)
        now = view.batch.target.live()
        assert now is not None
        generations = view.batch.target.generations()
        (other,) = (applied for number, applied in generations.items() if number != now.generation)
        assert swap_in(made.shared, view, other).generation == other.generation
    reader.end()
    assert reader.wrong == []
    assert reader.seen[-1] == written
    assert len(set(reader.seen)) > written / 2
    assert len(reader.seen) > _SWAPS


def warehouse_reader(made: Bench) -> Callable[[], list[int]]:
    assert made.config.warehouse is not None
    uri = f"sqlite:///{made.config.warehouse.uri.removeprefix('jdbc:sqlite:')}"
    catalog = load_catalog("tailrace", type="sql", uri=uri)
    name = (made.config.warehouse.namespace, name_of(made))
    return lambda: [row["n"] for row in catalog.load_table(name).scan().to_arrow().to_pylist()]


def search_reader(made: Bench, url: str) -> Callable[[], list[int]]:
    client = connect(Search(hosts=[url]))
    index = f"{made.pipeline.kafka.prefix}-{name_of(made)}"

    def read() -> list[int]:
        return [hit["_source"]["n"] for hit in client.search(index=index, body={"size": 1000})["hits"]["hits"]]

    return read


class Reader(threading.Thread):
    """Reads half of the time and records which transaction it sees, and any inconsistent result.

    Without pauses, it would take the time of the swaps, of which each is seen by dozens of reads.
    """

    def __init__(self, read: Callable[[], list[int]]) -> None:
        super().__init__(daemon=True)
        self._read = read
        self._stop_it = threading.Event()
        self.seen: list[int] = []
        self.wrong: list[Any] = []

    def run(self) -> None:
        took = 0.0
        while not self._stop_it.wait(took) and not self.wrong:
            began = time.monotonic()
            try:
                found = self._read()
            except Exception as error:
                self.wrong.append(repr(error))
                return
            if len(found) != 50 or len(set(found)) != 1 or (self.seen and found[0] < self.seen[-1]):
                self.wrong.append((self.seen[-1:], found))
            else:
                self.seen.append(found[0])
            took = time.monotonic() - began

    def end(self) -> None:
        self._stop_it.set()
        self.join(30)
