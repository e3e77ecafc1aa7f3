"""The size of what a frame has in Spark's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def cached_bytes(frame: DataFrame) -> int:
    """Return the bytes in Spark's cache of a persisted frame whose rows have all been computed.

    Before that it is an estimate, which may be far too large. Runs no job.
    """
    return int(str(frame._jdf.queryExecution().withCachedData().stats().sizeInBytes()))
