"""The stored queries that each change matches: once each in table and topic, whatever fails between."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tailrace.schemas.config.model import Search, View
from tailrace.schemas.errors import ConfigError, StateError
from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.sinks.kafka.producer import KafkaSink
from tailrace.sinks.opensearch.bulk import connect
from tailrace.sinks.opensearch.stored_queries import StoredQueries
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.jobs.explain import explain_percolate
from tailrace.spark_jobs.jobs.generations import drop
from tailrace.spark_jobs.jobs.mend import mend
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.jobs.verify import verify
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tailrace.spark_jobs.views import declare
from tests.spark.conftest import Bench, step
from tests.spark.pipeline import Transaction, column
from tests.support.topics import read_raw

Make = Callable[..., Bench]
Found = tuple[str, str, str, str]
"""Query, version, key, position."""

DOCS = [column("id", "int4"), column("body", "text"), column("n", "int8")]
SAVED = [column("owner", "text"), column("id", "int4"), column("query", "jsonb")]


class Killed(Exception):
    """Raised to end a batch in the middle."""


@dataclass
class Model:
    """Writes documents and queries, and computes the expected matches."""

    bench: Bench
    queries: dict[str, tuple[str, Any]] = field(default_factory=dict)
    changed: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    expected: list[Found] = field(default_factory=list)

    def doc(self, tx: Transaction, number: int, body: str, n: int | None, op: str = "u") -> None:
        row = {"id": number, "body": body, "n": n}
        if op in "cu":
            self.changed.append((f"[{number}]", self._position(tx), row))
        tx.put("docs", row, op)

    def query(self, tx: Transaction, number: int, query: Any, op: str = "u") -> None:
        self.queries[f'["ann",{number}]'] = (self._position(tx), query)
        text = query if isinstance(query, str) else json.dumps(query)
        tx.put("saved", {"owner": "ann", "id": number, "query": text}, op)

    def drop(self, tx: Transaction, number: int) -> None:
        del self.queries[f'["ann",{number}]']
        tx.delete("saved", "ann", number)

    def stands(self) -> None:
        """Mark the end of the next batch: compute its matches."""
        for key, position, row in self.changed:
            for query, (version, what) in self.queries.items():
                if _matches(what, row):
                    self.expected.append((query, version, key, position))
        self.changed.clear()

    def _position(self, tx: Transaction) -> str:
        return f"0:{format_lsn(self.bench.pipeline.lsn)}:{tx.ordinal}"


def _matches(query: Any, row: dict[str, Any]) -> bool:
    """Evaluate a query independently of the index; handles the few queries of these tests."""
    if isinstance(query, str):
        return False
    ((kind, inner),) = query.items()
    if kind == "match":
        return str(inner["body"]) in row["body"].split()
    return bool(row["n"] is not None and row["n"] >= inner["n"]["gte"])


def at_least(n: int) -> Any:
    return {"range": {"n": {"gte": n}}}


def saying(word: str) -> Any:
    return {"match": {"body": word}}


@pytest.fixture
def model(bench: Make, search_url: str) -> Model:
    view = View(table="public.docs", shape="percolate", queries="public.saved.query")
    made = bench({f"p_{uuid.uuid4().hex[:8]}": view}, search_url)
    made.pipeline.table("docs", DOCS, ("id",))
    made.pipeline.table("saved", SAVED, ("owner", "id"))
    return Model(made)


def name_of(bench: Bench) -> str:
    (name,) = bench.config.views
    return name


def agrees(model: Model) -> None:
    """Assert that table and topic have exactly the expected matches, and that their cuts are states."""
    bench = model.bench
    name, kafka = name_of(bench), bench.config.kafka
    rows = bench.rows(name)
    table = [
        (row["query"], row["query_version"], row["key"], f"0:{format_lsn(row['commit_lsn'])}:{row['ordinal']}")
        for row in rows
    ]
    assert sorted(table) == sorted(model.expected)
    assert {row["cut_lsn"] for row in rows} <= bench.pipeline.states.keys()
    messages = [json.loads(m.value()) for m in read_raw(kafka.bootstrap, Topics(kafka.prefix).matches(name))]
    topic = [(m["query"], m["query_version"], m["key"], m["position"]) for m in messages]
    assert sorted(topic) == sorted(model.expected)


def test_matches_are_committed_and_forwarded_once(
    model: Model, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bench, pipeline = model.bench, model.bench.pipeline
    name = name_of(bench)
    with pipeline.transaction() as tx:
        model.doc(tx, 1, "a fox before it all", 9, "c")
        model.query(tx, 1, at_least(5), "r")
        model.query(tx, 2, saying("fox"), "r")
    model.changed.clear()
    view = bench.kept(name)
    step(bench, view)
    assert read_view(bench.config, name).cut == pipeline.cut
    assert bench.rows(name) == []

    every_kind_of_change(model, view)
    said = [json.loads(text) for text in capfd.readouterr().err.splitlines() if '"parked queries"' in text]
    assert [(each["code"], each["queries"]) for each in said] == [("TR-590", 2)]
    explained = explain_percolate(bench.config, declare(bench.config, name), as_json=False)
    assert 'TR-590 parked: query ["ann",3]' in explained
    assert "unknown query [mtach]" in explained

    queries_that_change(model, view)
    assert "parked:" not in explain_percolate(bench.config, declare(bench.config, name), as_json=False)

    view = ended_anywhere(model, view, monkeypatch)
    tables_that_begin_anew(model, view)
    applied = view.applied
    assert applied is not None
    assert applied.history_from is not None
    assert applied.history_from.lsn == min(pipeline.states)


def every_kind_of_change(model: Model, view: KeptView) -> None:
    """Each version of a row counts; reads and deletes do not. Queries are those at the end of the batch."""
    bench, pipeline = model.bench, model.bench.pipeline
    with pipeline.transaction() as tx:
        model.doc(tx, 1, "a fox", 9)
        model.doc(tx, 1, "a fox twice in a batch", 1)
        model.doc(tx, 2, "read again: a fox", 100, "r")
        model.doc(tx, 3, "gone fox", 7, "c")
        tx.delete("docs", 3)
        tx.delete("docs", 2)
        model.doc(tx, 20, "a fox that has moved", None, "c")
    with pipeline.transaction() as tx:
        model.query(tx, 3, '{"mtach": {"body": "fox"}}', "c")
        model.query(tx, 4, '"no query"', "c")
        model.query(tx, 1, at_least(2))
        model.doc(tx, 4, "late fox", 4, "c")
    model.stands()
    step(bench, view)
    agrees(model)


def queries_that_change(model: Model, view: KeptView) -> None:
    """A new version of a query matches as such, a repaired one is not parked any more, others are deleted."""
    bench, pipeline = model.bench, model.bench.pipeline
    with pipeline.transaction() as tx:
        model.query(tx, 1, at_least(4))
        model.query(tx, 3, saying("cat"))
        model.drop(tx, 2)
        model.drop(tx, 4)
    with pipeline.transaction() as tx:
        model.doc(tx, 1, "a cat and a fox", 3)
        model.doc(tx, 4, "nothing", 4)
    model.stands()
    step(bench, view)
    agrees(model)


_STEPS: list[tuple[type[Any], str, bool]] = [
    (StoredQueries, "store", False),
    (StoredQueries, "store", True),
    (IcebergTarget, "append", False),
    (IcebergTarget, "append", True),
    (KafkaSink, "commit", False),
    (KafkaSink, "commit", True),
]
"""The method that ends a batch, and whether it fails before or after its work."""


def ended_anywhere(model: Model, view: KeptView, monkeypatch: pytest.MonkeyPatch) -> KeptView:
    """A new process continues to a newer cut; what was committed before stays."""
    bench, pipeline = model.bench, model.bench.pipeline
    for number, (where, method, behind) in enumerate(_STEPS):
        with pipeline.transaction() as tx:
            model.doc(tx, 10 + number, f"fox {number}", 10 + number, "c")
            model.query(tx, 5, saying(str(number)))
        if number > _STEPS.index((IcebergTarget, "append", False)):
            model.stands()
        with monkeypatch.context() as broken:
            broken.setattr(where, method, _dying(getattr(where, method), behind))
            with pytest.raises(Killed):
                step(bench, view)
        bench.shared.records.release()
        view = bench.kept(name_of(bench))
        with pipeline.transaction() as tx:
            model.query(tx, 6, at_least(number))
            model.doc(tx, 30 + number, "fox", number, "c")
        model.stands()
        step(bench, view)
        agrees(model)
    return view


def _dying(real: Callable[..., Any], behind: bool) -> Callable[..., Any]:
    def dying(*arguments: Any, **more: Any) -> Any:
        if behind:
            real(*arguments, **more)
        raise Killed

    return dying


def tables_that_begin_anew(model: Model, view: KeptView) -> None:
    """Changes before a truncate match the queries after it, which may name a column that was added."""
    bench, pipeline = model.bench, model.bench.pipeline
    with pipeline.transaction() as tx:
        model.doc(tx, 1, "cat", 50)
        tx.truncate("saved")
        tx.truncate("docs")
        model.queries.clear()
        model.query(tx, 7, at_least(40), "c")
        model.query(tx, 8, {"match": {"more": "cat"}}, "c")
        del model.queries['["ann",8]']
    model.stands()
    step(bench, view)
    agrees(model)
    pipeline.reshape("docs", [*DOCS, column("more", "text")])
    with pipeline.transaction() as tx:
        model.query(tx, 7, at_least(41))
        model.doc(tx, 1, "cat", 41)
    model.stands()
    step(bench, view)
    agrees(model)
    count, _ = StoredQueries(bench.config.search, view.declared.name, "").parked(1)  # type: ignore[arg-type]
    assert count == 0


def test_a_view_that_missed_changes_is_refused_until_rebuilt(model: Model) -> None:
    """A view that is too old is refused; a rebuild continues from now, and earlier matches stay."""
    bench, pipeline = model.bench, model.bench.pipeline
    name = name_of(bench)
    with pipeline.transaction() as tx:
        model.query(tx, 1, at_least(5), "r")
    view = bench.kept(name)
    step(bench, view)
    with pipeline.transaction() as tx:
        model.doc(tx, 1, "a", 9)
    model.stands()
    step(bench, view)
    with pipeline.transaction() as tx:
        model.doc(tx, 2, "lost", 9)
    model.changed.clear()
    kafka = bench.config.kafka
    impatient = bench.config.model_copy(update={"kafka": kafka.model_copy(update={"min_compaction_lag_ms": 1})})
    view.batch.config = impatient
    with pytest.raises(StateError, match="TR-591"):
        step(bench, view)
    rebuild(bench.shared, view)
    view.batch.config = bench.config
    with pipeline.transaction() as tx:
        model.doc(tx, 3, "after", 9)
    model.stands()
    step(bench, view := bench.kept(name))
    agrees(model)
    # a change that was not matched is no difference: the view has begun again after it
    assert compared(bench, view) == (0, 1)
    drop(bench.shared, bench.kept(name), None, name)
    search = bench.config.search
    assert search is not None
    with connect(search) as client:
        assert not client.indices.exists(index=f"{search.index_prefix}{name}-queries")


def test_matches_are_compared_with_those_that_are_certain(
    model: Model, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever happens to changes and queries, no match is called wrong; a wrong one is named and repaired."""
    bench, pipeline = model.bench, model.bench.pipeline
    name = name_of(bench)
    with pipeline.transaction() as tx:
        model.query(tx, 1, at_least(5), "r")
        model.query(tx, 2, saying("fox"), "r")
        model.query(tx, 9, {"range": {"at": {"lte": "now"}}}, "r")
        model.doc(tx, 1, "a fox before it all", 9, "c")
    model.changed.clear()
    model.queries.pop('["ann",9]')
    view = bench.kept(name)
    step(bench, view)
    assert compared(bench, view) == (0, 0)

    every_kind_of_change(model, view)
    # query 1 is newer than all changes but the last one, so it is certain for that alone; query 2 for five others
    assert compared(bench, view) == (0, 6)
    said = [json.loads(text)["event"] for text in capfd.readouterr().err.splitlines() if "not compared" in text]
    assert said[-2:] == [
        "not compared: queries that depend on the time, chance or other indexes",
        "not compared: matches whose change or query is no longer on the topics",
    ]
    queries_that_change(model, view)
    with pipeline.transaction() as tx:
        model.query(tx, 3, saying("cat"), "r")  # read again: from here on it has this version
        model.doc(tx, 4, "read again: a fox", 4, "r")
        model.doc(tx, 7, "a cat and a fox", 44, "c")
    model.stands()
    step(bench, view)
    pipeline.idle()
    step(bench, view)
    assert compared(bench, view) == (0, 3)

    view = wrong_matches_are_repaired(model, spark, monkeypatch)
    tables_that_begin_anew(model, view)
    assert compared(bench, view) == (0, 1)


