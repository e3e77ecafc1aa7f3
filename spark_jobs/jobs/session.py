"""The Spark session of all jobs: settings that the guarantees rest on, then what the config adds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from py4j.java_gateway import java_import
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tailrace.schemas.config.model import Config, Warehouse
from tailrace.sinks.target.lease import lease_folder
from tailrace.spark_jobs.jobs.jvm import start_jvm
from tailrace.spark_jobs.log import tracing

_SETTINGS: Final = {
    # Values are compared with the source's, which is read under UTC.
    "spark.sql.session.timeZone": "UTC",
    # PostgreSQL tells "Id" from "id".
    "spark.sql.caseSensitive": "true",
    # A cast that does not fit is an error, never NULL.
    "spark.sql.ansi.enabled": "true",
    # INSERT OVERWRITE replaces the whole table.
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.ui.enabled": "false",
    # Plans are written out for that page all the same, at each step of each query: in the shorter form.
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.showConsoleProgress": "false",
    # What has ended is kept for that page all the same, by default a thousand of each: of the batches of a few queries
    # that is most of the heap.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "40",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "10",
    # On, each column that is made is five more calls into Java, to say in an error from which of our lines it came.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # On, each persist() clones its session to turn it off (`sinks.spark.one_task`); no table is bucketed as Hive's are.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    # The 100 classes of the default are fewer than one round of six views compiles: each batch would compile all anew.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Each view's jobs are in a pool of their own (`lanes`): a core that becomes free takes a task of the one
    # that has the fewest running. By default the tasks of a large job come before those of all that started later.
    "spark.scheduler.mode": "FAIR",
    # Each span of a topic is read by consumers of its own, which are not used again, nor is what they fetched ahead: of
    # five minutes, as by default, that is a hundred MiB.
    "spark.kafka.consumer.cache.timeout": "10s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "10s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
    # Each sort and each aggregation begins with a page, by default one of 16 MiB of this heap: a batch of few rows is
    # dozens of them, and half of its garbage.
    "spark.buffer.pageSize": "2m",
}

_LOCAL: Final = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # How far a rebuild is, is known no sooner.
    "spark.executor.heartbeatInterval": "2s",
}
"""With everything in one process, few partitions are faster and nothing need listen beyond loopback."""


def open_session(config: Config, master: str | None = None) -> SparkSession:
    """Return the session; `master` is for tests, spark-submit gives its own."""
    # Workers in this process's environment have our libraries; `python3` on the path need not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = {
        "spark.app.name": f"tailrace {config.kafka.prefix}",
        # Made with the session, empty; by default it would be in the working directory. Not `as_uri()`: Hadoop's paths
        # have no escapes, "%20" would be the name of another folder.
        "spark.sql.warehouse.dir": f"file:{lease_folder(config) / 'spark'}",
        **({} if master is None else {"spark.master": master}),
        **settings(config, local=(master or config.spark.master).startswith("local")),
    }
    _create_catalog_folder(config.warehouse)
    start_jvm(found)
    builder = SparkSession.Builder()
    for name, value in found.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    assert session._jvm is not None
    # PySpark names this class alone for each list of columns: Java then looks through all jars, package by package.
    java_import(session._jvm, "org.apache.spark.api.python.PythonUtils")
    session.sparkContext.setLogLevel("ERROR")
    # It prints what is raised as well, with what may be values.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = not tracing()
    return session


def _create_catalog_folder(warehouse: Warehouse | None) -> None:
    # SQLite creates the file of a database, not its folder.
    file = warehouse.sqlite_file if warehouse is not None else None
    if file is not None:
        Path(file).absolute().parent.mkdir(parents=True, exist_ok=True)


def settings(config: Config, *, local: bool) -> dict[str, str]:
    """Return all Spark settings; those of ``[spark.conf]`` are laid over ours."""
    catalog = _catalog(config.warehouse) if config.warehouse is not None else {}
    return {**_SETTINGS, **(_LOCAL if local else {}), **catalog, **config.spark.conf}


def _catalog(warehouse: Warehouse) -> dict[str, str]:
    uri, kind = warehouse.uri, "rest" if warehouse.uri.startswith("http") else "jdbc"
    if uri.startswith("jdbc:sqlite:"):
        # SQLite's default journal fails between processes.
        uri += ("&" if "?" in uri else "?") + "journal_mode=WAL&busy_timeout=30000"
    name = f"spark.sql.catalog.{warehouse.catalog}"
    schema = {f"{name}.jdbc.schema-version": "V1"} if kind == "jdbc" else {}
    return {
        **schema,
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.type": kind,
        f"{name}.uri": uri,
        f"{name}.warehouse": warehouse.location,
        # A cached table would hide what another session or process has committed.
        f"{name}.cache-enabled": "false",
    }
