"""Views equal the tables at the cut that they name: both targets, each batch, every kind of change."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import RebuildError, SinkError, StateError, TailraceError
from tailrace.sinks.control.views_topic import ViewRecord, read_views
from tailrace.sinks.opensearch.bulk import connect
from tailrace.sinks.opensearch.target import alias_of
from tailrace.sinks.read.views import read_view
from tailrace.spark_jobs.jobs.rebuild import rebuild
from tailrace.spark_jobs.maintain.batch import Report
from tests.spark.conftest import Bench, newest, reader, step
from tests.spark.pipeline import Aborted, column

Make = Callable[..., Bench]

VALUES = [
    column("id", "int4"),
    column("Id", "int8"),
    column("a.`b", "text"),
    column("_id", "text"),
    column("price", "numeric", 12, 2),
    column("free", "numeric"),
    column("at", "timestamptz"),
    column("local", "timestamp"),
    column("day", "date"),
    column("clock", "time"),
    column("uid", "uuid"),
    column("raw", "bytea"),
    column("f4", "float4"),
    column("f8", "float8"),
    column("ok", "bool"),
    column("tags", "_text"),
    column("times", "_timestamp"),
    column("prices", "_numeric", 10, 3),
    column("h", "hstore"),
    column("doc", "jsonb"),
    column("c1", "text"),
    column("C0", "text"),
    column("c_2", "int4"),
]
FULL = {
    "id": 1,
    "Id": 2**63 - 1,
    "a.`b": 'quote " back \\ line\n é €  end',
    "_id": "own",
    "price": (-123456).to_bytes(3, "big", signed=True),
    "free": "0.10000000000000000000000000000000000000001",
    "at": 1_700_000_000_123_456,
    "local": -62_135_596_800_000_001,
    "day": -719_530,
    "clock": 86_400_000_000,
    "uid": "6f0f8a3e-0000-4000-8000-000000000001",
    "raw": b"\x00\xff\x10",
    "f4": 0.10000000149011612,
    "f8": 1e308,
    "ok": True,
    "tags": ["a", None, ""],
    "times": [0, None, 123],
    "prices": [(1).to_bytes(1, "big"), None],
    "h": {"a": "1", "b": None},
    "doc": '{"a": 1.10, "b": [null, 1e400]}',
    "c1": "not the second",
    "C0": "not the first",
    "c_2": 2,
}
EXTREMES = {
    "id": 2,
    "Id": -(2**63),
    "a.`b": "",
    "price": (10**12 - 1).to_bytes(6, "big"),
    "at": 2**63 - 1,
    "local": -(2**63),
    "day": 2**31 - 1,
    "f4": float("nan"),
    "f8": float("-inf"),
    "ok": False,
    "tags": [],
    "h": {},
    "raw": b"",
}
FAR = {
    "id": 3,
    "at": 2**63 - 2,
    "local": 253_402_300_800_000_000,
    "day": -(2**31),
    "f4": 3.4028234663852886e38,
    "f8": -0.0,
}


@pytest.fixture(params=["warehouse", "search"])
def made(request: pytest.FixtureRequest, bench: Make) -> Bench:
    """A bench with a table `t` (id, name, n) and a view of it, in either target."""
    search = request.getfixturevalue("search_url") if request.param == "search" else None
    # All tests share one warehouse, so names are unique to the test.
    made = bench({f"v_{uuid.uuid4().hex[:8]}": View(table="public.t", target=request.param)}, search)
    made.pipeline.table("t", [column("id", "int4"), column("name", "text"), column("n", "int4")], ("id",))
    return made


def name_of(bench: Bench) -> str:
    (name,) = bench.config.views
    return name


def test_a_view_equals_its_table_after_every_kind_of_change(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    with pipeline.transaction(op="r") as tx:
        for i in range(200):
            tx.put("t", {"id": i, "name": f"row {i}", "n": i})
    step(made, view)
    assert made.agrees(name, "t") == 200
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "name": "changed", "n": None}, "u")
        tx.put("t", {"id": 1, "name": "twice", "n": None}, "u")
        tx.delete("t", 2)
        tx.delete("t", 3)
        tx.put("t", {"id": 3, "name": "again", "n": 3})
        tx.change_key("t", (4,), {"id": 1004, "name": "moved", "n": 4})
        tx.put("t", {"id": 5000, "name": "short", "n": 1})
        tx.delete("t", 5000)
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 6000, "name": "aborted", "n": 1})
        tx.delete("t", 7)
        raise Aborted
    with pipeline.transaction() as tx:
        tx.delete("t", 1004)
    step(made, view)
    assert made.agrees(name, "t") == 198
    pipeline.idle()
    step(made, view)
    assert read_view(made.config, name).cut.flushed_lsn == pipeline.lsn + 5


def test_a_split_transaction_is_not_seen_before_its_end(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "name": "a", "n": 1})
    state = pipeline.cut
    with pipeline.transaction(state=False) as tx:
        tx.put("t", {"id": 2, "name": "half", "n": 1})
    step(made, view)
    assert state is not None
    assert read_view(made.config, name).cut.flushed_lsn == state.flushed_lsn
    assert made.agrees(name, "t") == 1


def test_truncate_empties_what_was_before_it(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    with pipeline.transaction() as tx:
        for i in range(50):
            tx.put("t", {"id": i, "name": "before", "n": i})
    step(made, view)
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 100, "name": "in between", "n": 1})
        tx.truncate("t")
        tx.put("t", {"id": 7, "name": "after", "n": 2})
        tx.put("t", {"id": 8, "name": "after", "n": 2})
        tx.delete("t", 8)
    step(made, view)
    assert made.agrees(name, "t") == 1
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 9, "name": "later", "n": 3})
    step(made, view)
    assert made.agrees(name, "t") == 2
    with pipeline.transaction() as tx:
        tx.truncate("t")
    step(made, view)
    assert made.agrees(name, "t") == 0
    rebuild(made.shared, made.kept(name))
    assert made.agrees(name, "t") == 0


def test_a_replayed_older_batch_changes_nothing(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    with pipeline.transaction() as tx:
        for i in range(20):
            tx.put("t", {"id": i, "name": "first", "n": i})
    step(made, view)
    first = view.applied
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "name": "second", "n": 1})
    middle = pipeline.cut
    with pipeline.transaction() as tx:
        tx.delete("t", 1)
        tx.put("t", {"id": 2, "name": "second", "n": 2})
    step(made, view)
    assert first is not None
    assert middle is not None
    # As after a restart that knows only an older newest cut.
    from tailrace.spark_jobs.topics.cuts import SeenCut

    again = made.kept(name)
    assert again.step(SeenCut(middle, 2**62), Report())
    assert made.agrees(name, "t") == 19


def test_what_a_killed_job_has_left_unsaid_is_published_though_nothing_changes(made: Bench) -> None:
    """Those who wait for an LSN would wait for the next change; an error would be shown until then."""
    name, pipeline = name_of(made), made.pipeline
    for n in (1, 2):
        with pipeline.transaction() as tx:
            tx.put("t", {"id": 1, "name": "a", "n": n})
        if n == 1:
            step(made, made.kept(name))

    def published() -> ViewRecord:
        return read_views(made.config.kafka, pipeline.topics)[name]

    killed = made.kept(name)
    committed = killed.batch.advance(killed.load()[0], newest(made), Report())
    made.shared.records.release()
    assert published().cut != committed.cut
    step(made, made.kept(name))
    assert published().cut == committed.cut == pipeline.cut

    made.kept(name).park(SinkError("TR-531", "planted"))
    assert "planted" in (published().error or "")
    step(made, made.kept(name))
    assert published().error is None
    assert made.agrees(name, "t") == 1


def test_a_view_follows_a_changed_shape(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "name": "old", "n": 1})
        tx.put("t", {"id": 2, "name": "old", "n": 2})
    step(made, view)
    pipeline.reshape("t", [column("id", "int4"), column("n", "int8"), column("extra", "numeric", 8, 2)])
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 2, "n": 2**40, "extra": b"\x64"}, "u")
    step(made, view)
    assert made.agrees(name, "t") == 2
    gone = {row["id"]: row["name"] for row in made.rows(name)}
    assert gone == {1: "old", 2: None}
    rebuild(made.shared, made.kept(name))
    assert made.agrees(name, "t") == 2
    assert set(made.rows(name)[0]) == {"id", "n", "extra"}
    with pipeline.transaction() as tx:
        tx.delete("t", 2)
    step(made, view)
    assert made.agrees(name, "t") == 1


def test_a_rebuild_ignores_what_precedes_a_truncate(made: Bench) -> None:
    """All records after the truncate have other types, also in the key; earlier ones must not matter."""
    name, pipeline = name_of(made), made.pipeline
    with pipeline.transaction() as tx:
        for i in range(20):
            tx.put("t", {"id": i, "name": "before", "n": i})
        tx.delete("t", 3)
    step(made, made.kept(name))
    pipeline.reshape("t", [column("id", "text"), column("n", "timestamp")])
    with pipeline.transaction() as tx:
        tx.truncate("t")
        tx.put("t", {"id": "a", "n": 1}, "r")
        tx.put("t", {"id": "b", "n": None}, "r")
        tx.delete("t", "b")
    view = made.kept(name)
    rebuild(made.shared, view)
    assert made.agrees(name, "t") == 1
    with pipeline.transaction() as tx:
        tx.put("t", {"id": "c", "n": 2})
        tx.delete("t", "a")
    step(made, view)
    assert made.agrees(name, "t") == 1


def test_every_type_arrives_as_it_was(request: pytest.FixtureRequest, bench: Make) -> None:
    suffix = uuid.uuid4().hex[:8]
    warehouse, search = f"w_{suffix}", f"s_{suffix}"
    views = {
        warehouse: View(table="public.t"),
        search: View(table="public.t", target="search"),
    }
    made = bench(views, request.getfixturevalue("search_url"))
    made.pipeline.table("t", VALUES, ("id", "a.`b"))
    with made.pipeline.transaction() as tx:
        tx.put("t", {**FULL})
        tx.put("t", {**EXTREMES})
        tx.put("t", {**FAR, "a.`b": "k" * 2000})
        tx.put("t", {"id": 4, "a.`b": "nulls"})
    kept = [made.kept(warehouse), made.kept(search)]
    step(made, *kept)
    assert made.agrees(warehouse, "t") == 4
    assert made.agrees(search, "t") == 4
    with made.pipeline.transaction() as tx:
        tx.put("t", {**FULL, "id": 5})
        tx.delete("t", 3, "k" * 2000)
        tx.put("t", {**EXTREMES, "a.`b": None or "", "tags": None})
    step(made, *kept)
    assert made.agrees(warehouse, "t") == 4
    assert made.agrees(search, "t") == 4


def test_a_rebuild_takes_over_from_the_live_generation(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    with pipeline.transaction() as tx:
        for i in range(100):
            tx.put("t", {"id": i, "name": "a", "n": i})
    step(made, view)
    with pipeline.transaction() as tx:
        for i in range(0, 100, 3):
            tx.delete("t", i)
    step(made, view)
    before = read_view(made.config, name).generation
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "name": "b", "n": 0})
    swapped = rebuild(made.shared, made.kept(name))
    assert swapped.generation > before
    assert made.agrees(name, "t") == 66
    with pipeline.transaction() as tx:
        tx.delete("t", 1)
    # The process that follows continues with the new generation.
    step(made, view)
    assert view.applied is not None
    assert view.applied.generation == swapped.generation
    assert made.agrees(name, "t") == 65
    again = rebuild(made.shared, made.kept(name))
    assert again.generation > swapped.generation
    assert made.agrees(name, "t") == 65
    lose_first_records(made.config.kafka.bootstrap, f"{made.config.kafka.prefix}.public.t")
    with pytest.raises(StateError, match="TR-424"):
        rebuild(made.shared, made.kept(name))
    assert read_view(made.config, name).generation == again.generation
    assert made.agrees(name, "t") == 65


def test_a_deleted_index_stops_its_view_until_it_is_rebuilt(request: pytest.FixtureRequest, bench: Make) -> None:
    url, name = request.getfixturevalue("search_url"), f"s_{uuid.uuid4().hex[:8]}"
    made = bench({name: View(table="public.t", target="search")}, url)
    made.pipeline.table("t", [column("id", "int4"), column("name", "text")], ("id",))
    view = made.kept(name)
    for number in (1, 2):
        with made.pipeline.transaction() as tx:
            tx.put("t", {"id": number, "name": "a"})
        step(made, view)
    assert made.config.search is not None
    client, index = connect(made.config.search), f"{alias_of(made.config.search, name)}-g1"
    try:
        client.indices.delete(index=index)
        made.pipeline.idle()
        with pytest.raises(RebuildError, match="TR-534"):
            step(made, view)
        with made.pipeline.transaction() as tx:
            tx.put("t", {"id": 3, "name": "a"})
        with pytest.raises(RebuildError, match="TR-534"):
            step(made, view)
        assert not client.indices.exists(index=index)
        rebuild(made.shared, made.kept(name))
        assert made.agrees(name, "t") == 3
    finally:
        client.close()


def lose_first_records(bootstrap: str, topic: str) -> None:
    """Delete the first record of each partition, as an operator's script or a shortened retention would."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for done in admin.incremental_alter_configs([changed]).values():
        done.result(30)
    count = len(admin.list_topics(topic, timeout=30).topics[topic].partitions)
    for deleted in admin.delete_records([TopicPartition(topic, number, 1) for number in range(count)]).values():
        deleted.result(30)


