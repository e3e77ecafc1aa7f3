"""What `tailrace verify --repair` does about each kind of difference, and the lease under which a view is repaired."""

from __future__ import annotations

import threading
from pathlib import Path

import orjson
import pytest

from tailrace.cdc.operations.repair import plan_of
from tailrace.cdc.operations.verify_result import Result
from tailrace.sinks.target.lease import Lease
from tailrace.snapshot.verify.comparison import COMPARED, Difference, Outcome


def differing(*keys: list[str], more: int = 0, left: bytes | None = b"[]") -> Outcome:
    found = tuple(Difference(orjson.dumps(key), left, b"[]", 1, 1) for key in keys)
    return Outcome(COMPARED[0], 9, 9, len(keys) + more, found)


def of_table(topic: Outcome, view: Outcome) -> Result:
    return Result("v", "public.t", ("n", 'a"b', "c"), (1, 2), 0x100, 0x200, (topic, view), 1.0)


def computed(table: str | None, count: int) -> Result:
    return Result("q", table, ("id",), (0,), None, 0x200, (Outcome("content and view at C", 9, 9, count, ()),), 1.0)


def test_nothing_is_planned_where_nothing_differs() -> None:
    assert plan_of([of_table(differing(), differing()), computed(None, 0), computed("public.t", 0)]) is None


def test_views_and_base_tables_are_repaired_by_name() -> None:
    plan = plan_of([of_table(differing(), differing(["1", "2"])), computed("public.t", 3), computed(None, 4)])
    assert plan is not None
    assert (plan.tables, plan.views, plan.bases) == ((), {"v": 1, "q": 4}, {"q": {"public.t": 3}})
    assert plan.names == ["v", "q"]
    assert [text.partition(";")[0] for text in plan.words()] == [
        "v: 1 keys of the view",
        "q: 4 keys of the view, 3 keys of the base table of public.t",
    ]


def test_rows_of_a_topic_are_read_by_their_keys() -> None:
    plan = plan_of([of_table(differing(["1", "o'x"], ["2", "\\x00'"]), differing())])
    assert plan is not None
    (read,) = plan.tables
    assert read.where == r"""("a""b" = '1' AND "c" = 'o''x') OR ("a""b" = '2' AND "c" = E'\\x00''')"""
    assert plan.names == []
    # no output has values
    assert "o'x" not in orjson.dumps(plan.to_dict()).decode()
    assert not any("o'x" in text for text in plan.words())


@pytest.mark.parametrize(
    "topic",
    [
        pytest.param(differing(["1", "2"], left=None), id="a key that only the topic has"),
        pytest.param(differing(["1", "2"], more=1), id="not all keys are known"),
        pytest.param(differing(*([str(n), ""] for n in range(501))), id="many keys"),
    ],
)
def test_a_whole_table_is_read_if_its_rows_cannot_be_named(topic: Outcome) -> None:
    plan = plan_of([of_table(topic, differing())])
    assert plan is not None
    assert [read.where for read in plan.tables] == [None]


def test_a_thread_that_holds_a_lease_may_enter_it_again(tmp_path: Path) -> None:
    lease, other = Lease(tmp_path, "v"), Lease(tmp_path, "v")
    found: list[bool] = []

    def another_thread() -> None:
        with lease.held(0) as mine:
            found.append(mine)

    with lease.held(0) as mine:
        with lease.held(0) as again:
            assert (mine, again) == (True, True)
        thread = threading.Thread(target=another_thread)
        thread.start()
        thread.join()
        with other.held(0) as taken:
            assert not taken
    assert found == [False]
    with other.held(0) as taken:
        assert taken
    with lease.held(0):
        assert lease.changed
