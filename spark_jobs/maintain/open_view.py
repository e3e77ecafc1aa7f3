"""Open a declared view: its target and its batches."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from tailrace.schemas.config.model import Config
from tailrace.sinks.control.matches import Publisher
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.read.targets import TARGETS
from tailrace.sinks.target.protocol import Target
from tailrace.spark_jobs.lookup.known_tables import rows_of_view
from tailrace.spark_jobs.lookup.table_rows import Log
from tailrace.spark_jobs.maintain.batch import ViewBatch
from tailrace.spark_jobs.maintain.history_batch import HistoryBatch, LogBatch
from tailrace.spark_jobs.maintain.inputs import Inputs
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared
from tailrace.spark_jobs.maintain.percolate import PercolateBatch
from tailrace.spark_jobs.maintain.query_batch import QueryBatch
from tailrace.spark_jobs.maintain.soft_deletes import SoftDeletesBatch
from tailrace.spark_jobs.maintain.table_batch import TableBatch
from tailrace.spark_jobs.views import Declared, declare


def open_view(shared: Shared, name: str) -> KeptView:
    """Return the view `name`, ready for its first batch, and open those that it reads.

    ConfigError if it cannot be maintained.
    """
    view = declare(shared.config, name)
    for lower in view.views:
        if lower not in shared.views:
            open_view(shared, lower)

    def open_batch(session: SparkSession) -> ViewBatch[Any]:
        target = open_target(shared.config, session, view)
        if isinstance(target, IcebergTarget):
            rows = rows_of_view(shared.config.warehouse, name)
            target.on_change = lambda changes, before, after: shared.known.changed(
                rows, before.snapshot_id, after.snapshot_id, changes, Log.of(after.cut)
            )
        of_job = (session, shared.config, shared.records, shared.cuts)
        if view.text is not None:
            records = shared.records.commits() if view.commits else shared.records
            of_query = (session, shared.config, records, shared.cuts)
            return QueryBatch(view, target, *of_query, Inputs(shared, view), shared.known)
        if view.shape == "current" and not view.soft_deletes:
            return TableBatch(view, target, *of_job)
        assert isinstance(target, IcebergTarget)  # `declare` has checked it
        match view.shape:
            case "current":
                return SoftDeletesBatch(view, target, *of_job)
            case "history":
                return HistoryBatch(view, target, *of_job, shared.known)
            case "log":
                return LogBatch(view, target, *of_job)
            case "percolate":
                return PercolateBatch(view, target, *of_job, Publisher(shared.config.kafka, name))

    kept = shared.views[name] = KeptView(shared, view, open_batch)
    return kept


def open_target(config: Config, session: SparkSession, view: Declared) -> Target:
    """Return the target of a declared view."""
    return TARGETS[view.target].open(config, session, view.name, view.definition)
