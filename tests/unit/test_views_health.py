"""Health and metrics of the views job: lag, time left, parked views, and what `/readyz` says of them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tailrace.schemas.errors import SinkError, StateError
from tailrace.schemas.lsn import Position
from tailrace.schemas.metrics import VIEWS, exported
from tailrace.schemas.records.position import Cut
from tailrace.sinks.control.views_topic import Verified
from tailrace.spark_jobs.health import backlog
from tailrace.spark_jobs.health.backlog import Backlog, Lag, Reached
from tailrace.spark_jobs.health.health import JobHealth, ViewHealth
from tailrace.spark_jobs.health.metrics import metrics_of
from tailrace.spark_jobs.health.time_left import TimeLeft
from tailrace.spark_jobs.maintain.waiting import waits_for_tables

_TOPIC, _OTHER = "p.public.t", "p.public.u"


def cut(end: int, committed_s: float, lsn: int = 0, **other: list[int]) -> Cut:
    """Return a cut after `end` records, the newest of which was committed at `committed_s`."""
    offsets = {_TOPIC: [end, 5], **other}
    return Cut(Position(1, lsn or end, 0), lsn or end, int(committed_s * 1e6), "1", 1, offsets)


def test_lag_is_the_age_of_the_oldest_change_that_the_view_lacks() -> None:
    found = Backlog([_TOPIC])
    reached = Reached(cut(10, 100.0), 101_000)
    assert found.lag(None, 102.0) is None
    found.saw(cut(10, 100.0), 101.0, reached)
    assert found.lag(None, 102.0) is None, "the view has no position"
    assert found.lag(reached, 102.0) == Lag()
    # a change of a table that it does not read
    found.saw(replace(cut(10, 103.0, 500), offsets={_TOPIC: [10, 5], _OTHER: [7]}), 103.5, reached)
    assert found.lag(reached, 104.0) == Lag()
    found.saw(cut(12, 110.0, 600), 110.5, reached)
    found.saw(cut(19, 120.0, 900), 120.5, reached)
    assert found.lag(reached, 121.0) == Lag(11.0, 890, 9)
    half = Reached(cut(12, 110.0, 600), 110_000)
    assert found.lag(half, 121.0) == Lag(1.0, 300, 7)
    found.saw(cut(19, 120.0, 950), 122.0, half)
    assert found.lag(Reached(cut(19, 120.0), 122_000), 141.0) == Lag()
    # nobody has looked for 20 s
    assert found.lag(Reached(cut(19, 120.0), 122_000), 143.0) is None
    assert found.lag(half, 143.0) == Lag(23.0, 350, 7), "a change that is missing stays so"


def test_what_a_stopped_job_missed_counts_from_its_last_known_level() -> None:
    """The first look at the topics sees only the newest of the changes since then."""
    found, reached = Backlog([_TOPIC]), Reached(cut(10, 100.0), 200_000)
    found.saw(cut(90, 9_000.0), 9_001.0, reached)
    assert found.lag(reached, 9_001.0) == Lag(8_801.0, 80, 80)
    found.saw(cut(95, 9_010.0), 9_010.0, reached)
    assert found.lag(Reached(cut(90, 9_000.0), 9_001_000), 9_012.0) == Lag(2.0, 5, 5)


def test_a_long_backlog_is_bounded_and_does_not_shorten_the_lag() -> None:
    found, reached = Backlog([_TOPIC]), Reached(cut(10, 100.0), 100_000)
    found.saw(cut(10, 100.0), 100.0, reached)
    for n in range(3 * backlog._SAMPLES):  # noqa: SLF001
        found.saw(cut(11 + n, 101.0 + n), 101.0 + n, reached)
    assert len(found._cuts) == backlog._SAMPLES  # noqa: SLF001
    now = 101.0 + 3 * 720
    assert found.lag(reached, now) == Lag(2160.0, 2160, 2160)
    late = found.lag(Reached(cut(11 + 1500, 101.0 + 1500), 1_601_000), now)
    assert late is not None
    assert late.seconds >= now - 1602, "of the changes that it lacks, the oldest is at least so old"


def started(**views: ViewHealth) -> JobHealth:
    health = JobHealth()
    health.begin(views)
    return health


def scrape(health: JobHealth) -> dict[tuple[str, ...], float]:
    """Return all samples by name and labels, the view first."""
    families = text_string_to_metric_families(metrics_of(health).text().decode())
    order = ("view", "code", "stage", "le")
    return {
        (each.name, *(each.labels[label] for label in order if label in each.labels)): each.value
        for family in families
        for each in family.samples
    }


def test_every_metric_is_in_each_scrape_and_in_the_table() -> None:
    """Metrics without a sample have their help and kind, so that a name that exists nowhere is a fault."""
    health = JobHealth()
    view = ViewHealth("v", [_TOPIC], Reached(cut(1, 1.0), 1), {"TR-526": 1000}, health.seconds)
    for each in (health, started(v=view)):
        text = metrics_of(each).text().decode()
        described = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE tailrace_")}
        of_table = {f"tailrace_{name}{'_total' * (each.kind == 'counter')}" for name, each in VIEWS.items()}
        assert described - {"tailrace_view_batch_seconds_created"} == of_table
    view.worked(1, 0, {"read": 1})
    view.done = replace(view.done, at=1.0)
    health.begin({"v": view})
    health.looked_at = 1.0
    view.backlog.saw(cut(1, 1.0), time.time(), view.reached)
    view.park(StateError("TR-526", "it"), 1.0)
    view.verified = Verified(1000, 1, 1, 0)
    view.verify_failures["TR-551"] += 1
    view.wait(waits_for_tables("v", ["t"], ""))
    sampled = {name for name, *_ in scrape(health) if name.startswith("tailrace_")}
    assert sampled - {"tailrace_view_batch_seconds_created"} == set(exported(VIEWS))


def test_the_time_left_counts_from_the_last_known_level() -> None:
    now = time.time()
    limits = {"TR-526": 86_400_000, "TR-560": 21_600_000}
    view = ViewHealth("log", [_TOPIC], Reached(cut(10, 100.0), int((now - 3600) * 1000)), limits)
    found = scrape(started(log=view))
    stop = {code: found["tailrace_view_stop_timestamp_seconds", "log", code] - now for code in limits}
    assert {code: round(left / 3600) for code, left in stop.items()} == {"TR-526": 23, "TR-560": 5}
    assert found["tailrace_view_stop_limit_seconds", "log", "TR-560"] == 21_600
    view.advanced(Reached(cut(11, 101.0), int(now * 1000)), {"TR-526": 86_400_000})
    found = scrape(started(log=view))
    assert round(found["tailrace_view_stop_timestamp_seconds", "log", "TR-526"] - now) == 86_400
    assert ("tailrace_view_stop_timestamp_seconds", "log", "TR-560") not in found
    unknown = ViewHealth("log", [_TOPIC], None, limits)
    assert unknown.stops_at() == {}


def test_the_log_warns_of_a_stop_at_half_at_a_quarter_and_at_the_end() -> None:
    left, view = TimeLeft(), ViewHealth("v", [_TOPIC], Reached(cut(1, 1.0), 1_000_000), {"TR-526": 1_000_000})

    def levels(now: float) -> list[tuple[int, int]]:
        return [(each.level, each.seconds_left) for each in left.news({"v": view}, now)]

    assert levels(1400) == []
    assert levels(1501) == [(1, 499)]
    assert levels(1600) == [], "once"
    assert levels(1800) == [(2, 200)]
    view.advanced(Reached(cut(2, 2.0), 1_790_000), {"TR-526": 1_000_000})
    assert levels(1801) == []
    assert levels(2900) == [(3, -110)]
    assert levels(3000) == []


def test_a_parked_view_is_listed_until_it_advances_and_fails_readiness_only_if_all_are() -> None:
    parked, other = ViewHealth("a", [_TOPIC]), ViewHealth("b", [_TOPIC])
    health = started(a=parked, b=other)
    parked.park(SinkError("TR-513", "the catalog is unusable", detail="d"), 5.0)
    since = parked.parked.since if parked.parked else 0
    ready, body = health.ready()
    assert ready
    shown = body["views"]["a"]["parked"]
    assert (shown["code"], shown["message"], "retry_at" in shown) == ("TR-513", "the catalog is unusable", True)
    assert "parked" not in body["views"]["b"]
    json.dumps(body)
    parked.park(SinkError("TR-527", "a Spark job failed"), 10.0)
    found = scrape(health)
    assert found["tailrace_view_parked", "a", "TR-527"] == 1
    assert ("tailrace_view_parked", "a", "TR-513") not in found
    assert parked.parked is not None
    assert parked.parked.since == since
    assert found["tailrace_view_failures_total", "a", "TR-513"] == 1
    other.park(SinkError("TR-527", "a Spark job failed"), 10.0)
    assert health.ready()[1]["reason"] == "all views are parked"
    parked.advanced(Reached(cut(1, 1.0), 1), {})
    assert health.ready()[0]
    assert ("tailrace_view_parked", "a", "TR-527") not in scrape(health)


def test_a_waiting_view_has_its_reason_and_results_are_summed() -> None:
    health = JobHealth()
    view = ViewHealth("v", [_TOPIC], None, {}, health.seconds)
    health.begin({"v": view})
    view.wait(waits_for_tables("v", ["public.t"], "d"))
    assert scrape(health)["tailrace_view_waiting", "v", "TR-584"] == 1
    assert "public.t" in health.ready()[1]["views"]["v"]["waiting"]["message"]
    view.advanced(Reached(cut(3, 1.0), 1), {})
    view.worked(7, 1, {"read": 40, "apply": 700})
    view.worked(5, 0, {"read": 4000})
    found = scrape(health)
    got: dict[str, Any] = {name: found[f"tailrace_{name}", "v"] for name in ("view_batches_total", "view_rows_total")}
    assert got == {"view_batches_total": 2, "view_rows_total": 12}
    assert found["tailrace_view_late_rows_total", "v"] == 1
    assert found["tailrace_view_batch_seconds_sum", "v", "read"] == 4.04
    assert found["tailrace_view_batch_seconds_bucket", "v", "read", "0.05"] == 1
    assert found["tailrace_view_applied_lsn_bytes", "v"] == 3
    assert ("tailrace_view_waiting", "v", "TR-584") not in found


def test_a_job_is_live_while_its_loop_turns_and_not_ready_before_spark_has_started() -> None:
    health = JobHealth()
    health.turned_at -= 500
    assert health.live()[0], "Spark may need long to start"
    assert health.ready()[1]["reason"] == "Spark is starting"
    health.begin({})
    assert health.ready()[0]
    health.kafka_error = 'Kafka at "k:9092" cannot be read'
    assert health.ready()[1]["reason"] == health.kafka_error
    health.turned_at -= 500
    assert not health.live()[0]
    health.stop()
    assert health.live()[0], "the batches that still run may be long"
