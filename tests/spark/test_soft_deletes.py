"""Soft deletes by their effect: deleted rows stay with the time of their deletion, and nothing else sees them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import ConfigError, RebuildError
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.spark_jobs.jobs.compare import compare
from tailrace.spark_jobs.jobs.generations import rollback, swap
from tailrace.spark_jobs.jobs.mend import mend
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.jobs.verify import verify
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tests.spark.conftest import Bench, no_scan, step
from tests.spark.pipeline import column

Make = Callable[..., Bench]

COLUMNS = [column("id", "int4"), column("city", "text"), column("n", "int4")]
ROWS = 20


class World:
    """A table, its view with soft deletes and other settings, and a query that reads this view."""

    def __init__(self, bench: Make, key: tuple[str, ...] = ("id",), **settings: Any) -> None:
        suffix = uuid.uuid4().hex[:8]
        self.soft, self.over = f"soft_{suffix}", f"over_{suffix}"
        query = f"SELECT city, count(*) AS rows, sum(n) AS n FROM {self.soft} GROUP BY city"
        soft = View(table="public.t", deletes="soft", **settings)
        self.made = bench({self.soft: soft, self.over: View(query=query, key=["city"])})
        self.pipeline = self.made.pipeline
        self.pipeline.table("t", COLUMNS, key)
        self.reader = self.made.kept(self.over)

    def open(self, **changed: Any) -> tuple[Bench, KeptView]:
        """Open the view as another process does, with other settings."""
        view = View(**{**self.made.config.views[self.soft].model_dump(exclude_unset=True), **changed})
        config = self.made.config.model_copy(update={"views": {**self.made.config.views, self.soft: view}})
        made = replace(self.made, config=config, shared=replace(self.made.shared, config=config, views={}, bases={}))
        return made, made.kept(self.soft)

    def step(self) -> int:
        """Bring both views to the newest cut, and compare them with the model; return the LSN of its last commit."""
        step(self.made, self.view, self.reader)
        self.check()
        return self.pipeline.lsn

    def check(self) -> None:
        model = self.pipeline.tables["t"].rows
        assert self.made.agrees(self.soft, "t") == len(model)
        groups: dict[str, tuple[int, int]] = {}
        for row in model.values():
            rows, n = groups.get(row["city"], (0, 0))
            groups[row["city"]] = rows + 1, n + row["n"]
        assert {row["city"]: (row["rows"], row["n"]) for row in self.made.rows(self.over)} == groups

    @property
    def view(self) -> KeptView:
        return self.made.kept(self.soft)

    @property
    def target(self) -> IcebergTarget:
        target = self.view.batch.target
        assert isinstance(target, IcebergTarget)
        target.live()
        return target

    def deleted(self) -> dict[int, tuple[int | None, int]]:
        """Return n and the time of deletion, in ms, of the deleted rows by id."""
        found = self.target.stored_rows(self.live).where("_deleted_at IS NOT NULL")
        rows = found.selectExpr("id", "n", "unix_millis(_deleted_at)").collect()
        assert len({row[0] for row in rows}) == len(rows)
        return {row[0]: (row[1], row[2]) for row in rows}

    def pairs(self) -> dict[tuple[str, int], int]:
        """Return the time of deletion, in ms, of the deleted rows by city and id."""
        found = self.target.stored_rows(self.live).where("_deleted_at IS NOT NULL")
        rows = found.selectExpr("city", "id", "unix_millis(_deleted_at)").collect()
        assert len({(row[0], row[1]) for row in rows}) == len(rows)
        return {(row[0], row[1]): row[2] for row in rows}

    @property
    def live(self) -> int:
        live = self.view.batch.target.live()
        assert live is not None
        return live.generation

    def differing(self) -> set[int]:
        """Return the ids that `verify` names."""
        (found,) = verify(self.made.shared, self.view, 20)
        self.made.shared.records.release()
        return {each["key"][0] for each in found["comparisons"][0]["differences"]}

    def run(self, sql: str) -> None:
        """Write to the table as something else would."""
        self.view.batch.session.sql(sql.format(table=self.target.table()))


def row(number: int, n: int | None = None) -> dict[str, Any]:
    return {"id": number, "city": f"c{number % 3}", "n": number if n is None else n}


@pytest.fixture
def world(bench: Make) -> World:
    """The world with `ROWS` rows applied, and a row that was deleted before."""
    world = World(bench)
    with world.pipeline.transaction() as tx:
        for number in range(ROWS + 1):
            tx.put("t", row(number))
    with world.pipeline.transaction() as tx:
        tx.delete("t", ROWS)
    at = world.step()
    # the view has never had its other columns
    assert world.deleted() == {ROWS: (None, at)}
    return world


def test_deleted_rows_stay_with_the_time_of_their_deletion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, first = world.pipeline, world.pipeline.lsn
    with pipeline.transaction() as tx:
        tx.delete("t", 1)
    early = pipeline.lsn
    with pipeline.transaction() as tx:
        tx.put("t", row(2, 22))
        tx.change_key("t", (3,), row(103))
        tx.put("t", row(200))
        tx.delete("t", 200)
    late = world.step()
    expected: dict[int, tuple[int | None, int]] = {ROWS: (None, first), 1: (1, early), 3: (3, late), 200: (None, late)}
    assert world.deleted() == expected

    for n in (23, 22):  # the second small batch that can look rows up computes the sums of groups
        with pipeline.transaction() as tx:
            tx.put("t", row(2, n))
        world.step()

    # an insert makes a row live again; what compaction has left of a deletion has no time of the commit
    began = time.time() * 1000
    with pipeline.transaction() as tx:
        tx.put("t", row(1, 11))
        tx.put("t", row(6, 66))
        tx.compacted_delete("t", 4)
    with monkeypatch.context() as patch:
        no_scan(patch)  # the query looks up changed rows, among which are deleted ones
        world.step()
    found = world.deleted()
    assert began - 1 <= found[4][1] <= time.time() * 1000
    del expected[1]
    assert found == {**expected, 4: found[4]}

    # a deletion, an insert and a deletion within one batch
    with pipeline.transaction() as tx:
        tx.delete("t", 1)
    with pipeline.transaction() as tx:
        tx.put("t", row(1, 12))
        tx.put("t", row(3, 33))
    with pipeline.transaction() as tx:
        tx.delete("t", 1)
    again = world.step()
    expected = {ROWS: (None, first), 1: (11, again), 4: found[4], 200: (None, late)}
    assert world.deleted() == expected

    # a truncate deletes what was live; rows that came after it are live, or deleted at their own time, with the values
    # that the view had
    with pipeline.transaction() as tx:
        tx.truncate("t")
        tx.put("t", row(5, 55))
        tx.put("t", row(1, 13))
        tx.put("t", row(6))
    truncated = pipeline.lsn
    with pipeline.transaction() as tx:
        tx.delete("t", 6)
    after = world.step()
    del expected[1]
    live = {number: number for number in range(ROWS) if number not in (1, 4, 5)} | {2: 22, 3: 33, 103: 103}
    assert world.deleted() == {
        **{number: (n, truncated) for number, n in live.items()},
        6: (66, after),
        **expected,
    }
    assert world.differing() == set()


def test_a_truncate_that_nothing_follows_deletes_all_rows(world: World) -> None:
    first = world.pipeline.lsn
    with world.pipeline.transaction() as tx:
        tx.truncate("t")
    truncated = world.step()
    expected: dict[int, tuple[int | None, int]] = {number: (number, truncated) for number in range(ROWS)}
    expected[ROWS] = (None, first)
    assert world.deleted() == expected
    assert world.differing() == set()

    # nothing is live that another one could delete
    with world.pipeline.transaction() as tx:
        tx.truncate("t")
    world.step()
    assert world.deleted() == expected

    # rows that came, changed or went in the same batch before it
    with world.pipeline.transaction() as tx:
        tx.put("t", row(1, 11))
        tx.put("t", row(2, 22))
    world.step()
    with world.pipeline.transaction() as tx:
        tx.delete("t", 2)
        tx.put("t", row(200))
        tx.delete("t", 200)
    deleted = world.pipeline.lsn
    with world.pipeline.transaction() as tx:
        tx.put("t", row(1, 12))
        tx.put("t", row(3, 33))
        tx.put("t", row(201))
    world.pipeline.reshape("t", [*COLUMNS, column("more", "text")])
    with world.pipeline.transaction() as tx:
        tx.put("t", row(202))
        tx.truncate("t")
        tx.put("t", {**row(4, 44), "more": "new"})
    again = world.step()
    del expected[4]
    of_the_batch = {1: (11, again), 3: (3, again), 201: (None, again), 202: (None, again)}
    assert world.deleted() == {**expected, **of_the_batch, 2: (22, deleted), 200: (None, deleted)}
    assert world.differing() == set()

    # a generation has no row that a truncate deleted: the topic has no event of its deletion
    assert rebuild(world.made.shared, world.view).generation == 2
    world.step()
    assert world.deleted() == {}


def test_each_row_has_the_time_of_the_first_truncate_after_it(world: World) -> None:
    first, pipeline = world.pipeline.lsn, world.pipeline
    with pipeline.transaction() as tx:
        tx.put("t", row(1, 11))
        tx.delete("t", 2)
    deleted = pipeline.lsn
    at = []
    for number in range(3):
        with pipeline.transaction() as tx:
            tx.truncate("t")
            tx.put("t", row(3, 30 + number))
            if number < 2:
                for created in range(300, 310):
                    tx.put("t", row(created + 10 * number))
            tx.put("t", row(500))
            tx.delete("t", 500)
        at.append(pipeline.lsn)
    world.step()
    expected: dict[int, tuple[int | None, int]] = {number: (number, at[0]) for number in range(ROWS) if number != 3}
    expected |= {created + 10 * number: (None, at[number + 1]) for number in range(2) for created in range(300, 310)}
    expected |= {ROWS: (None, first), 1: (1, at[0]), 2: (2, deleted), 500: (None, at[2])}
    assert world.deleted() == expected
    assert world.differing() == set()


def test_a_view_may_name_the_key_in_another_order_and_the_table_may_get_another(bench: Make) -> None:
    world = World(bench, key=("city", "id"))
    with world.pipeline.transaction() as tx:
        tx.put("t", row(1))
    part, view = world.open(key=["id"])
    with pytest.raises(ConfigError, match="TR-509"):
        step(part, view)
    assert view.batch.target.live() is None

    world.made, view = world.open(key=["id", "city"])
    with world.pipeline.transaction() as tx:
        for city in ("c0", "c1"):
            for number in (1, 2):
                tx.put("t", {**row(number), "city": city})
    world.step()
    with world.pipeline.transaction() as tx:
        tx.delete("t", "c0", 1)
        tx.delete("t", "c1", 2)
    at = world.step()
    assert world.pairs() == {("c0", 1): at, ("c1", 2): at}
    assert world.differing() == set()
    with world.pipeline.transaction() as tx:
        tx.put("t", {**row(1), "city": "c0"})
        tx.truncate("t")
        tx.put("t", {**row(2), "city": "c1"})
    truncated = world.step()
    assert world.pairs() == {("c0", 1): truncated, ("c0", 2): truncated, ("c1", 1): truncated}

    # by now several rows have one new key, so the earlier ones are not retained
    world.pipeline.tables["t"].key = ("id",)
    world.pipeline.reshape("t", COLUMNS)
    plain, view = world.open(key=None)
    world.made = plain
    with world.pipeline.transaction() as tx:
        tx.truncate("t")
        for number in (1, 2):
            tx.put("t", row(number))
    world.step()
    assert world.pairs() == {}
    with world.pipeline.transaction() as tx:
        tx.delete("t", 1)
    at = world.step()
    assert world.pairs() == {("c1", 1): at}
    assert world.differing() == set()


def test_rows_of_the_old_key_are_applied_by_it(world: World) -> None:
    """A job reads the newest schemas, which may be ahead of the records of its batch."""
    table = world.pipeline.tables["t"]
    with world.pipeline.transaction() as tx:
        tx.put("t", {**row(1), "city": "moved"})
    old, table.key = table.key, ("city", "id")
    world.pipeline.reshape("t", COLUMNS)
    table.key, new = old, table.key
    world.made.shared.records.forget_shapes()
    world.step()
    table.key = new
    with world.pipeline.transaction() as tx:
        tx.truncate("t")
        for number in range(3):
            tx.put("t", row(number))
    world.step()
    assert world.deleted() == {}
    assert world.differing() == set()


def test_partitions_hold_deleted_rows_too(bench: Make) -> None:
    world = World(bench, partition_by=["city", "days(_deleted_at)"], sort_by=["n"])
    with world.pipeline.transaction() as tx:
        for number in range(ROWS):
            tx.put("t", row(number))
    world.step()
    with world.pipeline.transaction() as tx:
        tx.delete("t", 1)
        tx.put("t", {**row(2), "city": "moved"})
        tx.put("t", row(200))
        tx.delete("t", 200)
    at = world.step()
    assert world.deleted() == {1: (1, at), 200: (None, at)}
    partitions = f"SELECT partition.city, partition._deleted_at_day IS NULL FROM {world.target.table()}.partitions"
    found = {tuple(each) for each in world.view.batch.session.sql(partitions).collect()}
    assert found >= {("c1", False), (None, False), ("moved", True), ("c1", True)}

    # a row comes back to life in another partition
    with world.pipeline.transaction() as tx:
        tx.put("t", {**row(1), "city": "back"})
        tx.put("t", row(200))
        tx.delete("t", 2)
    later = world.step()
    assert world.deleted() == {2: (2, later)}
    assert world.differing() == set()

    world.run("UPDATE {table} SET _deleted_at = NULL WHERE id = 2")
    world.run("UPDATE {table} SET city = 'elsewhere' WHERE id = 3")
    assert world.differing() == {2, 3}
    assert [each.keys for each in mend(world.made.shared, world.view)] == [2]
    world.check()
    # a whole write also empties a partition that has only the surplus row
    world.run("INSERT INTO {table} SELECT id, 'surplus', n, _deleted_at FROM {table} WHERE id = 4")
    assert [each.replaced for each in mend(world.made.shared, world.view)] == [True]
    world.check()
    assert world.deleted() == {2: (2, later)}
    assert world.differing() == set()

    with world.pipeline.transaction() as tx:
        tx.truncate("t")
        tx.put("t", {**row(5), "city": "new"})
    truncated = world.step()
    found_rows = world.deleted()
    assert found_rows.pop(2) == (2, later)
    assert found_rows == {number: (number, truncated) for number in {*range(ROWS), 200} - {2, 5}}


def test_verify_and_repair_compare_the_live_rows(world: World) -> None:
    with world.pipeline.transaction() as tx:
        for number in (1, 2, 3):
            tx.delete("t", number)
    at = world.step()
    assert world.differing() == set()
    assert mend(world.made.shared, world.view) == []

    world.run("UPDATE {table} SET _deleted_at = NULL WHERE id = 1")
    world.run("UPDATE {table} SET n = -1 WHERE id = 2")  # of a deleted row, nothing can be compared
    world.run("UPDATE {table} SET _deleted_at = current_timestamp() WHERE id = 7")
    world.run("UPDATE {table} SET n = -1 WHERE id = 8")
    world.run("DELETE FROM {table} WHERE id = 9")
    assert world.differing() == {1, 7, 8, 9}
    assert [each.keys for each in mend(world.made.shared, world.view)] == [4]
    assert world.differing() == set()
    world.check()
    expected = {ROWS: (None, at - 10), 1: (1, at), 2: (-1, at), 3: (3, at)}
    assert world.deleted() == expected

    # a row that is there twice is repaired by a write of the whole table
    world.run("INSERT INTO {table} SELECT * FROM {table} WHERE id = 8")
    assert [each.replaced for each in mend(world.made.shared, world.view)] == [True]
    assert world.differing() == set()
    assert world.deleted() == expected


def test_a_generation_has_the_deletions_that_are_on_the_topic(world: World) -> None:
    first = world.pipeline.lsn
    with world.pipeline.transaction() as tx:
        tx.delete("t", 1)
    at = world.step()
    world.run("DELETE FROM {table} WHERE id = 2")
    staged = rebuild(world.made.shared, world.view, swap=False)
    found = compare(world.made.shared, world.view, 20)
    assert (found.counts.only_staged, found.counts.total, found.only_live_columns) == (1, 1, ())
    assert swap(world.made.shared, world.view).generation == staged.generation == 2
    world.step()
    assert world.deleted() == {ROWS: (None, first), 1: (None, at)}
    rollback(world.made.shared, world.view)
    assert world.deleted() == {ROWS: (None, first), 1: (1, at)}
    assert world.differing() == {2}

    # other deletes are another layout
    with world.pipeline.transaction() as tx:
        tx.delete("t", 5)
    hard, view = world.open(deletes="hard")
    with pytest.raises(RebuildError, match="TR-537"):
        step(hard, view)
    assert rebuild(hard.shared, view).generation == 2
    assert hard.agrees(world.soft, "t") == ROWS - 2
    target = view.batch.target
    assert isinstance(target, IcebergTarget)
    assert target.stored_rows(2).columns == ["id", "city", "n"]
    soft, view = world.open()
    with pytest.raises(RebuildError, match="TR-537"):
        step(soft, view)
    assert rebuild(soft.shared, view).generation == 3
    world.made = soft
    world.step()
    assert world.deleted().keys() == {ROWS, 1, 5}


def test_a_table_with_a_column_of_that_name_is_refused(bench: Make) -> None:
    name = f"taken_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.t", deletes="soft")})
    made.pipeline.table("t", [*COLUMNS, column("_deleted_at", "timestamptz")], ("id",))
    with made.pipeline.transaction() as tx:
        tx.put("t", {**row(1), "_deleted_at": None})
    with pytest.raises(ConfigError, match="TR-538"):
        step(made, made.kept(name))
