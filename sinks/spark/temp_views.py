"""Temporary views that exist only during a batch, because each holds its whole plan with its sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def temp_view(session: SparkSession, name: str, frame: DataFrame) -> Iterator[None]:
    """Register a frame as a temporary view for the block; on exit, its data stays in Spark's cache.

    `Catalog.dropTempView` would remove it from the cache, but other views of the same round still read it.
    """
    frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        _session_catalog(session).dropTempView(name)


def drop_global_temp_view(session: SparkSession, name: str) -> None:
    """Drop a global temporary view in the same way; `name` is without its database."""
    _session_catalog(session).dropGlobalTempView(name)


def _session_catalog(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState().catalog()
