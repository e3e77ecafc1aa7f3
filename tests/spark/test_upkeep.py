"""Compaction and expiry leave the applied state and all that readers, slow views and rebuilds need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tailrace.schemas.lsn import format_lsn
from tailrace.sinks.iceberg.maintenance import PINNED
from tailrace.sinks.iceberg.target import IcebergTarget
from tailrace.spark_jobs.jobs.swap import held
from tailrace.spark_jobs.jobs.verify import verify
from tailrace.spark_jobs.maintain.base_tables import base_name
from tailrace.spark_jobs.maintain.batch import Report
from tailrace.spark_jobs.maintain.kept_view import KeptView
from tailrace.spark_jobs.maintain.upkeep import Upkeep
from tests.spark.conftest import Bench, newest, step
from tests.spark.shop import Shop

Make = Callable[..., Bench]


def target(view: KeptView) -> IcebergTarget:
    found = view.batch.target
    assert isinstance(found, IcebergTarget)
    return found


def tidy(shop: Shop, keep_s: int) -> None:
    """Maintain every table that has three commits, as that many rounds of `follow` would."""
    shared = shop.bench.shared
    assert shared.config.warehouse is not None
    changed = shared.config.warehouse.model_copy(update={"compact_after": 3, "upkeep_share": 1.0, "keep_s": keep_s})
    upkeep = Upkeep(replace(shared, config=shared.config.model_copy(update={"warehouse": changed})))
    for _ in range(len(shared.views) + len(shared.bases)):
        upkeep.turn(threading.Event())


def commit(shop: Shop, times: int, *views: KeptView) -> None:
    for _ in range(times):
        order = min(shop.model.tables["orders"].values(), key=lambda row: row["id"])
        changes = [shop.model.put("orders", order | {"amount": (order["amount"] or 0) + 1})]
        shop.commit([*changes, *shop.model.change(), *shop.model.fill(1)])
        step(shop.bench, *views)


def data_files(shop: Shop, view: KeptView) -> int:
    sql = f"SELECT count(*) FROM {target(view).table()}.files WHERE content = 0"
    return int(shop.bench.shared.session.sql(sql).collect()[0][0])


def assert_compared_after_expiry(shop: Shop, view: KeptView, *others: KeptView) -> None:
    """Compare a view's states as of now after later ones have made upkeep expire all that nothing needs."""

    @contextmanager
    def late(view: KeptView) -> Iterator[None]:
        with held(view):
            yield
        commit(shop, 3, view, *others)
        tidy(shop, 0)

    before = target(view).live()
    assert before is not None
    compared = list(verify(shop.bench.shared, view, 0, hold=late))
    shop.bench.shared.records.release()
    assert {each["cut"] for each in compared} == {format_lsn(before.cut.flushed_lsn)}
    assert all(each["equal"] for each in compared)


def test_upkeep_leaves_every_state_that_is_still_needed(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.spark_jobs.maintain.upkeep._BASE_KEEP_MS", 0)
    shop = Shop(bench, ["inner", "left"])
    shop.commit(shop.model.fill())
    shop.step()
    quick, slow = shop.views.values()
    commit(shop, 4, quick)
    base = shop.bench.shared.bases[base_name(shop.bench.pipeline.topics.table("public", "orders"), commits=False)]
    states = target(quick).snapshots()
    before, files = target(quick).live(), data_files(shop, quick)
    tidy(shop, 3600)
    assert data_files(shop, quick) < files
    assert target(quick).live() == before
    shop.check("inner")
    assert [one for one in target(quick).snapshots() if not one.rewrite] == states, "a reader may ask for each"
    assert len(target(base).snapshots()) > 4, "the slow view needs the state that it was made from"
    # A state is read from its rewrite, if there is one.
    assert before is not None
    assert target(quick).snapshot_at(before.cut) == target(quick).snapshots()[0].id != before.snapshot_id

    commit(shop, 3, quick)
    tidy(shop, 0)
    after = target(quick).live()
    assert after is not None
    assert [one.cut for one in target(quick).snapshots() if one.cut] == [after.cut]
    assert PINNED in target(quick).tags()
    report = Report()
    assert slow.step(newest(shop.bench), report)
    assert not report.replaced
    shop.check()

    # A slow rebuild: its first read is many batches old when it catches up.
    columns, key = slow.batch.layout()
    generation = target(slow).stage(columns, key)
    staged = slow.batch.advance(None, newest(shop.bench), Report(), generation=generation)
    commit(shop, 3, quick, slow)
    tidy(shop, 0)
    assert len(target(base).snapshots()) > 3
    assert slow.batch.advance(staged, newest(shop.bench), Report(), generation=generation).generation == generation
    target(slow).swap(generation, key)
    slow.forget()
    commit(shop, 3, quick, slow)
    shop.check()
    tidy(shop, 0)
    assert target(base).tags().keys() == {PINNED}

    assert_compared_after_expiry(shop, quick, slow)
    tidy(shop, 0)
    assert target(quick).tags().keys() == {PINNED}
    assert target(base).tags().keys() == {PINNED}
    assert sum(one.cut is not None for one in target(base).snapshots()) == 1
    commit(shop, 1, quick, slow)
    shop.check()