def compared(bench: Bench, view: KeptView) -> tuple[int, int]:
    """Return the numbers of wrong matches and of compared ones."""
    (found,) = verify(bench.shared, view, 20)
    (each,) = found["comparisons"]
    assert found["equal"] == (each["differing"] == 0)
    return each["differing"], each["left_rows"]


def wrong_matches_are_repaired(model: Model, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> KeptView:
    """Lost matches, a wrong one, one too many: right in the table; the topic gets the lost ones, once."""
    bench, pipeline = model.bench, model.bench.pipeline
    name = name_of(bench)
    with pipeline.transaction() as tx:
        for number in (50, 51):
            model.doc(tx, number, "a cat", number, "c")
    model.stands()
    with monkeypatch.context() as broken:
        broken.setattr(KafkaSink, "commit", _dying(KafkaSink.commit, False))
        with pytest.raises(Killed):
            step(bench, bench.kept(name))
    bench.shared.records.release()
    view = bench.kept(name)
    assert isinstance(view.batch.target, IcebergTarget)
    table = view.batch.target.table()
    spark.sql(f"DELETE FROM {table} WHERE key = '[50]'")
    with pipeline.transaction() as tx:
        model.doc(tx, 52, "a cat", 1, "c")
    model.stands()
    step(bench, view)
    spark.sql(f"UPDATE {table} SET key = '[99]' WHERE key = '[51]' AND query = '[\"ann\",3]'")
    columns = "query_version, key, commit_lsn, ordinal, epoch, cut_lsn"
    spark.sql(f"INSERT INTO {table} SELECT '[\"ann\",1]', {columns} FROM {table} WHERE key = '[52]'")
    assert compared(bench, view)[0] == 4

    with monkeypatch.context() as broken:
        broken.setattr(IcebergTarget, "merge", _dying(IcebergTarget.merge, False))
        with pytest.raises(Killed):
            mend(bench.shared, view)
    assert [each.keys for each in mend(bench.shared, view)] == [4]
    agrees(model)
    kafka = bench.config.kafka
    found = [json.loads(m.value()) for m in read_raw(kafka.bootstrap, Topics(kafka.prefix).matches(name))]
    assert [each["key"] for each in found if each.get("repaired")] == ["[50]", "[50]"]
    assert mend(bench.shared, view) == []
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE key = '[51]'")
    assert [each.replaced for each in mend(bench.shared, view)] == [True]
    agrees(model)
    return view


def test_queries_of_the_users_own_index_are_matched(bench: Make, search_url: str) -> None:
    mine = f"mine-{uuid.uuid4().hex[:8]}"
    name = f"p_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.docs", shape="percolate", queries_index=mine)}, search_url)
    made.pipeline.table("docs", DOCS, ("id",))
    made.pipeline.idle()
    view = made.kept(name)
    step(made, view)
    with connect(Search(hosts=[search_url])) as client:
        fields = {"n": {"type": "long"}, "q": {"type": "percolator"}}
        client.indices.create(index=mine, body={"mappings": {"properties": fields}})
        client.index(index=mine, id="big", body={"q": at_least(5)})
        client.index(index=mine, id="big", body={"q": at_least(6)}, params={"refresh": "true"})
    with made.pipeline.transaction() as tx:
        for n in (5, 6, 7):
            tx.put("docs", {"id": n, "n": n}, "c")
    step(made, view)
    assert sorted((row["query"], row["query_version"], row["key"]) for row in made.rows(name)) == [
        ("big", "2", "[6]"),
        ("big", "2", "[7]"),
    ]
    # no topic says which queries there were when a change arrived
    with pytest.raises(ConfigError, match="TR-109"):
        list(verify(made.shared, view, 20))
    with pytest.raises(ConfigError, match="TR-703"):
        mend(made.shared, view)
