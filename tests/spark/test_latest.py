"""The newest record of each key, by both ways: sorted for small spans, marked by offset for large ones."""

from __future__ import annotations

import random

from pyspark.sql import SparkSession

from schemas.envelope import framing
from spark_jobs.latest import facts, marked, newest, newest_marks


def test_a_large_span_keeps_the_same_records(spark: SparkSession) -> None:
    choose = random.Random(7)
    rows = [
        (
            framing(3) + b"%d:%d" % (partition, choose.randrange(300)),
            choose.choice((framing(4), None)),
            partition,
            offset,
        )
        for partition in (0, 1)
        # Offsets have gaps; the bits of a word begin at 0 and end at 63.
        for offset in sorted({0, 63, 64, 127, *choose.sample(range(5000), 1000)})
    ]
    last = {(partition, key): offset for key, _, partition, offset in rows}
    for given in (rows, [row for row in rows if last[row[2], row[0]] == row[3]]):
        expected = {row for row in given if last[row[2], row[0]] == row[3]}
        choose.shuffle(given)
        span = spark.createDataFrame(given, "key binary, value binary, partition int, offset long").repartition(3)
        large, small = marked(span, newest_marks(span)), newest(span)
        for found in (large, small):
            got = [tuple(row[name] for name in span.columns) for row in found.collect()]
            assert len(got) == len(expected)
            assert {(bytes(key), value and bytes(value), *at) for key, value, *at in got} == expected
        assert facts(large) == facts(small)
