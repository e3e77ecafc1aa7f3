"""One Spark session and one warehouse for all tests of the jobs; each test has its topics and views."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.launch.class_archive import archive_options
from tailrace.cdc.launch.jars import jars
from tailrace.cdc.launch.java import SMALL_SPARK, SPARK, find_java
from tailrace.cdc.launch.spark_job import LOCAL_FILES, package_folder
from tailrace.schemas.config.model import Config, Kafka, Search, Source, Spark, View, Warehouse
from tailrace.schemas.errors import SinkError
from tailrace.sinks.control.views_topic import ViewsTopic
from tailrace.sinks.kafka.groups import Groups
from tailrace.sinks.opensearch.arrow_documents import arrow_bodies
from tailrace.sinks.opensearch.bulk import write_documents
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.jobs.session import open_session
from tailrace.spark_jobs.maintain.history_batch import HistoryBatch
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.open_view import open_view
from tailrace.spark_jobs.maintain.states import States
from tailrace.spark_jobs.topics.cuts import Cuts, SeenCut
from tailrace.spark_jobs.topics.records import Records
from tailrace.spark_jobs.views import Declared
from tests.spark.pipeline import Pipeline
from tests.support.daemon import ROOT

ROUNDS = int(os.environ.get("TAILRACE_TEST_ROUNDS", "1"))
"""Repetitions of tests that find more each time; a batch of many views takes seconds of Spark."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""With few rows, compiling a query takes longer than running it; end-to-end and cluster tests compile."""


def spark_conf(settings: Mapping[str, str]) -> str:
    """Return lines for the section ``[spark.conf]``."""
    return "".join(f'"{name}" = "{value}"\n' for name, value in settings.items())


REVISION_BEFORE = "f5781bfc92bbe59e88031f178aaa5b2d610c6b19"
"""The last revision with another module tree; this one must continue its work."""

_HAS_HISTORY = (
    subprocess.run(
        ["git", "cat-file", "-e", f"{REVISION_BEFORE}^{{commit}}"], cwd=ROOT, stderr=subprocess.DEVNULL, check=False
    ).returncode
    == 0
)
collect_ignore = [] if _HAS_HISTORY else ["test_upgrade.py"]

_NAMESPACE = f"views_{uuid.uuid4().hex[:6]}"


def pytest_report_header() -> str | None:
    return None if _HAS_HISTORY else f"left out: tests/spark/test_upgrade.py, for commit {REVISION_BEFORE} is not here"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            # For a busy machine: a test that times out would break the session of all other tests.
            item.add_marker(pytest.mark.timeout(1200))
            # PySpark leaves the sockets that it uses for collect() to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    folder = tmp_path_factory.mktemp("warehouse")
    return Warehouse(
        uri=f"jdbc:sqlite:{folder / 'catalog.db'}", location=f"file://{folder / 'data'}", namespace=_NAMESPACE
    )


@pytest.fixture(scope="session")
def spark(warehouse: Warehouse) -> Iterator[SparkSession]:
    java, connectors = find_java("Spark", SPARK), jars("spark")
    os.environ["JAVA_HOME"] = str(java.home)
    settings = {
        "spark.driver.extraClassPath": os.pathsep.join(map(str, connectors)),
        **dict([LOCAL_FILES]),
        "spark.driver.memory": "1500m",
        # full size from the start: a heap that grows is collected much more often
        "spark.driver.extraJavaOptions": f"{SMALL_SPARK} -Xms1500m -Xmn600m",
        **INTERPRETED,
    }
    config = Config(source=Source(dsn=""), warehouse=warehouse, spark=Spark(conf=settings))
    # the archive of the jobs that tests start, if one of them has written it
    archive = archive_options("spark", java, [package_folder("pyspark") / "jars", *connectors], write=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", " ".join(archive))
        session = open_session(config, "local[2]")
    yield session
    session.stop()


@dataclass
class Bench:
    """A pipeline, its configuration, and the job's parts for it."""

    config: Config
    pipeline: Pipeline
    shared: Shared

    def kept(self, name: str) -> KeptView:
        return open_view(self.shared, name)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the view's rows."""
        return list(read_view(self.config, name).rows)

    def agrees(self, name: str, table: str) -> int:
        """Compare a view with the model at its cut, value by value; return its number of rows."""
        state = read_view(self.config, name)
        key = self.pipeline.tables[table].key
        found = [_comparable(row) for row in state.rows]
        by_key = {tuple(row[part] for part in key): row for row in found}
        assert len(by_key) == len(found), "a key stands twice"
        model = self.pipeline.states[state.cut.flushed_lsn][table]
        columns = {c.name for c in self.pipeline.tables[table].relation.columns}
        expected = {
            tuple(_hashable(part) for part in k): _comparable({c: row.get(c) for c in columns})
            for k, row in model.items()
        }
        present = {k: {c: v for c, v in row.items() if c in columns} for k, row in by_key.items()}
        assert present == expected
        return len(found)


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _hashable(value) for name, value in row.items()}


