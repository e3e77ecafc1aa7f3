"""When views are compared: each once in the interval, spread over it, in no more than a share of the time."""

from __future__ import annotations

from collections import defaultdict

from tailrace.spark_jobs.jobs.verifying import Schedule


def run(schedule: Schedule, views: dict[str, float | None], lasts_s: float, seconds: int) -> dict[str, list[float]]:
    """Return when each view was compared in a time that is tried each second; each comparison lasts as long."""
    began, busy_until = defaultdict[str, list[float]](list), 0.0
    for second in range(seconds):
        now = schedule.began + second
        if now < busy_until or (name := schedule.choose(views, now)) is None:
            continue
        busy_until = now + lasts_s
        schedule.done(name, now, busy_until, well=True)
        began[name].append(second)
    return began


def test_each_view_is_compared_once_in_the_interval_and_they_are_spread_over_it() -> None:
    found = run(Schedule(3600, 0.1, 3, 1e6), {"a": None, "b": None, "c": None}, 5, 10_000)
    assert found == {"a": [0, 3600, 7200], "b": [1200, 4800, 8400], "c": [2400, 6000, 9600]}


def test_long_comparisons_are_rarer_than_the_interval_says() -> None:
    found = run(Schedule(600, 0.1, 2, 1e6), {"a": None, "b": None}, 300, 40_000)
    # the first begins with no time spent
    assert sum(map(len, found.values())) * 300 <= 0.1 * 40_000 + 300
    assert {len(each) for each in found.values()} == {7}


def test_what_an_earlier_job_has_compared_waits_for_its_time() -> None:
    found = run(Schedule(3600, 0.1, 2, 1e6), {"a": 1e6 - 600, "b": 1e6 - 7200}, 5, 4000)
    assert found == {"b": [0, 3600], "a": [3000]} or found == {"b": [0], "a": [3000]}


def test_a_failed_comparison_is_repeated_sooner() -> None:
    schedule = Schedule(3600, 0.1, 1, 1e6)
    assert schedule.choose({"a": None}, 1e6) == "a"
    schedule.done("a", 1e6, 1e6 + 1, well=False)
    schedule.next_at = 0
    assert schedule.choose({"a": None}, 1e6 + 599) is None
    assert schedule.choose({"a": None}, 1e6 + 600) == "a"
