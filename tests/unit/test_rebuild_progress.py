"""A rebuild's plan and its progress events."""

from __future__ import annotations

from tailrace.spark_jobs.jobs.plan import Plan, TopicSize
from tailrace.spark_jobs.jobs.progress import progress_event


def test_the_time_left_follows_from_the_share() -> None:
    assert progress_event("v", "read", 250, 0.25, 10.0) == {
        "event": "progress",
        "view": "v",
        "stage": "read",
        "rows": 250,
        "share": 0.25,
        "seconds_left": 30,
    }
    assert progress_event("v", "read", 0, 0.0, 10.0)["seconds_left"] is None
    assert progress_event("v", "read", 1, 0.0001, 10.0)["seconds_left"] is None
    assert progress_event("v", "write", 9, 1.0, 10.0)["seconds_left"] == 0


def test_a_plan_adds_up_topics_and_estimates_the_time() -> None:
    plan = Plan("v", "search", "0/1", (TopicSize("a", 24_000, 1_500_000), TopicSize("b", 12_000, 500_000)))
    assert (plan.records, plan.bytes, plan.seconds) == (36_000, 2_000_000, 18)
    assert plan.to_dict()["topics"][0] == {"topic": "a", "records": 24_000, "bytes": 1_500_000}
    assert list(plan.lines())[1] == "  a  at most 24000 records, some 1.5 MB"
