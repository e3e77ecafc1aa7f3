"""The newest record of each key in two ways: sorted for small spans, marked by offset for large ones."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from tailrace.schemas.envelope import framing
from tailrace.spark_jobs.topics.latest import facts, marked, newest, newest_marks
from tailrace.spark_jobs.topics.shapes import Shape


def test_both_ways_select_the_same_newest_records(spark: SparkSession) -> None:
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


def test_threads_that_plan_the_same_rows_get_the_same_plan(spark: SparkSession) -> None:
    """Views that are maintained at the same time can share rows of one of them."""
    schema = '{"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}]}'
    shape = Shape(3, schema, schema, {"id": "id"}, {"id": IntegerType()})
    raw = spark.createDataFrame([(framing(3) + b"\x02",)], "value binary")
    rows = raw.select(shape.decode(F.col("value")).alias("row"))

    def plan(_: int) -> str:
        return str(rows.crossJoin(rows)._jdf.queryExecution().analyzed().canonicalized())

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(plan, range(400)))) == 1
    assert rows.collect() == [((1,),)]
