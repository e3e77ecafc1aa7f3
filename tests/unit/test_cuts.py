"""The cut that each view may advance to, and until when its topics had no later records."""

from __future__ import annotations

from dataclasses import replace

from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Boundary, Cut, PositionRecord
from tailrace.spark_jobs.topics.cuts import Look, SeenCut, newest_state
from tailrace.spark_jobs.views import Declared

_BIG = Declared("big", "warehouse", ("t.big",), None, captured=("public.big",))
_SMALL = Declared("small", "warehouse", ("t.small",), None, captured=("public.small",))
_BOTH = Declared("both", "warehouse", ("t.small", "t.big"), None, captured=("public.small", "public.big"))


def _cut(lsn: int, big: int, small: int) -> Cut:
    offsets = {"t.big": [big], "t.small": [small]}
    return Cut(Position(1, lsn - 5, 0), lsn, lsn * 1_000_000, "1", 1, offsets)


_WHOLE = PositionRecord(_cut(100, 1, 1), 1)
_READ_AGAIN = [
    PositionRecord(_cut(lsn, 1, small), 1, incomplete_tables=("public.big",), newest_state=_WHOLE.here)
    for lsn, small in ((200, 1), (300, 2))
]
_DONE = PositionRecord(_cut(400, 9, 2), 1)


def _at(records: list[tuple[PositionRecord, int]], view: Declared) -> list[SeenCut]:
    """Return the cuts that a view sees at several looks, given as (record, time in ms)."""
    found: list[SeenCut] = []
    before: Look | None = None
    for record, at_ms in records:
        look = Look(record, at_ms)
        seen = newest_state(view, look, before, found[-1] if found else None)
        assert seen is not None
        found.append(seen)
        before = look
    return found


_LOOKS = [(_WHOLE, 1_000_000), (_READ_AGAIN[0], 2_000_000), (_READ_AGAIN[1], 3_000_000), (_DONE, 4_000_000)]


def test_a_view_of_a_complete_table_advances_while_another_is_read() -> None:
    found = _at(_LOOKS, _SMALL)
    assert [seen.cut.flushed_lsn for seen in found] == [100, 200, 300, 400]
    assert [seen.level_ms for seen in found] == [1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert not any(seen.waits_for for seen in found)


def test_a_view_is_current_until_its_topics_have_later_records() -> None:
    """An incomplete table is no change of its topic; the join's other table is changed at LSN 300."""
    big, both = _at(_LOOKS, _BIG), _at(_LOOKS, _BOTH)
    assert [seen.cut.flushed_lsn for seen in big] == [seen.cut.flushed_lsn for seen in both] == [100, 100, 100, 400]
    assert [seen.level_ms for seen in big] == [1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert [seen.level_ms for seen in both] == [1_000_000, 2_000_000, 2_000_000, 4_000_000]
    assert [seen.is_end for seen in both] == [True, True, False, True]
    assert [seen.waits_for for seen in both] == [(), ("public.big",), ("public.big",), ()]


def test_a_job_that_starts_later_does_not_take_an_old_cut_for_current() -> None:
    """Later records were committed after the cut's own newest commit; more is not known."""
    (seen,) = _at(_LOOKS[2:3], _BOTH)
    assert (seen.cut.flushed_lsn, seen.level_ms, seen.is_end) == (100, 100_000, False)
    (seen,) = _at(_LOOKS[2:3], _BIG)
    assert (seen.level_ms, seen.is_end) == (3_000_000, True)


def test_a_cut_that_is_new_since_the_last_look_is_dated_to_that_look() -> None:
    boundary = Boundary(_cut(250, 1, 2), frozenset({"public.other"}))
    split = PositionRecord(_cut(300, 1, 3), 1, open=7, newest_state=_WHOLE.here, states=(boundary,))
    found = _at([*_LOOKS[:2], (split, 3_000_000)], _BOTH)
    assert (found[-1].cut.flushed_lsn, found[-1].level_ms, found[-1].is_end) == (250, 2_000_000, False)


def test_a_view_waits_when_its_cut_is_no_longer_recorded() -> None:
    """A topic may have lost the cut's records: a view that has not read them yet must not read up to it."""
    gone = PositionRecord(_cut(500, 9, 9), 1, incomplete_tables=("public.big",), newest_state=None)
    found = _at(_LOOKS, _BIG)
    assert newest_state(_BIG, Look(gone, 5_000_000), None, found[-1]) is None
    assert newest_state(_BIG, Look(gone, 1), None, None) is None
    seen = newest_state(_BIG, Look(PositionRecord(_cut(600, 9, 9), 1), 6_000_000), None, found[-1])
    assert seen is not None
    assert seen.cut.flushed_lsn == 600


def test_a_cut_before_a_table_was_captured_is_no_state_of_it() -> None:
    """The table had rows there, and the topic did not exist: a view would be empty, and say that it is at that LSN."""
    later = Declared("later", "warehouse", ("t.later",), None, captured=("public.later",))
    read = PositionRecord(_cut(200, 1, 1), 1, incomplete_tables=("public.later",), newest_state=_WHOLE.here)
    assert newest_state(later, Look(read, 1), None, None) is None
    assert newest_state(_BIG, Look(read, 1), None, None) is not None
    here = _cut(300, 1, 1)
    done = PositionRecord(replace(here, offsets={**here.offsets, "t.later": [4]}), 1)
    seen = newest_state(later, Look(done, 1), None, None)
    assert seen is not None
    assert seen.cut.flushed_lsn == 300
