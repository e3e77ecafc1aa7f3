"""Small batches of query views look up the rows that they reach, from local files that may be lost at any time."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type

from tailrace.schemas.config.model import View
from tailrace.sinks.iceberg.direct.writers import index_folder
from tailrace.spark_jobs.lookup.known_tables import KnownTables, sums_of_view
from tailrace.spark_jobs.lookup.row_form import RowForm
from tailrace.spark_jobs.lookup.table_rows import Log, NotKnown, TableRows
from tailrace.spark_jobs.maintain.group_sums import GroupSums, add
from tailrace.spark_jobs.maintain.plan_source import TooLarge
from tailrace.spark_jobs.maintain.query_batch import QueryBatch
from tailrace.spark_jobs.maintain.reached import Reached
from tailrace.spark_jobs.maintain.step_plans import StepPlans
from tests.spark.conftest import ROUNDS, Bench, no_scan, step
from tests.spark.pipeline import column
from tests.spark.shop import Shop

Make = Callable[..., Bench]

_NAMES = ("inner", "left", "group", "number", "anti", "nested_rows")


def _filled(bench: Make, *names: str, seed: int = 5) -> Shop:
    shop = Shop(bench, names, seed=seed)
    shop.commit(shop.model.fill())
    shop.step()
    return shop


def _change(shop: Shop) -> None:
    """Commit random changes, but no truncate, after which the whole table is a change."""
    changes = shop.model.change()
    while any(kind == "truncate" for kind, _, _ in changes):
        shop.commit(changes)
        shop.step()
        changes = shop.model.change()
    shop.commit(changes)


def _folder(shop: Shop) -> Path:
    assert shop.bench.config.warehouse is not None
    folder = index_folder(shop.bench.config.warehouse)
    assert folder is not None
    return folder / ".rows"


def _stores(shop: Shop) -> list[Path]:
    """Return the folders of the shop's tables, and of the sums of its views' groups."""
    known = shop.bench.shared.known
    return [_folder(shop) / name for name in known._tables]  # noqa: SLF001


def test_small_batches_read_no_table(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = _filled(bench, *_NAMES)
    for _ in range(ROUNDS):
        _change(shop)
        with monkeypatch.context() as patched:
            no_scan(patched)
            shop.step()
        shop.check()


def test_steps_are_planned_once_for_tables_that_change_together(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"sums_{uuid.uuid4().hex[:8]}"
    query = "SELECT t.part, count(*) AS n, sum(t.price) AS price FROM public.t t GROUP BY t.part"
    made = bench({name: View(query=query, key=["part"])})
    made.pipeline.table("t", [column("id", "int4"), column("part", "text"), column("price", "int4")], ("id",))
    planned, ran, plan, changes = list[StepPlans](), list[StepPlans](), StepPlans.__init__, StepPlans.changes

    def planning(self: StepPlans, *arguments: Any) -> None:
        planned.append(self)
        plan(self, *arguments)

    def running(self: StepPlans) -> Any:
        ran.append(self)
        return changes(self)

    monkeypatch.setattr(StepPlans, "__init__", planning)
    monkeypatch.setattr(StepPlans, "changes", running)
    view, rows = made.kept(name), dict[int, tuple[str, int]]()
    for number in range(5):
        with made.pipeline.transaction() as tx:
            for id in range(number, number + 3):
                rows[id] = "xyz"[(id + number) % 3], id * 10 + number
                tx.put("t", {"id": id, "part": rows[id][0], "price": rows[id][1]})
        step(made, view)
        parts = {part for part, _ in rows.values()}
        prices = {part: [price for of, price in rows.values() if of == part] for part in parts}
        found = {row["part"]: (row["n"], row["price"]) for row in made.rows(name)}
        assert found == {part: (len(each), sum(each)) for part, each in prices.items()}
    # in the second batch, the sums of the groups are computed, by which all others bring them forward
    assert len(planned) == 2
    assert ran == [planned[0], *planned[1:] * 3]


def test_steps_run_again_for_two_tables_that_change_together(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = _filled(bench, "inner", "left", "one_to_many", "having")
    for _ in range(2):
        shop.commit(shop.model.fill(1))
        shop.step()
    monkeypatch.setattr(Reached, "_run", lambda *_: pytest.fail("the steps are planned anew"))
    shop.commit(shop.model.fill(1))
    shop.step()
    shop.check()


def test_groups_are_brought_forward_by_sums(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    # this seed truncates no table in its first 40 changes
    shop = _filled(bench, "having", "sums", "sums_of_pairs", seed=6)
    around, added = GroupSums.around, set[str]()

    def counted(self: GroupSums, *arguments: Any) -> Any:
        added.add(self.view)
        return around(self, *arguments)

    monkeypatch.setattr(GroupSums, "around", counted)
    for _ in range(2):
        added.clear()
        for _ in range(15):
            _change(shop)
            shop.step()
            shop.check()
            if len(added) == 3:
                break
        assert len(added) == 3
        no_scan(monkeypatch)


def test_sums_that_a_batch_did_not_bring_forward_are_not_used(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may end between a commit and the write of the sums, and others may maintain the view meanwhile."""
    shop = _filled(bench, "sums", "sums_of_pairs")
    for _ in range(3):
        _change(shop)
        shop.step()
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(GroupSums, "committed", lambda *_: None)
            _change(shop)
            shop.step()
        for _ in range(3):
            _change(shop)
            shop.step()
            shop.check()


