"""Few rows in one task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # persist() clones a session that has it on, to turn it off there: with all names of that moment, and what they show
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations": "false",
}


@contextmanager
def in_one_task(session: SparkSession, *, few: bool) -> Iterator[None]:
    """Have what is planned in the block, if it is about few rows, go through one partition and be run as planned.

    For few rows a task costs more than what it does, and to plan anew after each stage is to run each as a job.
    """
    before = {name: str(session.conf.get(name)) for name in _SETTINGS} if few else {}
    if few:
        set_one_task(session)
    try:
        yield
    finally:
        # not unset: that would be Spark's own default
        for name, value in before.items():
            session.conf.set(name, value)


def set_one_task(session: SparkSession) -> None:
    """Have all that is planned in a session go through one partition and be run as planned."""
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
