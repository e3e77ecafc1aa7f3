"""The Spark session of all jobs: settings that guarantees depend on, then those of the configuration."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tailrace.schemas.config.model import Config, Warehouse
from tailrace.sinks.spark.java_classes import keep_classes
from tailrace.sinks.target.lease import lease_folder
from tailrace.spark_jobs.jobs.jvm import start_jvm
from tailrace.spark_jobs.log import tracing

_SETTINGS: Final = {
    # Values are compared with those of the source, which is read in UTC.
    "spark.sql.session.timeZone": "UTC",
    # PostgreSQL distinguishes "Id" from "id".
    "spark.sql.caseSensitive": "true",
    # A cast that does not fit is an error, never NULL.
    "spark.sql.ansi.enabled": "true",
    # A column may be named "${HOME}".
    "spark.sql.variable.substitute": "false",
    # INSERT OVERWRITE replaces the whole table.
    "spark.sql.sources.partitionOverwriteMode": "static",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.ui.enabled": "false",
    # Plans are formatted for the UI even if it is off, at each step of each query; this is the shorter format.
    "spark.sql.ui.explainMode": "simple",
    "spark.ui.showConsoleProgress": "false",
    # What has ended is retained for the UI even if it is off, by default a thousand of each: with the batches of a few
    # queries, that is most of the heap.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "40",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "10",
    # If on, each new column makes five more calls into Java, so that errors name the line that created it.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # If on, each persist() clones its session to turn it off (`sinks.spark.one_task`); no table has Hive's buckets.
    "spark.sql.sources.bucketing.autoBucketedScan.enabled": "false",
    # The default of 100 classes is less than one round of six views compiles: each batch would recompile all.
    "spark.sql.codegen.cache.maxEntries": "2000",
    "spark.python.daemon.module": "tailrace.sinks.spark.python_daemon",
    # Each view's jobs are in a pool of their own (`lanes`): a free core takes a task of the pool with the fewest
    # running tasks. By default, the tasks of a large job come before those of all later jobs.
    "spark.scheduler.mode": "FAIR",
    # Each span of a topic is read by its own consumers, which are not reused, nor are the data that they prefetched.
    # With the default of five minutes, that is a hundred MiB.
    "spark.kafka.consumer.cache.timeout": "10s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "10s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
    # Each sort and each aggregation begins with a page, by default one of 16 MiB for this heap: a small batch has
    # dozens of them, and they are half of its garbage.
    "spark.buffer.pageSize": "2m",
    # Files of our own, which pyarrow reads: by default, timestamps have a form that ends in 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}

_LOCAL: Final = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The progress of a rebuild is known no sooner.
    "spark.executor.heartbeatInterval": "2s",
}
"""With everything in one process, few partitions are faster and nothing need listen beyond loopback."""


def open_session(config: Config, master: str | None = None) -> SparkSession:
    """Return the session; `master` is for tests, and spark-submit provides its own."""
    # Workers in this process's environment have our libraries; those of `python3` on the path may not.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    found = {
        "spark.app.name": f"tailrace {config.kafka.prefix}",
        # Created with the session, empty; by default, it is in the working directory. Not `as_uri()`: Hadoop's paths
        # have no escapes, so "%20" would name another folder.
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
    keep_classes(session)
    session.sparkContext.setLogLevel("ERROR")
    # It also prints errors that are raised, which may contain row values.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = not tracing()
    return session


def _create_catalog_folder(warehouse: Warehouse | None) -> None:
    # SQLite creates the file of a database, not its folder.
    file = warehouse.sqlite_file if warehouse is not None else None
    if file is not None:
        Path(file).absolute().parent.mkdir(parents=True, exist_ok=True)


def settings(config: Config, *, local: bool) -> dict[str, str]:
    """Return all Spark settings; those of ``[spark.conf]`` override ours."""
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
        # A cached table would hide commits of other sessions and processes.
        f"{name}.cache-enabled": "false",
    }
