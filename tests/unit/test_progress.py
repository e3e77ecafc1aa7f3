"""The conditions under which a cut is a state."""

from __future__ import annotations

from tailrace.cdc.tables.position import Progress, new_origin
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import PositionRecord


def _record(
    progress: Progress, flushed_lsn: int, *, open_xid: int | None = None, incomplete: str = ""
) -> PositionRecord:
    return progress.record(
        position=Position(1, flushed_lsn - 10, 0),
        flushed_lsn=flushed_lsn,
        commit_us=5,
        open_xid=open_xid,
        counts={},
        diverted=0,
        destinations=[],
        incomplete=frozenset(incomplete),
        parked={},
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
