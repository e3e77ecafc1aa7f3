"""Rows later than their view's lateness are in their windows, counted, and listed by key and position."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.schemas.config.model import View
from tailrace.schemas.errors import TailraceError
from tailrace.spark_jobs.maintain.batch import Report
from tests.spark.conftest import Bench, newest, step
from tests.spark.pipeline import column

_MINUTE = 60_000_000


def listed(bench: Bench, name: str) -> list[tuple[Any, ...]]:
    assert bench.config.warehouse is not None
    table = bench.shared.session.table(f"{bench.config.warehouse.catalog}._late.{name}")
    rows = table.select("table", "key", "column", "commit_lsn", "ordinal").collect()
    return sorted(map(tuple, rows))


def test_late_rows_are_counted_and_listed(bench: Callable[..., Bench]) -> None:
    name = f"minutes_{uuid.uuid4().hex[:8]}"
    query = "SELECT window.start AS start, count(*) AS n FROM public.orders GROUP BY window(at, '10 minutes')"
    made = bench({name: View(query=query, key=["start"], lateness_s=1200)})
    pipeline, view = made.pipeline, made.kept(name)
    pipeline.table("orders", [column("id", "int4"), column("at", "timestamp"), column("n", "int4")], ("id",))
    with pipeline.transaction() as tx:
        tx.put("orders", {"id": 1, "at": 10 * _MINUTE})
        tx.put("orders", {"id": 2, "at": 100 * _MINUTE})
    step(made, view)
    before = view.applied
    with pipeline.transaction() as tx:
        tx.put("orders", {"id": 4, "at": 81 * _MINUTE})
        tx.put("orders", {"id": 5, "at": 200 * _MINUTE})
        # read again: not a change
        tx.put("orders", {"id": 1, "at": 10 * _MINUTE}, "r")
        tx.put("orders", {"id": 6, "at": 30 * _MINUTE})
        tx.put("orders", {"id": 6, "at": 31 * _MINUTE}, "u")
        tx.put("orders", {"id": 7, "at": 5 * _MINUTE})
        tx.delete("orders", 7)
    report = Report()
    assert view.step(newest(made), report)
    assert report.late == 1
    assert listed(made, name) == [("public.orders", '{"id":6}', "at", pipeline.lsn, 4)]
    shown = {row["start"] // _MINUTE: row["n"] for row in made.rows(name)}
    assert shown == {10: 1, 30: 1, 80: 1, 100: 1, 200: 1}

    # Killed before it could publish: the same batch again.
    again = made.kept(name)
    assert before is not None
    assert again.batch.target.live() is not None
    again.batch.advance(before, newest(made), Report())
    assert len(listed(made, name)) == 1
    with pipeline.transaction() as tx:
        tx.put("orders", {"id": 8, "at": 179 * _MINUTE})
        tx.put("orders", {"id": 1, "at": 10 * _MINUTE, "n": 1}, "u")
    report = Report()
    assert view.step(newest(made), report)
    assert report.late == 2
    assert [key for _, key, *_ in listed(made, name)] == ['{"id":1}', '{"id":6}', '{"id":8}']
    made.shared.records.release()


def test_a_fast_clock_makes_no_row_of_another_device_late(bench: Callable[..., Bench]) -> None:
    name = f"minutes_{uuid.uuid4().hex[:8]}"
    query = "SELECT window.start AS start, count(*) AS n FROM public.orders GROUP BY window(at, '10 minutes')"
    made = bench({name: View(query=query, key=["start"], lateness_s=600, lateness_by=["Device"])})
    pipeline, view = made.pipeline, made.kept(name)
    columns = [column("id", "int4"), column("at", "timestamp"), column("Device", "text")]
    pipeline.table("orders", columns, ("id",))

    def put(*rows: tuple[int, int, str | None]) -> int:
        with pipeline.transaction() as tx:
            for number, minute, device in rows:
                tx.put("orders", {"id": number, "at": minute * _MINUTE, "Device": device})
        report = Report()
        assert view.step(newest(made), report)
        made.shared.records.release()
        return report.late

    assert put((1, 100, "right"), (2, 100_000, "fast"), (3, 50, None)) == 0
    # a device without earlier rows has none that it could be later than
    assert put((4, 95, "right"), (5, 90, "right"), (6, 41, None), (7, 0, "new")) == 0
    assert put((8, 89, "right"), (9, 99_000, "fast"), (10, 39, None), (11, 100, "new")) == 3
    assert sorted(key for _, key, *_ in listed(made, name)) == ['{"id":10}', '{"id":8}', '{"id":9}']
    # it moves to the device whose clock is fast
    assert put((11, 100, "fast")) == 1
    assert len(listed(made, name)) == 4


def test_lateness_without_an_event_time_is_refused(bench: Callable[..., Bench]) -> None:
    made = bench({"v": View(query="SELECT id, n FROM public.orders", key=["id"], lateness_s=1)})
    made.pipeline.table("orders", [column("id", "int4"), column("n", "int4")], ("id",))
    made.pipeline.idle()
    with pytest.raises(TailraceError, match="TR-569"):
        step(made, made.kept("v"))
    with pytest.raises(ValidationError, match="lateness_s"):
        View(table="public.orders", lateness_s=1)
    with pytest.raises(ValidationError, match="lateness_by"):
        View(query="SELECT id FROM public.orders", key=["id"], lateness_by=["device"])


def test_lateness_by_a_column_that_the_table_lacks_is_refused(bench: Callable[..., Bench]) -> None:
    query = "SELECT window.start AS start, count(*) AS n FROM public.orders GROUP BY window(at, '10 minutes')"
    made = bench({"v": View(query=query, key=["start"], lateness_s=1, lateness_by=["id", "device"])})
    made.pipeline.table("orders", [column("id", "int4"), column("at", "timestamp")], ("id",))
    made.pipeline.idle()
    with pytest.raises(TailraceError, match=r'TR-569.*public.orders has no column "device"'):
        step(made, made.kept("v"))