def _hashable(value: Any) -> Any:
    """Convert floats so that NaN equals itself and -0.0 differs from 0.0."""
    return repr(value) if isinstance(value, float) else value


@pytest.fixture
def bench(servers: Servers, spark: SparkSession, warehouse: Warehouse, prefix: str) -> Iterator[Callable[..., Bench]]:
    """Return a function that makes a bench: `views` as in the config, `search` a URL for search views."""
    opened = ExitStack()

    def make(views: dict[str, View], search: str | None = None, **kafka: Any) -> Bench:
        config = Config(
            source=Source(dsn=""),
            kafka=Kafka(bootstrap=servers.bootstrap, prefix=prefix, **kafka),
            warehouse=warehouse,
            search=Search(hosts=[search], index_prefix=f"{prefix}-") if search else None,
            views=views,
        )
        pipeline = Pipeline(config.kafka)
        cuts = opened.enter_context(closing(Cuts(config)))
        topic = ViewsTopic(config.kafka, pipeline.topics)
        shared = Shared(config, spark, Records(spark, config.kafka), cuts, topic, Groups(config.kafka))
        opened.callback(shared.known.close)
        opened.callback(shared.records.close)
        opened.callback(shared.records.release)
        return Bench(config, pipeline, shared)

    with opened:
        yield make


def reader(pipeline: Pipeline) -> Declared:
    """Return a view that reads all tables."""
    tables = {f"public.{name}": table.topic for name, table in pipeline.tables.items()}
    return Declared("all", "warehouse", tuple(tables.values()), None, captured=tuple(tables))


def newest(bench: Bench) -> SeenCut:
    """Wait for the pipeline's newest cut."""
    cuts, view, target = bench.shared.cuts, reader(bench.pipeline), bench.pipeline.cut
    seen = cuts.newest(view)
    while seen is None or (target is not None and seen.cut.flushed_lsn < target.flushed_lsn):
        seen = cuts.newest(view, wait=1.0) or seen
    return seen


def no_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches fail that read a whole input of a query, or all open versions of a history."""

    def fail(*_: Any) -> None:
        raise AssertionError("a whole table is read")

    monkeypatch.setattr(States, "whole", fail)
    monkeypatch.setattr(HistoryBatch, "_read", fail)


def step(bench: Bench, *views: KeptView) -> None:
    """Bring views to the newest cut, as one round of follow does."""
    from tailrace.spark_jobs.maintain.batch import Report

    seen = newest(bench)
    for view in views:
        assert view.step(seen, Report())
    bench.shared.records.release()


def write_half(patched: pytest.MonkeyPatch, refused: SinkError) -> None:
    """Let an index get every second document of a batch, and the batch fail."""

    def half(rows: Any, **options: Any) -> None:
        write_documents((row for number, row in enumerate(rows) if number % 2), **options)
        raise refused

    def half_of_arrow(documents: Any, version: int) -> Iterator[bytes]:
        yield from arrow_bodies(documents.take(list(range(1, len(documents), 2))), version)
        raise refused

    patched.setattr("tailrace.sinks.opensearch.target.write_documents", half)
    patched.setattr("tailrace.sinks.opensearch.target.arrow_bodies", half_of_arrow)
