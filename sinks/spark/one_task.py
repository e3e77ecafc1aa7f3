"""Plan a small batch with one shuffle partition and without adaptive execution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # if this is on, persist() clones the session to turn it off there, with all temporary views of that moment
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations": "false",
    # estimated sizes of joins are products; above this, what is in one partition would be shuffled into one
    "spark.sql.maxSinglePartitionBytes": f"{2**62}b",
}


@contextmanager
def in_one_task(session: SparkSession, *, few: bool) -> Iterator[None]:
    """If `few`, plan the block's queries with one shuffle partition and without adaptive execution.

    For few rows a task costs more than its work, and adaptive execution runs each stage as a job of its own.
    """
    before = {name: str(session.conf.get(name)) for name in _SETTINGS} if few else {}
    if few:
        set_one_task(session)
    try:
        yield
    finally:
        # set, because unset would restore Spark's default
        for name, value in before.items():
            session.conf.set(name, value)


def set_one_task(session: SparkSession) -> None:
    """Plan all queries of a session with one shuffle partition and without adaptive execution."""
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
