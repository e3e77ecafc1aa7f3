"""A slow batch delays only its own view and the views that read it; all others continue."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame

from tailrace.schemas.config.model import View
from tailrace.sinks.control.views_topic import read_views
from tailrace.sinks.read.views import read_view
from tailrace.sinks.target.lease import view_lease
from tailrace.spark_jobs.jobs.follow import follow
from tailrace.spark_jobs.maintain.base_tables import NAMESPACE
from tests.spark.conftest import Bench
from tests.spark.pipeline import column
from tests.support.daemon import wait_until

Make = Callable[..., Bench]

_JOIN = "SELECT s.id, l.label, s.n FROM public.small s JOIN public.large l ON l.id = s.id"
_ROWS = 20


class Followed:
    """A simple view, a join with another table, and a view over each of them, all under `follow`."""

    def __init__(self, make: Make) -> None:
        self.suffix = uuid.uuid4().hex[:8]
        light, joined = self.name("light"), self.name("joined")
        views = {
            joined: View(query=_JOIN, key=["id"]),
            light: View(table="public.small"),
            self.name("over_joined"): View(query=f"SELECT id, label, n FROM {joined}", key=["id"]),
            self.name("over_light"): View(query=f"SELECT n, count(*) AS rows FROM {light} GROUP BY n", key=["n"]),
        }
        self.bench = make(views)
        self.pipeline = self.bench.pipeline
        for table, other in (("small", column("n", "int4")), ("large", column("label", "text"))):
            self.pipeline.table(table, [column("id", "int4"), other], ("id",))

    def name(self, view: str) -> str:
        return f"{view}_{self.suffix}"

    @contextmanager
    def followed(self) -> Iterator[None]:
        stop = threading.Event()
        views = [self.bench.kept(name) for name in self.bench.config.views]
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(follow, self.bench.shared, views, stop, None)
            try:
                yield
            finally:
                stop.set()
                job.result()

    def at(self, view: str) -> int:
        """Return the LSN that a view has published as applied."""
        record = read_views(self.bench.config.kafka, self.pipeline.topics).get(self.name(view))
        return record.cut.flushed_lsn if record is not None and record.cut is not None else 0

    def wait(self, *views: str, seconds: float = 400) -> None:
        """Wait until views show the newest change; the limit is shorter than a batch's wait for a lease."""
        lsn = self.pipeline.lsn
        wait_until(lambda: all(self.at(view) >= lsn for view in views), seconds)

    def put(self, n: int, *, labels: Sequence[int] = ()) -> None:
        """Change all rows of the small table, and some of the large one."""
        with self.pipeline.transaction() as tx:
            for number in range(_ROWS):
                tx.put("small", {"id": number, "n": n})
            for number in labels:
                tx.put("large", {"id": number, "label": f"{n} of {number}"})

    def rows(self, view: str) -> list[dict[str, Any]]:
        return sorted(read_view(self.bench.config, self.name(view)).rows, key=lambda row: row.get("id", 0))

    def check(self) -> None:
        """Compare all views with the tables at the newest cut."""
        small, large = (self.pipeline.tables[name].rows for name in ("small", "large"))
        self.wait("light", "over_light", "joined", "over_joined")
        self.bench.agrees(self.name("light"), "small")
        joined = [{**large[key], **small[key]} for key in sorted(small) if key in large]
        assert self.rows("joined") == self.rows("over_joined") == joined
        counts = {row["n"]: row["rows"] for row in self.rows("over_light")}
        assert counts == {n: [row["n"] for row in small.values()].count(n) for n in {r["n"] for r in small.values()}}


def test_a_waiting_batch_delays_no_unrelated_view(bench: Make) -> None:
    """Another process holds the lease of the large table's base table for a long time."""
    made = Followed(bench)
    made.put(0, labels=range(_ROWS))
    with made.followed():
        made.check()
        before = made.at("joined")
        lease = view_lease(made.bench.config, f"{NAMESPACE}.{made.pipeline.tables['large'].topic}")
        with lease.held(60) as mine:
            assert mine
            made.put(1, labels=[3])
            for number in (2, 3, 4):
                made.put(number)
                made.wait("light", "over_light", seconds=200)
                assert made.at("joined") == made.at("over_joined") == before
        made.check()
        made.put(5, labels=[4])
        made.check()


def test_a_slow_read_delays_no_other_read(bench: Make) -> None:
    """Reads of the same data wait for the first one; reads of other data do not."""
    made = Followed(bench)
    made.put(0, labels=[1])
    records, topic = made.bench.shared.records, made.pipeline.tables["small"].topic
    begun, go_on = threading.Event(), threading.Event()

    def large() -> DataFrame:
        begun.set()
        assert go_on.wait(120)
        return records.session.range(1)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(records.once, "large", large)
        try:
            assert begun.wait(60)
            second = pool.submit(records.once, "large", lambda: records.session.range(2))
            with ThreadPoolExecutor(1) as other:
                span = other.submit(records.latest, topic, [], made.pipeline.offsets[topic]).result(60)
            assert span is not None
            assert span.facts.rows == _ROWS
            assert not second.done()
        finally:
            go_on.set()
        assert first.result() == second.result()
    records.release()
