"""Continuous verification beside the batches of `follow`: its results, its failures and its end."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.cdc.cli.status_page import view_lines
from tailrace.cdc.operations.read_status import read_status
from tailrace.schemas.config.model import Search, Verify, View
from tailrace.sinks.control.views_topic import Verified, ViewsTopic, read_views
from tailrace.sinks.kafka.groups import Groups
from tailrace.sinks.opensearch.bulk import connect
from tailrace.sinks.target.lease import view_lease
from tailrace.spark_jobs.health.health import JobHealth
from tailrace.spark_jobs.health.metrics import metrics_of
from tailrace.spark_jobs.jobs import verifying
from tailrace.spark_jobs.jobs.follow import follow, known
from tailrace.spark_jobs.jobs.mend import mend
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared, not_free
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.topics.cuts import Cuts
from tailrace.spark_jobs.topics.records import Records
from tests.spark.conftest import Bench
from tests.spark.pipeline import column
from tests.spark.test_verify_views import spoil

Make = Callable[..., Bench]


@contextmanager
def followed(bench: Bench, spark: SparkSession) -> Iterator[tuple[JobHealth, threading.Event]]:
    """Run the loop of `follow`, as another process, until the event is set or the block ends."""
    stop, health, config = threading.Event(), JobHealth(), bench.config
    with closing(Cuts(config)) as cuts, ThreadPoolExecutor(1) as pool:
        topic = ViewsTopic(config.kafka, bench.pipeline.topics)
        shared = Shared(config, spark, Records(spark, config.kafka), cuts, topic, Groups(config.kafka))
        views = [open_view(shared, name) for name in config.views]
        health.begin(known(shared, views, health))
        running = pool.submit(follow, shared, views, stop, None, health)
        try:
            yield health, stop
        finally:
            stop.set()
            running.result()
            shared.known.close()
            shared.groups.close()
        assert [view.error for view in views] == [None] * len(views), "no view may be parked"


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not reached():
        assert time.monotonic() < deadline, "not reached"
        time.sleep(0.1)


def put(made: Bench, *ids: int, n: int = 0) -> int:
    """Commit rows; return the LSN of the cut."""
    with made.pipeline.transaction() as tx:
        for number in ids:
            tx.put("t", {"id": number, "n": n})
    assert made.pipeline.cut is not None
    return made.pipeline.cut.flushed_lsn


def sampled(health: JobHealth, name: str, view: str) -> float | None:
    found = [line for line in metrics_of(health).text().decode().splitlines() if f'{name}{{view="{view}"' in line]
    return float(found[0].split()[-1]) if found else None


def keys(health: JobHealth, view: str) -> int | None:
    found = health.views[view].verified
    return None if found is None else found.keys


def on_topic(made: Bench, view: str) -> Verified:
    found = read_views(made.config.kafka, made.pipeline.topics)[view].verified
    return found or Verified(0, 0, 0, -1)


def table_of(view: KeptView) -> str:
    target: Any = view.batch.target
    return str(target.table())


def is_running(spark: SparkSession) -> bool:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("verify")]
    return any(job is not None and job.status == "RUNNING" for job in jobs)


def assert_shown(made: Bench, health: JobHealth, view: str) -> None:
    """Assert that a key that differs is in metrics, on the topic and in the status."""
    assert sampled(health, "tailrace_verify_differences", view) == 1
    assert on_topic(made, view).keys == 1
    status = next(each for each in read_status(made.config).views if each.name == view)
    assert status.needs_a_person
    assert "1 key DIFFERS (verified " in "\n".join(view_lines([status]))


def test_differences_are_found_while_batches_continue(
    bench: Make, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, counts = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ("rows", "counts"))
    query = View(query="SELECT n, count(*) AS many FROM public.t GROUP BY n", key=["n"])
    made = bench({rows: View(table="public.t"), counts: query})
    made.config = made.config.model_copy(update={"verify": Verify(every_s=0.5, share=1.0)})
    made.shared = replace(made.shared, config=made.config)
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    put(made, *range(6), n=7)
    mine = made.kept(counts)
    with followed(made, spark) as (health, stop):
        until(lambda: keys(health, rows) == 0 and keys(health, counts) == 0)
        at = sampled(health, "tailrace_verified_timestamp_seconds", rows)
        assert at is not None
        assert abs(time.time() - at) < 600
        assert sampled(health, "tailrace_verify_differences", rows) == 0

        lsn = put(made, 3, n=3)
        until(lambda: on_topic(made, counts).lsn >= lsn)
        with mine.lease.held(60) as held:
            assert held
            spark.sql(f"UPDATE {table_of(mine)} SET many = 4711 WHERE n = 3")
        until(lambda: keys(health, counts) == 1)
        assert_shown(made, health, counts)
        assert keys(health, rows) == 0
        # batches continue, and carry the result
        lsn = put(made, 50, n=50)
        reached = list(health.views.values())
        until(lambda: all(each.reached is not None and each.reached.cut.flushed_lsn >= lsn for each in reached))
        assert on_topic(made, counts).keys == 1

        # a row of a view of one table; then both are repaired by another process
        assert spoil(spark, made.kept(rows), "n") == 1
        until(lambda: keys(health, rows) == 1)
        for name in (rows, counts):
            assert [each.keys for each in mend(made.shared, made.kept(name))] == [1]
        until(lambda: keys(health, rows) == 0 and keys(health, counts) == 0)
        assert on_topic(made, counts).keys == 0

        log = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
        differ = {each["view"]: each for each in log if each["event"] == "view differs"}
        assert differ.keys() == {rows, counts}
        assert {(each["level"], each["keys"]) for each in differ.values()} == {("error", 1)}
        assert "4711" not in json.dumps(log)

        # the comparison of one view fails; then that of the other would take ten minutes
        failed = health.views[rows].verify_failures

        def slow(_: Shared, view: KeptView, *__: object, **___: object) -> Iterator[dict[str, Any]]:
            if view.declared.name == rows or not failed["TR-529"]:
                raise not_free(view)
            spark.sql("SELECT java_method('java.lang.Thread', 'sleep', id + 600000L) FROM range(1)").collect()
            yield {}

        monkeypatch.setattr(verifying, "verify", slow)
        until(lambda: failed["TR-529"] > 0 and is_running(spark))
        lsn = put(made, 60, n=50)
        until(lambda: all(each.reached is not None and each.reached.cut.flushed_lsn >= lsn for each in reached))
        began = time.monotonic()
        stop.set()
    assert time.monotonic() - began < 60


def test_matches_are_compared_beside_their_batches(bench: Make, spark: SparkSession, search_url: str) -> None:
    name, users = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ("matches", "users"))
    mine = View(table="public.docs", shape="percolate", queries="public.saved.query")
    theirs = View(table="public.docs", shape="percolate", queries_index=users)
    made = bench({name: mine, users: theirs}, search_url)
    made.config = made.config.model_copy(update={"verify": Verify(every_s=0.5, share=1.0)})
    made.shared = replace(made.shared, config=made.config)
    made.pipeline.table("docs", [column("id", "int4"), column("n", "int8")], ("id",))
    made.pipeline.table("saved", [column("id", "int4"), column("query", "jsonb")], ("id",))
    with made.pipeline.transaction() as tx:
        tx.put("saved", {"id": 1, "query": json.dumps({"range": {"n": {"gte": 5}}})})
    with connect(Search(hosts=[search_url])) as client:
        client.indices.create(index=users, body={"mappings": {"properties": {"q": {"type": "percolator"}}}})

    def change(*numbers: int) -> None:
        with made.pipeline.transaction() as tx:
            for number in numbers:
                tx.put("docs", {"id": number, "n": number}, "c")
        assert made.pipeline.cut is not None
        lsn = made.pipeline.cut.flushed_lsn
        until(lambda: (found := health.views[name].reached) is not None and found.cut.flushed_lsn >= lsn)

    view = made.kept(name)
    with followed(made, spark) as (health, _):
        until(lambda: keys(health, name) == 0)
        change(4, 5, 6, 7)
        with view.lease.held(60) as held:
            assert held
            spark.sql(f"DELETE FROM {table_of(view)} WHERE key = '[6]'")
        until(lambda: keys(health, name) == 1)
        assert_shown(made, health, name)
        change(8)
        assert keys(health, name) == 1
        assert [each.keys for each in mend(made.shared, view)] == [1]
        until(lambda: keys(health, name) == 0)
        assert sorted(row["key"] for row in made.rows(name)) == ["[5]", "[6]", "[7]", "[8]"]

        # `tailrace verify` has the index of queries to compare with
        with view_lease(made.config, f"{name}-verify").held(60) as held:
            assert held
            until(lambda: health.views[name].verify_failures["TR-529"] > 0)
        compared = health.views[name].verified
        until(lambda: health.views[name].verified != compared)
        assert keys(health, users) is None
        assert not health.views[users].verify_failures


def test_matches_whose_queries_may_be_compacted_are_not_verified(
    bench: Make, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"rows_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.t")})
    made.config = made.config.model_copy(update={"verify": Verify(every_s=0.5, share=1.0)})
    made.shared = replace(made.shared, config=made.config)
    made.pipeline.table("t", [column("id", "int4"), column("n", "int8")], ("id",))
    put(made, 1)
    monkeypatch.setattr(verifying, "verify", lambda *_, **__: iter(()))
    with followed(made, spark) as (health, _):
        until(lambda: health.views[name].verify_failures["TR-707"] > 0)
        assert keys(health, name) is None
