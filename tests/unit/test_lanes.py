"""Concurrent batches: their number, their order, and those that a view waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.spark_jobs.maintain.lanes import MUCH_LONGER, PATIENCE_S, Lanes, Turn


class Work:
    """Batches that `Lanes` runs and that end when the test says so."""

    def __init__(self, at_once: int) -> None:
        self.released: list[object] = []
        context = SimpleNamespace(setLocalProperty=lambda *_: None)
        session = SimpleNamespace(sparkContext=context)
        records: Any = SimpleNamespace(session=session, within=lambda _: nullcontext(), release=self.released.append)
        self.lanes = Lanes(records, at_once, self._run)
        self.ends = threading.Condition()
        self._ended: set[Turn] = set()
        self._all = False

    def _run(self, turn: Turn) -> bool:
        with self.ends:
            assert self.ends.wait_for(lambda: self._all or turn in self._ended, 60)
        return True

    def running(self) -> list[str]:
        return [turn.name for _, turn in self.lanes.running.values()]

    def end(self, *names: str) -> None:
        """End batches one after the other; after each, batches that can start do so."""
        for name in names:
            future, turn = next((f, turn) for f, (_, turn) in self.lanes.running.items() if turn.name == name)
            with self.ends:
                self._ended.add(turn)
                self.ends.notify_all()
            future.result(60)
            self.lanes.wait(0)

    def end_all(self) -> None:
        with self.ends:
            self._all = True
            self.ends.notify_all()
        self.lanes.end()
        self.lanes.close()


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def view(name: str, *views: str, parked: bool = False) -> Any:
    return SimpleNamespace(declared=SimpleNamespace(name=name, views=views), parked=parked)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("tailrace.spark_jobs.maintain.lanes.time", made)
    return made


@pytest.fixture
def work(clock: Clock) -> Iterator[Work]:
    made = Work(2)
    yield made
    made.end_all()


def names(views: list[Any]) -> list[str]:
    return [each.declared.name for each in views]


def begin(work: Work, *views: Any) -> None:
    work.lanes.begin([Turn(each, None) for each in views])


def test_batches_run_after_the_views_they_read_and_fill_the_lanes(work: Work) -> None:
    low, other, mid, top = view("low"), view("other"), view("mid", "low"), view("top", "mid", "other")
    every = [low, other, mid, top]
    assert work.lanes.ready(every) == every
    begin(work, *every, view("more"))
    assert work.running() == ["low", "other"]
    work.end("other")
    assert work.running() == ["low", "more"]
    assert work.lanes.ready(every) == [], "a view that is done waits for the others of its round"
    work.end("low")
    assert work.running() == ["more", "mid"]
    work.end("more", "mid")
    assert work.running() == ["top"]
    assert work.released == []
    work.end("top")
    assert len(work.released) == 1
    assert work.lanes.idle
    assert work.lanes.ready(every) == every


def test_a_view_that_has_waited_long_enough_begins_another_round(work: Work, clock: Clock) -> None:
    light, heavy, over, more = view("light"), view("heavy"), view("over", "heavy"), view("more")
    every = [light, heavy, more, over]
    begin(work, *every)
    work.end("light", "more")
    assert work.lanes.ready(every) == []
    clock.now += PATIENCE_S
    assert names(work.lanes.ready(every)) == ["light", "more"], "the one over the heavy one waits for it"
    # one lane more: views that no longer wait for the heavy one have as many as before
    begin(work, light, more)
    assert work.running() == ["heavy", "light", "more"]
    work.end("light", "more")
    assert len(work.released) == 1, "the second round is over, the first is not"
    work.end("heavy")
    assert work.running() == ["over"]
    work.end("over")
    assert len(work.released) == 2
    assert work.lanes.ready(every) == every


def test_a_view_with_long_batches_waits_longer_for_others(work: Work, clock: Clock) -> None:
    slow, slower = view("slow"), view("slower")
    begin(work, slow, slower)
    clock.now += 5
    work.end("slow")
    clock.now += 5 * MUCH_LONGER - 6
    assert work.lanes.ready([slow, slower]) == []
    clock.now += 2
    assert work.lanes.ready([slow, slower]) == [slow]


def test_a_view_with_only_one_long_batch_does_not_wait_longer(work: Work, clock: Clock) -> None:
    once_slow, slow = view("once slow"), view("slow")
    begin(work, once_slow)
    work.end("once slow")
    begin(work, once_slow, slow)
    clock.now += 60
    work.end("once slow")
    assert work.lanes.ready([once_slow, slow]) == [once_slow]


def test_running_batches_are_bounded_by_the_lanes(work: Work, clock: Clock) -> None:
    every = [view(name) for name in "abcd"]
    for each in every[:3]:
        begin(work, each)
        clock.now += PATIENCE_S
    assert work.running() == ["a", "b", "c"]
    assert work.lanes.ready(every) == [], "its cut would be old by the time that a lane is free"
    work.end("b")
    assert names(work.lanes.ready(every)) == ["d"], "b has taken long as well"


def test_an_exception_in_a_batch_is_raised_at_the_end(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work.lanes, "_work", lambda _: 1 // 0)
    begin(work, view("a"))
    with pytest.raises(ZeroDivisionError):
        work.lanes.end()
    assert work.lanes.idle
    assert len(work.released) == 1


def test_a_parked_view_is_not_ready_but_a_view_over_it_is(work: Work) -> None:
    parked, over = view("parked", parked=True), view("over", "parked")
    assert work.lanes.ready([parked, over]) == [over]
