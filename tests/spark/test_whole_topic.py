"""A whole topic that this process reads and decodes gives the rows of its table, or is left to Spark."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import StateError
from tailrace.sinks.iceberg.direct.java_table import JavaTable
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.topics import records, whole_topic
from tests.spark.conftest import Bench, step
from tests.spark.pipeline import column
from tests.spark.test_views import EXTREMES, FAR, FULL, VALUES, lose_first_records

Make = Callable[..., Bench]

_DECODED = [each for each in VALUES if each.name not in ("tags", "times", "prices", "h")]
_VIEW = View(table="public.t", target="warehouse")


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read topics of any size here, in chunks of a few rows."""
    monkeypatch.setattr(records, "FEW_RECORDS", 1)
    monkeypatch.setattr(whole_topic, "_CHUNK_ROWS", 8)


@pytest.fixture
def name() -> str:
    """A view that no other test has in the common warehouse."""
    return f"whole_{uuid.uuid4().hex[:8]}"


def _change(made: Bench, draw: random.Random, rows: Sequence[dict[str, Any]]) -> None:
    with made.pipeline.transaction() as tx:
        for _ in range(60):
            key = {"id": draw.randrange(40), "at": draw.choice((0, -1, 1_700_000_000_123_456))}
            tx.put("t", {**draw.choice(rows), **key})
        for gone in draw.sample(sorted(made.pipeline.tables["t"].rows), 8):
            tx.delete("t", *gone)


def _is_read_here(made: Bench) -> bool:
    topic = made.pipeline.tables["t"].topic
    found = made.shared.records.spooled(topic, made.pipeline.offsets[topic])
    made.shared.records.release()
    return found is not None


@pytest.mark.parametrize("target", ["warehouse", "search", "search, no Spark"])
def test_each_generation_has_the_rows_of_the_table(
    bench: Make, name: str, target: str, search_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is replaced or deleted by a record of its own chunk, or of a later one. Spark makes documents of floats."""
    draw, rows = random.Random(5), [dict.fromkeys(FULL) | row for row in (FULL, EXTREMES, FAR, {})]
    columns = _DECODED
    if target == "search, no Spark":
        rows, columns = [row | {"local": 5, "day": 7} for row in rows], [each for each in _DECODED if each.name != "f4"]
        monkeypatch.setattr("tailrace.sinks.opensearch.target.documents", None)
    made = bench({name: View(table="public.t", target="warehouse" if target == "warehouse" else "search")}, search_url)
    made.pipeline.table("t", columns, ("id", "at"))
    view = made.kept(name)
    for generation in (1, 2):
        _change(made, draw, rows)
        assert _is_read_here(made)
        if generation == 1:
            step(made, view)
        else:
            assert rebuild(made.shared, view).generation == generation
        assert made.agrees(name, "t") > 30
    _change(made, draw, rows)
    step(made, view)
    made.agrees(name, "t")


def test_a_rebuild_of_a_table_that_has_lost_all_rows_is_empty(bench: Make, name: str) -> None:
    made = bench({name: _VIEW})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int4")], ("id",))
    view = made.kept(name)
    for change in ("put", "delete"):
        with made.pipeline.transaction() as tx:
            for number in range(20):
                if change == "put":
                    tx.put("t", {"id": number, "n": 1})
                else:
                    tx.delete("t", number)
        assert _is_read_here(made)
        if change == "put":
            step(made, view)
            assert made.agrees(name, "t") == 20
    assert rebuild(made.shared, view).generation == 2
    assert made.agrees(name, "t") == 0


def test_spark_reads_what_is_not_decoded_here(bench: Make, name: str) -> None:
    """Truncates, older schemas and other types; the rows are the same."""
    made = bench({name: _VIEW})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int4")], ("id",))
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "n": 1})
        tx.truncate("t")
        tx.put("t", {"id": 2, "n": 2})
    assert not _is_read_here(made)
    view = made.kept(name)
    step(made, view)
    assert made.agrees(name, "t") == 1
    made.pipeline.reshape("t", [column("id", "int4"), column("n", "int8"), column("tags", "_text")])
    with made.pipeline.transaction() as tx:
        tx.put("t", {"id": 3, "n": 2**40, "tags": ["x"]})
    assert not _is_read_here(made)
    rebuild(made.shared, view)
    assert made.agrees(name, "t") == 2


def test_what_a_failed_commit_has_written_is_deleted(bench: Make, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bench({name: _VIEW})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int4")], ("id",))
    with made.pipeline.transaction() as tx:
        for number in range(20):
            tx.put("t", {"id": number, "n": number})
    view = made.kept(name)
    step(made, view)
    written: list[str] = []
    deleted: list[str] = []
    write, delete = JavaTable.write, JavaTable.delete
    with monkeypatch.context() as patched:

        def noted(self: JavaTable, name: str, content: bytes) -> Any:
            file = write(self, name, content)
            written.append(file.path)
            return file

        def fail(*_: Any) -> None:
            raise RuntimeError("planted")

        def dropped(self: JavaTable, path: str) -> None:
            deleted.append(path)
            delete(self, path)

        patched.setattr(JavaTable, "write", noted)
        patched.setattr(JavaTable, "replace", fail)
        patched.setattr(JavaTable, "delete", dropped)
        with pytest.raises(RuntimeError, match="planted"):
            rebuild(made.shared, view)
    assert len(written) == 3
    assert deleted == written
    assert rebuild(made.shared, view).generation == 2
    assert made.agrees(name, "t") == 20


def test_a_topic_that_has_lost_records_is_refused(bench: Make, name: str) -> None:
    made = bench({name: _VIEW})
    topic = made.pipeline.table("t", [column("id", "int4"), column("n", "int4")], ("id",)).topic
    with made.pipeline.transaction() as tx:
        for number in range(20):
            tx.put("t", {"id": number, "n": number})
    lose_first_records(made.config.kafka.bootstrap, topic)
    with pytest.raises(StateError, match="TR-424"):
        step(made, made.kept(name))
