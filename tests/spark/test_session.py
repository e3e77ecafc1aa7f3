"""The session and its Python workers; batches leave nothing behind in it, otherwise `follow` would fill its heap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tailrace.sinks.spark.java_classes import java_class
from tailrace.sinks.spark.one_task import in_one_task
from tailrace.sinks.spark.texts import for_each_partition
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


def test_python_tasks_read_no_archive(spark: SparkSession) -> None:
    """Python reads the directories of all that it knows before each task."""

    def known(_: int) -> list[str]:
        return [path for path, found in sys.path_importer_cache.items() if type(found).__name__ == "zipimporter"]

    for _ in range(2):
        assert spark.sparkContext.parallelize(range(2), 2).flatMap(known).collect() == []


def test_python_tasks_get_texts_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    given = [
        ("[1]", '{"a":"é\\u0000"}', None),
        ("[2]", None, ""),
        ("[3]", "{}", "a\0b\0"),
        ("[4]", None, "\U0001f600\n"),
    ]

    def write(rows: Iterator[list[str]]) -> None:
        found = list(rows)
        (tmp_path / found[0][0]).write_text(repr(found), encoding="utf-8")

    for_each_partition(spark.createDataFrame(given, "id string, document string, routing string").coalesce(1), write)
    assert (tmp_path / "[1]").read_text(encoding="utf-8") == repr([[value or "" for value in row] for row in given])


def test_classes_and_their_methods_are_looked_up_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's own lookups, too: a query with columns, a sort and an error that PySpark classifies."""
    made = java_class(spark._jvm, "java.util.Collections")

    def query() -> None:
        assert made.emptyList().size() == 0
        assert spark.range(3).select(F.col("id"), F.lit(1)).orderBy("id").collect()[2].id == 2
        with pytest.raises(AnalysisException):
            spark.table("nowhere")

    query()
    asked: list[str] = []
    for each in (JVMView, JavaPackage, JavaClass):
        monkeypatch.setattr(each, "__getattr__", _noted(each.__getattr__, asked))
    query()
    assert asked == []


def _noted(look_up: Callable[[Any, str], Any], asked: list[str]) -> Callable[[Any, str], Any]:
    def noted(where: Any, name: str) -> Any:
        asked.append(name)
        return look_up(where, name)

    return noted
