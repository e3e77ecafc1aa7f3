"""Generations of a view: staged, compared, swapped, rolled back, expired, dropped, in either target."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from schemas.config import View
from schemas.errors import TailraceError
from sinks.opensearch_compare import Counts
from sinks.views_read import read_view
from sinks.views_topic import read_views
from spark_jobs.batch import Report
from spark_jobs.compare import compare
from spark_jobs.generations import drop, rollback, swap
from spark_jobs.kept import KeptView
from spark_jobs.rebuild import rebuild
from spark_jobs.swap import swap_in
from tests.spark.conftest import Bench, newest, step
from tests.spark.pipeline import column

Make = Callable[..., Bench]

COLUMNS = [column("id", "int4"), column("name", "text"), column("n", "int4")]


@pytest.fixture(params=["warehouse", "search"])
def made(request: pytest.FixtureRequest, bench: Make) -> Bench:
    """A bench with 50 rows in a table, and a view of it that has applied them."""
    search = request.getfixturevalue("search_url") if request.param == "search" else None
    made = bench({f"g_{uuid.uuid4().hex[:8]}": View(table="public.t", target=request.param)}, search)
    made.pipeline.table("t", COLUMNS, ("id",))
    put(made, range(50), 0)
    step(made, view_of(made))
    return made


def name_of(made: Bench) -> str:
    return next(iter(made.config.views))


def view_of(made: Bench) -> KeptView:
    """The view as a process of its own opens it."""
    return made.kept(name_of(made))


def put(made: Bench, ids: range, n: int) -> None:
    with made.pipeline.transaction() as tx:
        for i in ids:
            tx.put("t", {"id": i, "name": f"row {i}", "n": n})


def live(made: Bench) -> int:
    return read_view(made.config, name_of(made)).generation


def there(made: Bench) -> list[int]:
    return sorted(view_of(made).batch.target.generations())


def someone_else_changes(made: Bench, spark: SparkSession) -> None:
    """Lose the rows 3 and 4 and change row 5, behind everybody's back."""
    name = name_of(made)
    if made.config.search is None:
        table = f"tailrace.{made.config.warehouse.namespace}.{name}" if made.config.warehouse else ""
        spark.sql(f"DELETE FROM {table} WHERE id IN (3, 4)")
        spark.sql(f"UPDATE {table} SET name = 'wrong', n = NULL WHERE id = 5")
        return
    index = f"{made.config.search.index_prefix}{name}"
    with OpenSearch(made.config.search.hosts) as client:
        for number in (3, 4):
            client.delete(index=index, id=f"[{number}]")
        client.update(index=index, id="[5]", body={"doc": {"name": "wrong", "n": None}}, params={"refresh": "true"})


def test_side_by_side(made: Bench, spark: SparkSession) -> None:
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

    # back to where the first one stood, with what somebody has changed in it; then on from there
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
    # forward again: what came meanwhile is there, too
    assert swap(made.shared, view_of(made)).generation == 2
    assert made.agrees(name_of(made), "t") == 59


def test_old_ones_go(made: Bench, spark: SparkSession) -> None:
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
    """What was dropped is gone with all that it took: snapshots in the warehouse, indexes in the search."""
    name = name_of(made)
    if made.config.search is not None:
        with OpenSearch(made.config.search.hosts) as client:
            indexes = client.indices.get(index=f"{made.config.search.index_prefix}{name}-g*")
        assert {int(index.rpartition("-g")[2]) for index in indexes} == generations
        return
    assert made.config.warehouse is not None
    snapshots = spark.sql(f"SELECT summary FROM tailrace.{made.config.warehouse.namespace}.{name}.snapshots")
    assert {int(row.summary["tailrace.generation"]) for row in snapshots.collect()} == generations


