"""The conditions under which a cut is a state."""

from __future__ import annotations

from dataclasses import replace

from tailrace.cdc.tables.position import Progress, new_origin, origin_behind_gap
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import MOST_DIVERTED, Diverted, PositionRecord, diverted_after


def _record(
    progress: Progress,
    flushed_lsn: int,
    *,
    open_xid: int | None = None,
    incomplete: str = "",
    diverted: dict[str, int] | None = None,
    parked: dict[str, str] | None = None,
) -> PositionRecord:
    return progress.record(
        position=Position(1, flushed_lsn - 10, 0),
        flushed_lsn=flushed_lsn,
        commit_us=5,
        open_xid=open_xid,
        counts={},
        diverted=diverted or {},
        destinations=[],
        incomplete=frozenset(incomplete),
        parked=parked or {},
    )


def test_values_read_again_are_remembered_over_a_restart() -> None:
    """They may be newer than the cut, also if the daemon is killed before the stream has reached them."""
    progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), []))
    progress.acknowledged(_record(progress, 2000))
    progress.reread["public.docs"] = 5000
    stored = PositionRecord.from_json(_record(progress, 3000).to_json())
    assert (stored.is_state, stored.incomplete_tables, stored.reread) == (
        False,
        ("public.docs",),
        {"public.docs": 5000},
    )
    assert stored.state is not None
    assert stored.state.flushed_lsn == 2000
    after = Progress(stored)
    assert not _record(after, 4999).is_state
    assert _record(after, 5000).is_state


def test_the_start_of_a_slot_is_not_named_as_a_cut() -> None:
    """It is not on the topic; the first cut may be in the middle of a transaction."""
    progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), "ab"))
    first = _record(progress, 2000, open_xid=7, incomplete="ab")
    assert first.states == ()
    progress.acknowledged(first)
    second = _record(progress, 3000, incomplete="ab")
    progress.acknowledged(second)
    assert [boundary.cut for boundary in _record(progress, 4000, open_xid=8, incomplete="a").states] == [second.here]


def test_dead_letters_are_counted_by_table_of_which_the_newest_stay() -> None:
    progress = Progress(PositionRecord.from_json(_of_an_older_version(diverted=5)))
    for new in ({"public.t": 2}, {}, {"public.t": 1, "public.u": 1}):
        progress.acknowledged(_record(progress, 1010, diverted=new))
    record = PositionRecord.from_json(progress.newest.to_json())
    assert record == progress.newest
    assert (record.diverted, record.diverted_uncounted) == (9, 5)
    assert {table: each.changes for table, each in record.diverted_tables.items()} == {"public.t": 3, "public.u": 1}
    many = {f"t{n}": Diverted(1, n) for n in range(MOST_DIVERTED)}
    after = diverted_after(many, {"t1": 1, "new": 1}, 1000)
    assert (len(after), after["t1"], after["new"]) == (MOST_DIVERTED, Diverted(2, 1000), Diverted(1, 1000))
    assert "t0" not in after


def test_a_new_slot_continues_the_counts_of_dead_letters() -> None:
    progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), []))
    stored = _record(progress, 1010, diverted={"public.t": 2})
    origin = origin_behind_gap(stored, new_origin(2, 3000, "1", 1, (1, 0), []))
    assert (origin.diverted, origin.diverted_tables) == (2, stored.diverted_tables)


def _of_an_older_version(diverted: int) -> bytes:
    record = replace(new_origin(1, 1000, "1", 1, (1, 0), []), diverted=diverted)
    assert b"diverted_tables" not in record.to_json()
    return record.to_json()


def test_no_cut_stays_a_state_of_a_table_whose_topic_has_lost_records() -> None:
    """Its records are missing there, and in a topic that is created again their offsets have none."""
    progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), []))
    for lsn, incomplete in ((2000, ""), (3000, "b"), (4000, "")):
        progress.acknowledged(_record(progress, lsn, incomplete=incomplete))
    for lsn, code in ((5000, "TR-424"), (6000, "TR-424"), (7000, "")):
        progress.acknowledged(_record(progress, lsn, incomplete="a", parked={"a": code}))
        stored = PositionRecord.from_json(progress.newest.to_json())
        assert (stored.state_for("a"), stored.state_for("ab"), stored.state) == (None, None, None)
        assert stored.state_for("b") == stored.here
    progress.acknowledged(_record(progress, 8000, open_xid=7, incomplete="a"))
    assert progress.newest.state_for("a") is None
    other = progress.newest.state_for("b")
    assert other is not None
    assert other.flushed_lsn == 7000
    progress.acknowledged(_record(progress, 9000, incomplete="b"))
    complete = progress.newest.state_for("a")
    assert complete is not None
    assert complete.flushed_lsn == 9000
    assert progress.newest.state_for("ab") is None


def test_a_table_that_is_parked_for_another_error_has_its_last_state() -> None:
    progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), []))
    progress.acknowledged(_record(progress, 2000))
    progress.acknowledged(_record(progress, 3000, incomplete="a", parked={"a": "TR-220"}))
    state = progress.newest.state_for("a")
    assert state is not None
    assert state.flushed_lsn == 2000
