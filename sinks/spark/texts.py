"""Rows of text for Python functions in Spark's workers, without pickling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tailrace.sinks.spark.java_classes import java_class

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BETWEEN: Final = "\0"


def for_each_partition(texts: DataFrame, run: Callable[[Iterator[list[str]]], None]) -> None:
    """Call `run` with the rows of each partition, in Spark's workers; NULL arrives as an empty text.

    All columns are text, and only the last may contain a NUL character, which JSON escapes. Each row is sent as one
    string: `DataFrame.foreachPartition` pickles the rows, which takes as long as it takes Spark to make the documents.
    """
    from pyspark import RDD
    from pyspark.serializers import UTF8Deserializer
    from pyspark.sql import functions as F

    session, between = texts.sparkSession, len(texts.columns) - 1
    lines = texts.select(F.concat_ws(_BETWEEN, *(F.coalesce(F.col(name), F.lit("")) for name in texts.columns)))
    strings = getattr(lines._jdf, "as")(java_class(session._jvm, "org.apache.spark.sql.Encoders").STRING()).toJavaRDD()
    rows: RDD[str] = RDD(strings, session.sparkContext, UTF8Deserializer())  # type: ignore[no-untyped-call]
    rows.foreachPartition(lambda lines: run(line.split(_BETWEEN, between) for line in lines))
