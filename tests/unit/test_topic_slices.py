"""The number of tasks that read a span of a topic."""

from __future__ import annotations

import pytest

from tailrace.spark_jobs.topics.source import slices


@pytest.mark.parametrize(
    ("records", "tasks"),
    [(24_999, 0), (100_000, 4), (200_000, 8), (1_600_000, 8), (5_000_000, 25)],
    ids=["too few for a task", "four", "four a core", "no more of them", "none so long that others wait for its core"],
)
def test_a_span_has_tasks_for_all_cores_and_none_is_long(records: int, tasks: int) -> None:
    assert slices(records, 2) == tasks
