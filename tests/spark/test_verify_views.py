"""Views of queries, histories and logs are compared with their content, recomputed from the topics."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import ConfigError, RebuildError, StateError
from tailrace.schemas.verify_scope import WHOLE, Scope
from tailrace.sinks.control.views_topic import ViewsTopic
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.kafka.groups import Groups
from tailrace.sinks.opensearch.bulk import connect
from tailrace.spark_jobs.jobs.follow import follow
from tailrace.spark_jobs.jobs.mend import mend
from tailrace.spark_jobs.jobs.repair import repair
from tailrace.spark_jobs.jobs.verify import verify
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.table_batch import TableBatch
from tailrace.spark_jobs.topics.cuts import Cuts
from tests.spark.conftest import Bench, newest, step
from tests.spark.pipeline import column
from tests.spark.shop import Shop

Make = Callable[..., Bench]


def found(bench: Bench, view: KeptView) -> dict[str | None, dict[str, Any]]:
    """Return the comparison of each base table of a view, by table, and that of the view itself under None."""
    return {each["table"]: each for each in verify(bench.shared, view, 20)}


def differing(results: dict[str | None, dict[str, Any]]) -> dict[str | None, int]:
    counts = {table: result["comparisons"][0]["differing"] for table, result in results.items()}
    assert [result["equal"] for result in results.values()] == [not count for count in counts.values()]
    return counts


def repaired(bench: Bench, *views: KeptView) -> tuple[list[tuple[str, str | None, int]], dict[str, bool]]:
    """Repair views; return view, table and keys of each repair, and whether each compared view is equal now."""
    done: list[tuple[str, str | None, int]] = []
    equal: dict[str, bool] = {}

    def say(what: dict[str, Any]) -> None:
        if "repaired" in what:
            each = what["repaired"]
            done.append((each["view"], each["table"], each["keys"]))
        else:
            equal[what["view"]] = equal.get(what["view"], True) and what["equal"]

    repair(bench.shared, [view.declared.name for view in views], 20, say)
    return done, equal


def table_of(view: KeptView) -> str:
    target = view.batch.target
    assert isinstance(target, IcebergTarget)
    return target.table()


def test_a_spoiled_row_of_a_query_view_or_of_its_base_table_is_named(bench: Make, spark: SparkSession) -> None:
    shop = Shop(bench, ["group", "left"], seed=3)
    for _ in range(3):
        shop.commit(shop.model.fill())
        shop.step()
    # changes that only the topics have are no differences
    shop.commit(shop.model.change(9))
    group, left = shop.views["group"], shop.views["left"]
    results = found(shop.bench, left)
    assert differing(results) == {"public.orders": 0, "public.customer": 0, None: 0}
    rows = [result["comparisons"][0]["right_rows"] for result in results.values()]
    assert min(rows) > 0
    assert differing(found(shop.bench, group))[None] == 0

    row = spark.table(table_of(left)).first()
    assert row is not None
    spark.sql(f"UPDATE {table_of(left)} SET country = 'spoiled' WHERE id = {row.id}")
    results = found(shop.bench, left)
    assert differing(results) == {"public.orders": 0, "public.customer": 0, None: 1}
    (difference,) = results[None]["comparisons"][0]["differences"]
    place = results[None]["columns"].index("country")
    assert (difference["key"], difference["left"][place], difference["right"][place]) == (
        [row.id],
        row.country,
        "spoiled",
    )

    # a lost row of a base table: the query over it would agree with a view that has lost it, too
    base = left.batch.inputs.base(left.declared.topic_of["public.orders"]).batch.target.table()  # type: ignore[attr-defined]
    spark.sql(f"DELETE FROM {base} WHERE id = {row.id}")
    counts = differing(found(shop.bench, left))
    assert counts["public.orders"] == 1
    assert counts["public.customer"] == 0

    # repaired at the newest cut, which has the changes that only the topics had
    done, equal = repaired(shop.bench, left)
    assert [each for each in done if each[0] == left.declared.name] == [
        (left.declared.name, "public.orders", 1),
        (left.declared.name, None, 1),
    ]
    # `group` reads the same base table
    assert equal == {left.declared.name: True, group.declared.name: True}
    assert_right_from_now_on(shop, group, left)


def assert_right_from_now_on(shop: Shop, *views: KeptView) -> None:
    """Assert that a second repair finds nothing, and that the next batches continue from the repaired rows."""
    for view in views:
        before = view.batch.target.live()
        assert mend(shop.bench.shared, view) == []
        assert view.batch.target.live() == before
    for _ in range(2):
        shop.commit(shop.model.change(9))
        shop.step()
    for view in views:
        assert set(differing(found(shop.bench, view)).values()) == {0}


def test_a_spoiled_document_of_a_query_is_named(bench: Make, search_url: str) -> None:
    shop = Shop(bench, ["document@search"], search_url, seed=5)
    (view,) = shop.views.values()
    for _ in range(3):
        shop.commit(shop.model.fill())
        shop.step()
    results = found(shop.bench, view)
    assert set(differing(results).values()) == {0}
    (result,) = (each["comparisons"][0] for table, each in results.items() if table is None)
    assert result["left_rows"] == result["right_rows"] > 3
    assert shop.bench.config.search is not None
    index = f"{shop.bench.config.search.index_prefix}{view.declared.name}"
    with connect(shop.bench.config.search) as client:
        hits = client.search(index=index, body={"size": 1000})["hits"]["hits"]
        hit = next(
            each for each in hits if any(isinstance(value, list) and value for value in each["_source"].values())
        )
        items = next(name for name, value in hit["_source"].items() if isinstance(value, list))
        changed = {items: hit["_source"][items][1:]}
        client.update(index=index, id=hit["_id"], body={"doc": changed}, params={"refresh": "true"})
        other = next(each["_id"] for each in hits if each["_id"] != hit["_id"])
        client.delete(index=index, id=other, params={"refresh": "true"})
    result = found(shop.bench, view)[None]
    assert result["comparisons"][0]["differing"] == 2
    differences = {each["key"][0]: each for each in result["comparisons"][0]["differences"]}
    assert differences.keys() == {hit["_id"], other}
    assert differences[other]["right"] is None
    place = result["columns"].index(items)
    assert differences[hit["_id"]]["left"][place] == hit["_source"][items]
    assert differences[hit["_id"]]["right"][place] == changed[items]
    name = view.declared.name
    assert repaired(shop.bench, view) == ([(name, None, 2)], {name: True})
    assert_right_from_now_on(shop, view)
    assert_newer_versions_are_reported(shop, view, index)


def assert_newer_versions_are_reported(shop: Shop, view: KeptView, index: str) -> None:
    """A document of a version that the next batch could not replace is repaired, but it would not be maintained."""
    assert shop.bench.config.search is not None
    with connect(shop.bench.config.search) as client:
        hit = client.search(index=index, body={"size": 1})["hits"]["hits"][0]
        newer = {"version": 1 << 50, "version_type": "external", "refresh": "true"}
        client.index(index=index, id=hit["_id"], body={**hit["_source"], "country": "spoiled"}, params=newer)
        with pytest.raises(RebuildError, match="TR-705"):
            mend(shop.bench.shared, view)
        assert client.get(index=index, id=hit["_id"])["_source"] == hit["_source"]


def test_a_view_over_a_view_is_compared_over_the_view_below(bench: Make, spark: SparkSession) -> None:
    below, above = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ("below", "above"))
    made = bench(
        {
            below: View(query="SELECT n, count(*) AS many FROM public.t GROUP BY n", key=["n"]),
            above: View(query=f"SELECT many, count(*) AS times FROM {below} GROUP BY many", key=["many"]),
        }
    )
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    put(made, range(30))
    views = {name: made.kept(name) for name in (above, below)}
    step(made, views[above])
    put(made, range(5))
    assert differing(found(made, views[above])) == {None: 0}
    spark.sql(f"UPDATE {table_of(views[above])} SET times = times + 1")
    assert differing(found(made, views[above])) == {None: 1}
    assert differing(found(made, views[below])) == {"public.t": 0, None: 0}
    # a wrong row of the view below is one of the view above, too: both are repaired, the lower one first
    step(made, views[above])
    spark.sql(f"UPDATE {table_of(views[below])} SET many = 77 WHERE n = 1")
    done, equal = repaired(made, views[below])
    assert done == [(below, None, 1), (above, None, 1)]
    assert equal == {below: True, above: True}
    put(made, range(8), 1)
    step(made, views[above])
    for view in views.values():
        assert set(differing(found(made, view)).values()) == {0}


def put(made: Bench, ids: range, more: int = 0) -> None:
    with made.pipeline.transaction() as tx:
        for number in ids:
            tx.put("t", {"id": number, "n": number % 3 + more})


@pytest.mark.parametrize("shape", ["history", "log"])
def test_a_spoiled_version_or_change_is_named(bench: Make, spark: SparkSession, shape: Any) -> None:
    name = f"{shape}_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.t", shape=shape)})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    view = made.kept(name)
    for number, ids in enumerate((range(10), range(5), range(3))):
        put(made, ids, number * 10)
        step(made, view)
    put(made, range(9), 30)
    results = found(made, view)
    assert differing(results) == {None: 0}
    rows = results[None]["comparisons"][0]["right_rows"]
    assert rows == 18
    spark.sql(f"UPDATE {table_of(view)} SET n = 99 WHERE id = 2 AND n = 12")
    assert differing(found(made, view)) == {None: 1}
    spark.sql(f"DELETE FROM {table_of(view)} WHERE id = 4 AND n = 1")
    result = found(made, view)[None]["comparisons"][0]
    assert result["right_rows"] == rows - 1
    assert any(each["right"] is None for each in result["differences"])
    assert [each.keys for each in mend(made.shared, view)] == [2]
    assert differing(found(made, view)) == {None: 0}
    assert mend(made.shared, view) == []
    spark.sql(f"INSERT INTO {table_of(view)} SELECT * FROM {table_of(view)} WHERE id = 2")
    assert [each.replaced for each in mend(made.shared, view)] == [True]
    put(made, range(3), 40)
    step(made, view)
    assert differing(found(made, view)) == {None: 0}


def test_a_spoiled_row_of_a_view_of_one_table_is_repaired(bench: Make, spark: SparkSession) -> None:
    name = f"rows_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.t")})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    view = made.kept(name)
    put(made, range(10))
    step(made, view)
    put(made, range(2), 10)
    table = table_of(view)
    spark.sql(f"UPDATE {table} SET n = 99 WHERE id = 5")
    spark.sql(f"DELETE FROM {table} WHERE id = 6")
    spark.sql(f"INSERT INTO {table} VALUES (77, 7)")
    (done,) = mend(made.shared, view)
    assert (done.view, done.table, done.keys, done.replaced) == (name, None, 3, False)
    assert made.agrees(name, "t") == 10
    applied = view.batch.target.live()
    assert mend(made.shared, view) == []
    assert view.batch.target.live() == applied
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 5")
    assert mend(made.shared, view)[0].replaced
    put(made, range(4), 20)
    step(made, view)
    assert made.agrees(name, "t") == 10


def test_nothing_is_written_if_compaction_may_have_removed_records(
    bench: Make, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"rows_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.t")})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    view = made.kept(name)
    put(made, range(10))
    step(made, view)
    spark.sql(f"UPDATE {table_of(view)} SET n = 99 WHERE id = 5")
    kafka = made.config.kafka.model_copy(update={"min_compaction_lag_ms": 1})
    impatient = replace(made.shared, config=made.config.model_copy(update={"kafka": kafka}))
    whole = TableBatch.whole

    def overtaken(*arguments: Any) -> Any:
        """Compute the content while the source goes on."""
        put(made, range(2), 10)
        return whole(*arguments)

    with monkeypatch.context() as slow:
        slow.setattr(TableBatch, "whole", overtaken)
        with pytest.raises(StateError, match="TR-704"):
            mend(impatient, view)
    assert spark.table(table_of(view)).where("n = 99").count() == 1
    assert [each.keys for each in mend(made.shared, view)] == [1]
    assert made.agrees(name, "t") == 10


def in_scope(made: Bench, view: KeptView, scope: Scope) -> dict[str | None, set[Any]]:
    """Return the keys that differ in a scope, by table."""
    results = list(verify(made.shared, view, 20, scope))
    assert all(each["scope"] == scope.to_dict() for each in results)
    return {
        each["table"]: {difference["key"][0] for difference in each["comparisons"][0]["differences"]}
        for each in results
    }


def test_recent_keys_or_a_sample_of_them_are_compared(bench: Make, spark: SparkSession, search_url: str) -> None:
    """Rows 1 (recent) and 7 (not) are spoiled in views of one table, a base table, a search index, a history."""
    suffix = uuid.uuid4().hex[:8]
    made = bench(
        {
            f"rows_{suffix}": View(table="public.t"),
            f"documents_{suffix}": View(table="public.t", target="search"),
            f"history_{suffix}": View(table="public.t", shape="history"),
            f"counts_{suffix}": View(query="SELECT n, count(*) AS many FROM public.t GROUP BY n", key=["n"]),
            f"above_{suffix}": View(query=f"SELECT n FROM counts_{suffix} WHERE many > 1", key=["n"]),
        },
        search_url,
    )
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    put(made, range(10))
    assert made.pipeline.cut is not None
    since = Scope(since=made.pipeline.cut.flushed_lsn)
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "n": 5})
        tx.delete("t", 9)
    rows, documents, history, counts, above = views = [made.kept(name) for name in made.config.views]
    step(made, *views)
    for view in (rows, history):
        assert in_scope(made, view, since) == {None: set()}
    assert in_scope(made, counts, Scope(sample=0.5)) == {"public.t": set(), None: set()}

    base = counts.batch.inputs.base(counts.declared.topic_of["public.t"])  # type: ignore[attr-defined]
    for view in (rows, base, history):
        spark.sql(f"UPDATE {table_of(view)} SET n = 99 WHERE id IN (1, 7)")
    # a deleted row that is there again
    spark.sql(f"INSERT INTO {table_of(rows)} VALUES (9, 0)")
    assert made.config.search is not None
    with connect(made.config.search) as client:
        index = f"{made.config.search.index_prefix}{documents.declared.name}"
        for number in "17":
            client.update(index=index, id=f"[{number}]", body={"doc": {"n": 99}}, params={"refresh": "true"})
    assert in_scope(made, rows, WHOLE) == {None: {1, 7, 9}}
    assert in_scope(made, rows, since) == {None: {1, 9}}
    assert in_scope(made, rows, Scope(since=made.pipeline.lsn)) == {None: set()}
    assert in_scope(made, documents, since) == {None: {"[1]"}}
    assert in_scope(made, history, since) == {None: {1}}
    # the rows of the query are not compared
    assert in_scope(made, counts, since) == {"public.t": {1}}
    with pytest.raises(ConfigError, match="TR-109"):
        in_scope(made, above, since)
    assert_sampled(spark, lambda part: in_scope(made, rows, part)[None])
    assert_sampled(spark, lambda part: in_scope(made, counts, part)["public.t"])

    # after a truncate, all rows are newer
    with made.pipeline.transaction() as tx:
        tx.truncate("t")
        tx.put("t", {"id": 3, "n": 3})
    step(made, rows)
    spark.sql(f"INSERT INTO {table_of(rows)} VALUES (7, 0)")
    assert in_scope(made, rows, since) == {None: {7}}


def assert_sampled(spark: SparkSession, sampled: Callable[[Scope], set[Any]]) -> None:
    """Assert that of the wrong keys 1 and 7, a sample between their hashes has exactly one."""
    hashed = "SELECT pmod(xxhash64(id), 1000000) AS place, id FROM VALUES (1), (7) AS t(id) ORDER BY place"
    (low, inside), (high, _) = spark.sql(hashed).collect()
    assert sampled(Scope(sample=(low + high) / 2_000_000)) & {1, 7} == {inside}


def test_a_spoiled_row_of_a_staged_generation_is_named(bench: Make, spark: SparkSession) -> None:
    suffix = uuid.uuid4().hex[:8]
    rows, counts = f"rows_{suffix}", f"counts_{suffix}"
    query = "SELECT n, count(*) AS many FROM public.t GROUP BY n"
    made = bench({rows: View(table="public.t"), counts: View(query=query, key=["n"])})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    put(made, range(9))
    views = [made.kept(name) for name in (rows, counts)]
    step(made, *views)
    staged = Scope(staged=True)
    for view in views:
        with pytest.raises(StateError, match="TR-571"):
            list(verify(made.shared, view, 20, staged))
        columns, key = view.batch.layout()
        number = view.batch.target.stage(columns, key)
        view.batch.advance(None, newest(made), Report(), generation=number)
    # the live generation advances, the staged one stays at its cut
    put(made, range(4), 1)
    step(made, *views)
    for view, column_name in zip(views, ("n", "many"), strict=True):
        results = list(verify(made.shared, view, 20, staged))
        assert {(each["equal"], each["generation"]) for each in results} == {(True, 2)}
        target = view.batch.target
        assert isinstance(target, IcebergTarget)
        spark.sql(f"UPDATE {target.reached(2)} SET {column_name} = 99 WHERE n = 0")
        spoiled = {each["table"]: each for each in verify(made.shared, view, 20, staged)}[None]
        assert spoiled["comparisons"][0]["differing"] == (3 if view is views[0] else 1)
        assert spoiled["scope"]["staged"]
        assert set(differing(found(made, view)).values()) == {0}, "the live one is right"


def test_rows_are_repaired_while_the_views_are_maintained(bench: Make, spark: SparkSession, search_url: str) -> None:
    """A row, a joined row, a document and a version are spoiled and repaired, under load and with `follow`."""
    suffix = uuid.uuid4().hex[:8]
    joined = View(query="SELECT t.id, t.n, u.label FROM public.t JOIN public.u ON t.n = u.id", key=["id"])
    made = bench(
        {
            f"rows_{suffix}": View(table="public.t"),
            f"joined_{suffix}": joined,
            f"documents_{suffix}": joined.model_copy(update={"target": "search"}),
            f"history_{suffix}": View(table="public.t", shape="history"),
        },
        search_url,
    )
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    made.pipeline.table("u", [column("id", "int8"), column("label", "text")], ("id",))
    with made.pipeline.transaction() as tx:
        for number in range(5):
            tx.put("u", {"id": number, "label": f"label {number}"})
            tx.put("t", {"id": number, "n": number})
    rows, join, documents, history = views = [made.kept(name) for name in made.config.views]
    step(made, *views)
    with maintained(made, spark):
        spoiled = [spoil(spark, view, column) for view, column in ((rows, "n"), (join, "label"), (history, "n"))]
        assert spoiled == [1, 1, 1]
        assert made.config.search is not None
        with connect(made.config.search) as client:
            index = f"{made.config.search.index_prefix}{documents.declared.name}"
            client.update(index=index, id="[3]", body={"doc": {"label": "spoiled"}}, params={"refresh": "true"})
        done, equal = repaired(made, *views)
        assert done == [(view.declared.name, None, 1) for view in views]
        assert equal == {view.declared.name: True for view in views[1:]}
        assert mend(made.shared, rows) == []
    step(made, *views)
    for view in views:
        assert mend(made.shared, view) == []
    assert made.agrees(rows.declared.name, "t") > 5


def spoil(spark: SparkSession, view: KeptView, column: str) -> int:
    """Change a row that the load does not touch; return how many rows have the wrong value then."""
    with view.lease.held(60) as mine:
        assert mine
        wrong = "-1" if column == "n" else "'spoiled'"
        spark.sql(f"UPDATE {table_of(view)} SET {column} = {wrong} WHERE id = 3")
        return spark.table(table_of(view)).where(f"{column} = {wrong}").count()


@contextmanager
def maintained(bench: Bench, spark: SparkSession) -> Iterator[None]:
    """Maintain all views of a bench for the block, as another job, while rows from 100 on change all the time."""
    stop, config = threading.Event(), bench.config

    def load() -> None:
        number = 0
        while not stop.wait(1):
            number += 1
            with bench.pipeline.transaction() as tx:
                tx.put("t", {"id": 100 + number % 20, "n": number // 3 % 5})

    with closing(Cuts(config)) as cuts, ThreadPoolExecutor(2) as pool:
        # the records, which number their names in the one Spark session, are those of the bench
        topic, records = ViewsTopic(config.kafka, bench.pipeline.topics), bench.shared.records
        shared = Shared(config, spark, records, cuts, topic, Groups(config.kafka))
        views = [open_view(shared, name) for name in config.views]
        running = [pool.submit(load), pool.submit(follow, shared, views, stop, None)]
        try:
            yield
        finally:
            stop.set()
            for each in running:
                each.result()
            shared.known.close()
            shared.groups.close()
        assert [view.error for view in views] == [None] * len(views)
