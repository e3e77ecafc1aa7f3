"""Open a declared view: its target and its batches."""

from __future__ import annotations

from functools import partial

from pyspark.sql import SparkSession

from tailrace.schemas.config.model import Config
from tailrace.sinks.control.matches import Publisher
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.opensearch.target import OpenSearchTarget
from tailrace.sinks.target.protocol import Target
from tailrace.spark_jobs.maintain.batch import Batch
from tailrace.spark_jobs.maintain.history_batch import HistoryBatch, LogBatch
from tailrace.spark_jobs.maintain.inputs import Inputs
from tailrace.spark_jobs.maintain.kept_view import KeptView, Shared, ViewBatch
from tailrace.spark_jobs.maintain.percolate import PercolateBatch
from tailrace.spark_jobs.maintain.query_batch import QueryBatch
from tailrace.spark_jobs.views import Declared, declare


def open_view(shared: Shared, name: str) -> KeptView:
    """Return the view `name`, ready for its first batch, and open those that it reads.

    ConfigError if it cannot be maintained.
    """
    view = declare(shared.config, name)
    for lower in view.views:
        if lower not in shared.views:
            open_view(shared, lower)

    def open_batch(session: SparkSession) -> ViewBatch:
        target = open_target(shared.config, session, view)
        if view.text is not None:
            return QueryBatch(view, target, session, shared, Inputs(shared, view))
        if view.shape != "current":
            assert isinstance(target, IcebergTarget)  # `declare` has checked it
            if view.shape == "percolate":
                assert shared.config.search is not None
                publisher = Publisher(shared.config.kafka, name)
                return PercolateBatch(view, target, session, shared, shared.config.search, publisher)
            kind = HistoryBatch if view.shape == "history" else LogBatch
            return kind(view, target, session, shared)
        newest_cut = partial(shared.cuts.wait, view)
        return Batch(view, target, session, shared.records, shared.config.kafka, newest_cut)

    kept = shared.views[name] = KeptView(shared, view, open_batch)
    return kept


def open_target(config: Config, session: SparkSession, view: Declared) -> Target:
    """Return the target of a declared view."""
    if view.target == "search":
        assert config.search is not None  # `declare` has checked it
        return OpenSearchTarget(config.search, view.name, view.definition)
    assert config.warehouse is not None
    return IcebergTarget(session, config.warehouse, view.name, view.definition)
