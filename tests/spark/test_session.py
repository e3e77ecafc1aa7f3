"""Batches leave nothing behind in Spark; otherwise `follow` would fill its heap."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from tailrace.sinks.spark.one_task import in_one_task
from tests.spark.conftest import Bench
from tests.spark.shop import Shop


def test_a_batch_leaves_no_temporary_views(bench: Callable[..., Bench], search_url: str) -> None:
    """A temporary view references its plan, and with it the tables as they were then."""
    shop = Shop(bench, ("three", "self@search"), search_url)
    # of tests before this one, which have read records outside of rounds
    before = shop.bench.shared.session.sql("SHOW VIEWS IN global_temp").collect()
    shop.commit(shop.model.fill())
    shop.step()
    shop.commit(shop.model.change())
    shop.step()
    shared = shop.bench.shared
    sessions = [shared.session]
    for kept in (*shop.views.values(), *shared.bases.values()):
        sessions.append(kept.batch.session)
    for session in sessions:
        assert session.sql("SHOW VIEWS").collect() == []
        assert session.sql("SHOW VIEWS IN global_temp").collect() == before


def test_a_persisted_frame_is_planned_in_its_own_session(spark: SparkSession) -> None:
    """Not in a clone, which would have all temporary views of that moment."""
    with in_one_task(spark, few=True):
        frame = spark.range(1).persist()
        try:
            kept = frame._jdf.queryExecution().withCachedData().cacheBuilder().cachedPlan().session()
            assert kept.equals(spark._jsparkSession)
        finally:
            frame.unpersist()


def test_no_part_of_a_name_is_a_variable(spark: SparkSession) -> None:
    """A column of a captured table may be named like one."""
    assert spark.sql("SELECT 1 AS `${HOME}`").columns == ["${HOME}"]
