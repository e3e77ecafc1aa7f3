"""Small spans are read and decoded in this process; Spark, which reads all others, is the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from tailrace.sinks.target.few_rows import FewRows
from tailrace.spark_jobs.topics import small_span
from tailrace.spark_jobs.topics.decoded import decoded as decode
from tailrace.spark_jobs.topics.latest import changes, facts, newest
from tailrace.spark_jobs.topics.records import Latest
from tailrace.spark_jobs.topics.source import records
from tests.spark.conftest import Bench
from tests.spark.pipeline import column
from tests.spark.test_views import EXTREMES, FULL, VALUES

Make = Callable[..., Bench]


def _by_content(rows: pa.Table) -> list[str]:
    """Return the rows in an order of their own, NaN equal to itself; times as numbers, for Python has no year 10000."""
    plain = pa.schema([(field.name, _plain(field.type)) for field in rows.schema])
    return sorted(map(repr, rows.cast(plain).to_pylist()))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _agree(bench: Bench, name: str, start: list[int], *, decoded: bool = True) -> Latest:
    """Compare a span of a table up to now with what Spark finds in it; return it."""
    spark, known = bench.shared.session, bench.shared.records
    topic, end = bench.pipeline.tables[name].topic, bench.pipeline.offsets[bench.pipeline.tables[name].topic]
    found = known.latest(topic, start, end)
    assert found is not None
    assert found.here is not None
    raw = records(spark, bench.config.kafka, topic, start, end)
    assert raw is not None
    other = newest(raw).persist()
    assert found.facts == facts(other)
    assert _by_content(found.rows(spark).toArrow().select(other.columns)) == _by_content(other.toArrow())
    shapes = known.newest_shapes(topic)
    expected = FewRows.of(changes(other, found.facts, shapes))
    rows = known.few(found, shapes)
    assert (decode(found.here, found.facts, shapes) is not None) == decoded
    assert rows.arrow().schema == expected.arrow().schema
    assert _by_content(rows.arrow()) == _by_content(expected.arrow())
    assert _by_content(rows.frame(spark).toArrow()) == _by_content(expected.arrow())
    other.unpersist()
    return found


def test_spark_finds_the_same_rows(bench: Make) -> None:
    made = bench({})
    made.pipeline.table("t", VALUES, ("id", "at"))
    draw, starts = random.Random(3), [[0, 0, 0]]
    nothing: dict[str, Any] = dict.fromkeys(FULL)
    for _ in range(4):
        with made.pipeline.transaction() as tx:
            for _ in range(40):
                key = {"id": draw.randrange(30), "at": draw.choice((0, -1, 1_700_000_000_123_456))}
                tx.put("t", {**draw.choice((FULL, EXTREMES, nothing)), **key})
            for gone in draw.sample(sorted(made.pipeline.tables["t"].rows), 8):
                tx.delete("t", *gone)
        starts.append(list(made.pipeline.offsets[made.pipeline.tables["t"].topic]))
    for start in starts[:-1]:
        _agree(made, "t", start)
        made.shared.records.release()
    with made.pipeline.transaction() as tx:
        tx.put("t", {**FULL, "id": 77})
        tx.truncate("t")
        tx.put("t", {**EXTREMES, "id": 78})
    assert _agree(made, "t", starts[-1]).facts.truncated
    made.shared.records.release()


def test_spark_decodes_what_has_an_earlier_schema(bench: Make) -> None:
    made = bench({})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int4")], ("id",))
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "n": 1})
    made.pipeline.reshape("t", [column("id", "int4"), column("n", "int8"), column("more", "text")])
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 2, "n": 2**40, "more": "x"})
    _agree(made, "t", [], decoded=False)
    made.shared.records.release()


def test_spark_reads_what_is_too_large_or_lost(
    bench: Make, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench({})
    topic = made.pipeline.table("t", [column("id", "int4"), column("text", "text")], ("id",)).topic
    with made.pipeline.transaction() as tx:
        for number in range(20):
            tx.put("t", {"id": number, "text": "x" * 100})
    end, known = made.pipeline.offsets[topic], made.shared.records
    for most, is_here in ((4000, True), (1000, False)):
        monkeypatch.setattr(small_span, "MOST_BYTES", most)
        found = known.latest(topic, [], end)
        assert found is not None
        assert (found.here is not None) == is_here
        assert found.rows(spark).count() == 20
        known.release()
    # beyond the end of the topic: a consumer with auto.offset.reset=earliest would begin at 0
    reader = small_span.SmallSpanReader(made.config.kafka)
    assert reader.newest(topic, [each + 100 for each in end], [each + 200 for each in end]) is None
    assert reader.newest(topic, [], end) is None, "it is too large here, not lost"
    monkeypatch.undo()
    again = reader.newest(topic, [], end)
    assert again is not None
    assert len(again.records) == 20
    reader.close()
