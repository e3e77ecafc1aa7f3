"""Queries that name the commit LSN and time of their tables' rows, beside queries that do not."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import RebuildError
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.spark_jobs.jobs.mend import mend
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.jobs.verify import verify
from tailrace.spark_jobs.maintain.base_tables import base_name
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tailrace.spark_jobs.topics import records
from tests.spark.conftest import Bench, no_scan, step
from tests.spark.pipeline import column

Make = Callable[..., Bench]

COLUMNS = [column("id", "int4"), column("city", "text"), column("n", "int4")]


class World:
    """A table, two queries that read its commit columns, one that does not, and the commit LSN of each row."""

    def __init__(self, bench: Make) -> None:
        suffix = uuid.uuid4().hex[:8]
        self.rows, self.groups, self.plain = (f"{name}_{suffix}" for name in ("rows", "groups", "plain"))
        by_city = "SELECT city, max(t._commit_lsn) AS lsn, min(_committed_at) AS since FROM public.t GROUP BY city"
        views = {
            self.rows: View(
                query="SELECT * FROM (SELECT *, _commit_lsn AS lsn, _committed_at AS at FROM public.t) s",
                key=["id"],
            ),
            self.groups: View(query=by_city.replace("public.t", "public.t t"), key=["city"]),
            self.plain: View(query="SELECT * FROM (SELECT * FROM public.t) AS all_of_it", key=["id"]),
        }
        self.made = bench(views)
        self.pipeline = self.made.pipeline
        self.pipeline.table("t", COLUMNS, ("id",))
        self.lsns: dict[int, int] = {}

    def put(self, *rows: dict[str, Any]) -> None:
        with self.pipeline.transaction() as tx:
            for each in rows:
                tx.put("t", each)
                self.lsns[each["id"]] = self.pipeline.lsn

    def delete(self, *ids: int) -> None:
        with self.pipeline.transaction() as tx:
            for each in ids:
                tx.delete("t", each)
                del self.lsns[each]

    def step(self) -> None:
        step(self.made, *map(self.made.kept, (self.rows, self.groups, self.plain)))
        self.check()

    def check(self) -> None:
        model = [row for (_,), row in sorted(self.pipeline.tables["t"].rows.items())]
        commits = {number: {"lsn": lsn, "at": lsn * 1000} for number, lsn in self.lsns.items()}
        assert self.found(self.rows, "id") == [{**row, **commits[row["id"]]} for row in model]
        assert self.found(self.plain, "id") == model
        by_city: dict[str, list[int]] = {}
        for row in model:
            by_city.setdefault(row["city"], []).append(self.lsns[row["id"]])
        expected = [{"city": city, "lsn": max(all_), "since": min(all_) * 1000} for city, all_ in by_city.items()]
        assert self.found(self.groups, "city") == sorted(expected, key=lambda row: str(row["city"]))

    def found(self, view: str, key: str) -> list[dict[str, Any]]:
        return sorted(self.made.rows(view), key=lambda row: row[key])

    def base(self, *, commits: bool) -> IcebergTarget:
        topic = self.pipeline.tables["t"].topic
        target = self.made.shared.bases[base_name(topic, commits=commits)].batch.target
        assert isinstance(target, IcebergTarget)
        return target

    def differing(self, view: str) -> list[set[Any]]:
        """Return the keys that differ in the base table and in the view."""
        found = list(verify(self.made.shared, self.made.kept(view), 20))
        self.made.shared.records.release()
        return [{each["key"][0] for each in one["comparisons"][0]["differences"]} for one in found]


def row(number: int, n: int = 0) -> dict[str, Any]:
    return {"id": number, "city": f"c{number % 3}", "n": n}


def test_a_query_has_the_commits_of_rows(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(bench)
    world.put(*map(row, range(9)))
    world.put(row(9), row(4))
    world.step()
    assert set(world.base(commits=True).columns()) == {"id", "city", "n", "_commit_lsn", "_committed_at"}
    assert set(world.base(commits=False).columns()) == {"id", "city", "n"}

    for values in (1, 2):
        with monkeypatch.context() as patch:
            no_scan(patch)
            world.put(row(1, values), row(30))
            world.put(row(2))  # the same values: only the commit changes
            world.delete(3 * values)
            world.step()
    with world.pipeline.transaction() as tx:
        tx.truncate("t")
    world.lsns.clear()
    world.put(row(5), row(6))
    world.put(row(7, 7))
    world.step()
    assert world.differing(world.rows) == world.differing(world.plain) == [set(), set()]
    with monkeypatch.context() as patch:
        patch.setattr(records, "MANY_RECORDS", 2)
        assert world.differing(world.rows) == [set(), set()]

    # a wrong commit is a difference, and a rebuild finds the same ones
    world.made.shared.session.sql(f"UPDATE {world.base(commits=True).table()} SET _commit_lsn = 1 WHERE id = 5")
    assert world.differing(world.rows) == [{5}, {5}]
    assert world.differing(world.plain) == [set(), set()]
    assert [each.table for each in mend(world.made.shared, world.made.kept(world.rows))] == ["public.t"]
    assert world.differing(world.rows) == [set(), set()]
    rebuild(world.made.shared, world.made.kept(world.groups))
    world.check()
    check_a_view_that_begins_to_name_them(world)


def check_a_view_that_begins_to_name_them(world: World) -> None:
    """Another query needs a rebuild, and the base tables that are there go on as they are."""
    view = View(query="SELECT id, _commit_lsn AS lsn FROM public.t", key=["id"])
    config = world.made.config.model_copy(update={"views": {**world.made.config.views, world.plain: view}})
    other = replace(world.made, config=config, shared=replace(world.made.shared, config=config, views={}, bases={}))
    world.put(row(8))
    kept: KeptView = other.kept(world.plain)
    with pytest.raises(RebuildError, match="TR-548"):
        step(other, kept)
    rebuild(other.shared, kept)
    found = {each["id"]: each["lsn"] for each in other.rows(world.plain)}
    assert found == world.lsns
