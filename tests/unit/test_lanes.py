"""Which batches run at once: their number, their order, and which of them a view waits for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tailrace.spark_jobs.maintain.lanes import MUCH_LONGER, PATIENCE_S, Lanes, Turn


class Work:
    """Batches that end when they are told to; `Lanes` runs them."""

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
        """Let batches end, one after the other; what can be starts after each."""
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
    """The time, which passes when it is told to."""

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


def test_each_view_after_those_that_it_reads_and_no_more_than_the_lanes(work: Work) -> None:
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
    # one lane more: as many as ever for those that no longer wait for the heavy one
    begin(work, light, more)
    assert work.running() == ["heavy", "light", "more"]
    work.end("light", "more")
    assert len(work.released) == 1, "the second round is over, the first is not"
    work.end("heavy")
    assert work.running() == ["over"]
    work.end("over")
    assert len(work.released) == 2
    assert work.lanes.ready(every) == every


def test_a_view_whose_batches_take_as_long_waits_longer(work: Work, clock: Clock) -> None:
    slow, slower = view("slow"), view("slower")
    begin(work, slow, slower)
    clock.now += 5
    work.end("slow")
    clock.now += 5 * MUCH_LONGER - 6
    assert work.lanes.ready([slow, slower]) == []
    clock.now += 2
    assert work.lanes.ready([slow, slower]) == [slow]


def test_a_view_with_one_long_batch_does_not(work: Work, clock: Clock) -> None:
    once_slow, slow = view("once slow"), view("slow")
    begin(work, once_slow)
    work.end("once slow")
    begin(work, once_slow, slow)
    clock.now += 60
    work.end("once slow")
    assert work.lanes.ready([once_slow, slow]) == [once_slow]


def test_memory_is_bounded_by_the_lanes(work: Work, clock: Clock) -> None:
    every = [view(name) for name in "abcd"]
    for each in every[:3]:
        begin(work, each)
        clock.now += PATIENCE_S
    assert work.running() == ["a", "b", "c"]
    assert work.lanes.ready(every) == [], "its cut would be old by the time that a lane is free"
    work.end("b")
    assert names(work.lanes.ready(every)) == ["d"], "b has taken long as well"


def test_what_a_batch_raises_is_raised(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work.lanes, "_work", lambda _: 1 // 0)
    begin(work, view("a"))
    with pytest.raises(ZeroDivisionError):
        work.lanes.end()
    assert work.lanes.idle
    assert len(work.released) == 1


def test_a_parked_view_is_in_no_round_and_one_over_it_says_so(work: Work) -> None:
    parked, over = view("parked", parked=True), view("over", "parked")
    assert work.lanes.ready([parked, over]) == [over]