def test_other_columns(made: Bench) -> None:
    follow = view_of(made)
    made.pipeline.reshape("t", [column("id", "int4"), column("n", "int8"), column("extra", "text")])
    put(made, range(5), 1)
    rebuild(made.shared, view_of(made), swap=False)
    found = compare(made.shared, view_of(made), 5)
    assert (found.only_live_columns, found.only_staged_columns) == (("name",), ())
    assert (found.different, found.counts) == (True, Counts(50, 50))
    swap(made.shared, view_of(made))
    assert set(made.rows(name_of(made))[0]) == {"id", "n", "extra"}
    rollback(made.shared, view_of(made))
    assert live(made) == 1
    assert {row["name"] for row in made.rows(name_of(made))} == {f"row {i}" for i in range(50)}
    with made.pipeline.transaction() as tx:
        tx.delete("t", 49)
    step(made, follow)
    assert made.agrees(name_of(made), "t") == 49
    again = rebuild(made.shared, view_of(made))
    assert again.generation == 2
    assert set(made.rows(name_of(made))[0]) == {"id", "n", "extra"}
    assert made.agrees(name_of(made), "t") == 49


def test_a_changed_query(bench: Make) -> None:
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


def test_a_parked_view_is_tried_when_another_has_had_its_lease(made: Bench) -> None:
    view = view_of(made)
    view.step(newest(made), Report())
    view.park(TailraceError("TR-999", "it"))
    assert view.parked
    assert read_views(made.config.kafka, made.pipeline.topics)[name_of(made)].error is not None
    with view_of(made).lease.held(0):
        pass
    assert not view.parked
    step(made, view)
    assert read_views(made.config.kafka, made.pipeline.topics)[name_of(made)].error is None


_SWAPS = 20


def test_a_reader_during_swaps(bench: Make, search_url: str) -> None:
    """Every transaction writes all rows: whoever reads sees all of them, of one transaction, and never an older one."""
    suffix = uuid.uuid4().hex[:8]
    names = {"warehouse": f"w_{suffix}", "search": f"s_{suffix}"}
    made = bench({name: View(table="public.t", target=target) for target, name in names.items()}, search_url)
    made.pipeline.table("t", COLUMNS, ("id",))
    put(made, range(50), 0)
    follow = [made.kept(name) for name in names.values()]
    step(made, *follow)
    readers = [
        Reader(lambda: read_warehouse(made, names["warehouse"])),
        Reader(lambda: read_search(made, names["search"])),
    ]
    views = [made.kept(name) for name in names.values()]
    for view in views:
        rebuild(made.shared, view, swap=False)
    for reader in readers:
        reader.start()
    for n in range(1, _SWAPS + 1):
        put(made, range(50), n)
        if n % 5 == 0:
            # what is swapped out is ahead of what is swapped in
            step(made, *follow)
        newest(made)
        for view in views:
            target = view.batch.target
            now = target.live()
            assert now is not None
            (other,) = (applied for number, applied in target.generations().items() if number != now.generation)
            assert swap_in(made.shared, view, other).generation == other.generation
    for reader in readers:
        reader.end()
        assert reader.wrong == []
        assert reader.seen[-1] == _SWAPS
        assert len(set(reader.seen)) > _SWAPS / 2
        assert len(reader.seen) > 2 * _SWAPS


def read_warehouse(made: Bench, name: str) -> list[int]:
    return [row["n"] for row in read_view(made.config, name).rows]


def read_search(made: Bench, name: str) -> list[int]:
    assert made.config.search is not None
    with OpenSearch(made.config.search.hosts) as client:
        found = client.search(index=f"{made.config.search.index_prefix}{name}", body={"size": 1000})
    return [hit["_source"]["n"] for hit in found["hits"]["hits"]]


class Reader(threading.Thread):
    """Reads in a tight loop and notes which transaction it has seen, or what it should not have."""

    def __init__(self, read: Callable[[], list[int]]) -> None:
        super().__init__(daemon=True)
        self._read = read
        self._stop_it = threading.Event()
        self.seen: list[int] = []
        self.wrong: list[Any] = []

    def run(self) -> None:
        while not self._stop_it.is_set() and not self.wrong:
            try:
                found = self._read()
            except Exception as error:
                self.wrong.append(repr(error))
                return
            if len(found) != 50 or len(set(found)) != 1 or (self.seen and found[0] < self.seen[-1]):
                self.wrong.append((self.seen[-1:], found))
            else:
                self.seen.append(found[0])

    def end(self) -> None:
        self._stop_it.set()
        self.join(30)
