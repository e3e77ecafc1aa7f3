"""Temporary views for as long as a batch needs them: each holds the whole plan of what it shows, with its sources."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def temp_view(session: SparkSession, name: str, frame: DataFrame) -> Iterator[None]:
    """Let a name stand for a frame in the block's SQL; what it shows stays in Spark's cache.

    `Catalog.dropTempView` takes it out of there: other views of the same round still read it.
    """
    frame.createOrReplaceTempView(name)
    try:
        yield
    finally:
        _session_catalog(session).dropTempView(name)


def drop_global_temp_view(session: SparkSession, name: str) -> None:
    """Drop a global one in the same way, given without its database."""
    _session_catalog(session).dropGlobalTempView(name)


def _session_catalog(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState().catalog()