def test_a_view_of_an_empty_table_is_empty_until_rows_come(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    pipeline.idle()
    step(made, view)
    assert made.agrees(name, "t") == 0
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "name": "a", "n": 1})
    step(made, view)
    assert made.agrees(name, "t") == 1


def test_the_newest_cut_ignores_aborted_and_split_transactions(made: Bench) -> None:
    pipeline, cuts = made.pipeline, made.shared.cuts
    for _ in range(3):
        pipeline.idle()
        assert cuts.wait(reader(pipeline)).cut == pipeline.cut
        with pipeline.transaction():
            raise Aborted
        with pipeline.transaction(state=False) as tx:
            tx.put("t", {"id": 1, "name": "a", "n": 1})
        assert cuts.wait(reader(pipeline)).cut == pipeline.cut


def test_a_cut_of_another_server_is_refused(made: Bench) -> None:
    name, pipeline = name_of(made), made.pipeline
    view = made.kept(name)
    with pipeline.transaction() as tx:
        tx.put("t", {"id": 1, "name": "a", "n": 1})
    step(made, view)
    seen = made.shared.cuts.newest(view.declared)
    assert seen is not None
    from tailrace.spark_jobs.maintain.batch import Report

    other = replace(seen, cut=replace(seen.cut, system_identifier="other"))
    with pytest.raises(TailraceError, match="TR-525"):
        view.step(other, Report())


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        (View(query="SELECT 1 AS n"), "TR-541"),
        (View(table="t"), "TR-506"),
        (View(table="public.t", target="search"), "TR-511"),
        (View(table="public.none"), "TR-507"),
        (View(table="public.t", key=["n"]), "TR-509"),
    ],
)
def test_views_that_cannot_be_maintained_are_refused(bench: Make, declared: View, code: str, tmp_path: Path) -> None:
    made = bench({"v": declared})
    made.pipeline.table("t", [column("id", "int4"), column("n", "int4")], ("id",))
    made.pipeline.idle()
    with pytest.raises(TailraceError, match=code):
        step(made, made.kept("v"))