def test_wrong_sums_are_computed_again_after_a_repair(bench: Make) -> None:
    shop = _filled(bench, "sums", seed=6)
    for _ in range(3):
        _change(shop)
        shop.step()
    config, known = shop.bench.config, shop.bench.shared.known
    assert shop.bench.pipeline.cut is not None
    log = Log.of(shop.bench.pipeline.cut)
    rows = known._tables[sums_of_view(config.warehouse, shop.called("sums"))]  # noqa: SLF001
    there = rows.moment(log)
    assert there is not None
    columns = {name: pa.array([1], kind) for name, kind in rows.form.columns.items() if name[0] != "u"}
    units = {name: pa.array([value], rows.form.columns[name]) for name, value in (("u0", "a"), ("u1", 1))}
    rows.advance(pa.table({**units, **columns}), [False], *there)
    batch = shop.views["sums"].batch
    assert isinstance(batch, QueryBatch)
    batch.doubt_lookups()
    for _ in range(6):
        _change(shop)
        shop.step()
        shop.check()


def test_a_change_that_a_query_does_not_read_costs_nothing(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = _filled(bench, "inner", "having")
    for _ in range(3):
        shop.commit(shop.model.fill(1))
        shop.step()
    no_scan(monkeypatch)
    with monkeypatch.context() as patched:
        for name in ("__init__", "result", "changes"):
            patched.setattr(StepPlans, name, lambda *_: pytest.fail("the steps of a query are run"))
        patched.setattr(Reached, "_run", lambda *_: pytest.fail("the steps of a query are run"))
        for segment in (71, 72):
            shop.commit([shop.model.put("customer", {**row, "segment": segment}) for row in _customers(shop)])
            shop.step()
            shop.check()
    shop.commit(shop.model.fill(1))
    shop.step()
    shop.check()


def _customers(shop: Shop) -> list[dict[str, Any]]:
    return list(shop.model.tables["customer"].values())


_FORM = RowForm(
    {"u0": pa.string(), "n": pa.int64(), "c0": pa.int64(), "s0": pa.decimal128(38, 2), "c1": pa.int64()}, ("u0",)
)


def _sums(*rows: tuple[Any, ...]) -> pa.Table:
    """Make rows of sums, with a sign if they have one more value."""
    schema = _FORM.schema
    if rows and len(rows[0]) > len(schema):
        schema = schema.append(pa.field("sign", pa.int32()))
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _added(before: pa.Table, *added: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    of = _sums(*added)
    units = of.group_by(["u0"]).aggregate([])
    before = before.filter(pc.is_in(before.column("u0"), units.column("u0").combine_chunks()))
    return sorted((tuple(row.values()) for row in add(before, units, of, _FORM).to_pylist()), key=repr)


def test_sums_are_added_exactly() -> None:
    most, least = Decimal("9" * 36 + ".99"), Decimal("-" + "9" * 36 + ".99")
    there = _sums(("a", 2, 1, most, 2), (None, 1, 0, None, 0))
    assert _added(there, ("a", 1, 1, least, 0, 1), ("a", 1, 1, Decimal("-0.01"), 1, -1)) == [
        ("a", 2, 1, Decimal("0.01"), 1)
    ]
    assert _added(there, (None, 1, 1, Decimal(3), 0, 1), ("b", 1, 0, None, 1, 1)) == [
        ("b", 1, 0, None, 1),
        (None, 2, 1, Decimal(3), 0),
    ]
    assert _added(there, ("a", 2, 1, most, 2, -1)) == [("a", 0, 0, None, 0)]
    assert _added(_sums(), ("a", 1, 1, Decimal(1), 1, 1)) == [("a", 1, 1, Decimal(1), 1)]


@pytest.mark.parametrize(
    ("there", "added"),
    [
        (("a", 1, 1, Decimal(1), 1), ("a", 2, 1, Decimal(1), 1, -1)),
        (("a", 1, 1, Decimal(1), 1), ("b", 1, 1, Decimal(1), 1, -1)),
        (("a", 1, 0, None, 1), ("a", 1, 1, Decimal(1), 1, -1)),
        (("a", 1, 1, None, 1), ("a", 1, 1, Decimal(1), 1, 1)),
        (("a", 1, 1, Decimal("9" * 36), 1), ("a", 1, 1, Decimal("9" * 36), 1, 1)),
    ],
)
def test_sums_that_cannot_be_right_are_not_used(there: tuple[Any, ...], added: tuple[Any, ...]) -> None:
    with pytest.raises(NotKnown):
        _added(_sums(there), added)


def test_rows_that_do_not_fit_a_plan_are_planned_for(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = _filled(bench, "left", "group")

    def full(*_: Any) -> None:
        raise TooLarge

    monkeypatch.setattr(StepPlans, "fill", full)
    no_scan(monkeypatch)
    _change(shop)
    shop.step()
    shop.check()


def test_a_view_that_lags_looks_up_its_own_old_state(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = _filled(bench, "inner", "group")
    for _ in range(2):
        _change(shop)
        shop.step()
    no_scan(monkeypatch)
    for number in range(6):
        _change(shop)
        step(shop.bench, shop.views["inner"])
        shop.check("inner")
        if number % 3 == 2:
            shop.step()
            shop.check()


def test_with_lookups_off_a_batch_reads_tables(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = _filled(bench, "inner")
    shop.bench.config.spark.__dict__["lookups"] = False  # a frozen model, which all views of the bench share
    shop.commit(shop.model.fill(2))
    with monkeypatch.context() as patched:
        no_scan(patched)
        with pytest.raises(AssertionError, match="a whole table is read"):
            shop.step()
    shop.step()
    shop.check()


def _lose(shop: Shop) -> None:
    shop.bench.shared.known.close()
    for folder in _stores(shop):
        shutil.rmtree(folder)


def _cut_off(shop: Shop) -> None:
    shop.bench.shared.known.close()
    for file in (file for folder in _stores(shop) for file in folder.iterdir() if file.is_file()):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _lose_at_work(shop: Shop) -> None:
    """Delete the files while they are open."""
    for folder in _stores(shop):
        shutil.rmtree(folder)


def _go_back(shop: Shop) -> None:
    """Put back the files of some batches ago, as a restored backup does."""
    known = shop.bench.shared.known
    known.close()
    for folder in _stores(shop):
        shutil.copytree(folder, folder.with_name(f"{folder.name}.old"))
    for _ in range(2):
        _change(shop)
        shop.step()
    known.close()
    for folder in _stores(shop):
        if not folder.name.endswith(".old"):
            shutil.rmtree(folder)
            folder.with_name(f"{folder.name}.old").rename(folder)


def test_lost_rows_cost_only_time(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = _filled(bench, "inner", "group", "sums")
    shop.commit(shop.model.fill(2))
    shop.step()
    for damage in (_lose, _cut_off, _go_back, _lose_at_work):
        damage(shop)
        for _ in range(2):
            _change(shop)
            shop.step()
            shop.check()
        shop.bench.shared.known.close()
        for _ in range(2):
            _change(shop)
            shop.step()
        _change(shop)
        with monkeypatch.context() as patched:
            no_scan(patched)
            shop.step()
        shop.check()


def test_rows_that_another_process_has_are_not_used(bench: Make) -> None:
    shop = _filled(bench, "inner")
    _change(shop)
    shop.step()
    known = shop.bench.shared.known
    forms = {topic: rows.form for topic, rows in known._tables.items()}  # noqa: SLF001
    known.close()
    assert shop.bench.pipeline.cut is not None
    log = Log.of(shop.bench.pipeline.cut)
    others = [TableRows(_folder(shop) / topic, form) for topic, form in forms.items()]
    try:
        for other in others:
            other.fill([], (0,), log, 0)
        for _ in range(2):
            _change(shop)
            shop.step()
            shop.check()
    finally:
        for other in others:
            other.close()
    _change(shop)
    shop.step()
    shop.check()


@pytest.mark.parametrize("shown", ["o.tags", "o.n"])
def test_a_query_of_a_nested_column_reads_its_tables(bench: Make, monkeypatch: pytest.MonkeyPatch, shown: str) -> None:
    """Other queries of the same table look up rows, which have all other columns."""
    query = f"SELECT o.id, {shown} AS shown, c.name FROM public.o o JOIN public.c c ON c.id = o.c_id"
    name = f"nested_{shown[2:]}"
    made = bench({name: View(query=query, key=["id"])})
    made.pipeline.table(
        "o", [column("id", "int4"), column("c_id", "int4"), column("tags", "_text"), column("n", "int4")], ("id",)
    )
    made.pipeline.table("c", [column("id", "int4"), column("name", "text")], ("id",))
    view = made.kept(name)
    for number in range(3):
        with made.pipeline.transaction() as tx:
            tx.put("c", {"id": 1, "name": f"c{number}"})
            tx.put("o", {"id": number, "c_id": 1, "tags": [f"t{number}", None], "n": number})
        with monkeypatch.context() as patched:
            if number and shown == "o.n":
                no_scan(patched)
            step(made, view)
    rows = sorted((row["id"], row["shown"], row["name"]) for row in made.rows(name))
    assert rows == [(n, [f"t{n}", None] if shown == "o.tags" else n, "c2") for n in range(3)]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_values_come_back_to_spark_as_they_were(spark: SparkSession, zone: str) -> None:
    """Whatever the session's time zone; Spark prints both sides."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    values = {
        "at": "timestamp'2026-03-08 02:30:00.123456Z'",
        "before_zones": "timestamp'1883-11-18 12:03:58Z'",
        "first": "timestamp'0001-01-01 00:00:00Z'",
        "last": "timestamp'294247-01-10 04:00:54.775807Z'",
        "local": "timestamp_ntz'2026-03-08 02:30:00'",
        "julian": "date'1500-02-28'",
        "number": "cast('1.50' AS decimal(38, 10))",
        "bytes": "X'00FF'",
        "yes": "true",
        "double": "double('NaN')",
        "single": "float('-0.0')",
        "small": "cast(3 AS smallint)",
        "tiny": "cast(4 AS tinyint)",
        "text": "'x'",
    }
    given = ", ".join(f"{value} AS {name}" for name, value in values.items())
    nulls = ", ".join("NULL" for _ in values)
    rows = session.sql(f"SELECT 1L AS id, {given} UNION ALL SELECT 2L, {nulls}")
    form = RowForm({field.name: to_arrow_type(field.dataType) for field in rows.schema}, ("id",))
    back = session.createDataFrame(form.decode(form.encode(form.aligned(rows.toArrow()))), rows.schema)
    printed = [
        *("id", *(f"unix_micros({name})" for name in ("at", "before_zones", "first", "last"))),
        *("hex(bytes)", *(f"cast({name} AS string)" for name in values if name != "bytes")),
    ]
    mine, its = (sorted(map(tuple, each.selectExpr(*printed).collect())) for each in (rows, back))
    assert mine == its


def test_rows_of_other_columns_are_not_used(bench: Make) -> None:
    known = KnownTables()
    shop = _filled(bench, "inner")
    shapes = shop.bench.shared.records.shapes(shop.bench.pipeline.tables["orders"].topic)
    first = known.of(shop.bench.config.warehouse, "t", shapes)
    assert known.of(shop.bench.config.warehouse, "t", shapes) is first
    other = shop.bench.shared.records.shapes(shop.bench.pipeline.tables["customer"].topic)
    assert known.of(shop.bench.config.warehouse, "t", other) is not first
    known.close()
