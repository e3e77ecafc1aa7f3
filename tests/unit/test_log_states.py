"""`tailrace verify --log` checks the cuts that position records name as states of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.cdc.operations.log_proof import Block, Tally, Timed, TopicCheck
from tailrace.cdc.tables.position import Progress, new_origin
from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Boundary, Cut, PositionRecord


def _records(*incomplete: str) -> list[PositionRecord]:
    """Return a record for each word: its letters are the incomplete tables, those in upper case have lost records; a
    dash means a split cut.
    """
    progress = Progress(new_origin(1, 1000, "1", 1, (1, 0), "abc"))
    found: list[PositionRecord] = []
    for number, word in enumerate(incomplete):
        lsn = 1000 + 10 * (number + 1)
        record = progress.record(
            position=Position(1, lsn - 5, 0),
            flushed_lsn=lsn,
            commit_us=5,
            open_xid=7 if word.endswith("-") else None,
            counts={},
            diverted={},
            destinations=[],
            incomplete=set(word.strip("-").lower()),
            parked={letter.lower(): "TR-424" for letter in word if letter.isupper()},
        )
        progress.acknowledged(record)
        found.append(record)
    return found


def _findings(records: Sequence[PositionRecord]) -> list[str]:
    tally = Tally(10)
    Block(None, [Timed(record, 1) for record in records]).check_cuts(tally)
    return [finding.detail for finding in tally.findings]


_GOOD = ("", "a", "ab", "a-", "a", "b", "bc-", "b", "")


def test_states_that_the_daemon_names_are_accepted() -> None:
    records = _records(*_GOOD)
    assert sum(len(record.states) for record in records) > 5
    assert _findings(records) == []
    assert _findings([replace(record, states=()) for record in records]) == []  # of an older version


def test_a_table_whose_topic_has_lost_records_has_no_earlier_state() -> None:
    records = _records("", "b", "", "bA", "bA-", "a", "b", "")
    assert _findings(records) == []
    before = records[3]
    records[3] = replace(before, states=(*before.states, Boundary(records[0].here, frozenset("b"))))
    assert any("names a cut that is no state" in detail for detail in _findings(records))


def test_a_state_at_which_a_table_was_incomplete_is_found() -> None:
    records = _records(*_GOOD)
    records[5] = replace(records[5], states=(Boundary(records[4].here, frozenset()),))
    assert any("names a cut that is no state: 0/41A, of all tables" in detail for detail in _findings(records))


def test_a_cut_that_is_a_state_of_only_one_of_two_tables_is_found() -> None:
    """Table a was last complete at the cut of record 1, b at that of record 2, where a was incomplete."""
    records = _records("b", "a", "ab")
    assert records[2].state_for("a") == records[0].here
    assert records[2].state_for("b") == records[1].here
    assert records[2].state_for("ab") is None
    older: Cut = min(records[0].here, records[1].here, key=lambda cut: cut.order)
    records[2] = replace(records[2], states=(Boundary(older, frozenset()),))
    assert any("names a cut that is no state" in detail for detail in _findings(records))


def test_a_state_that_a_record_no_longer_names_is_found() -> None:
    records = _records(*_GOOD)
    assert len(records[5].states) == 1
    assert len(records[6].states) == 2
    records[6] = replace(records[6], states=records[6].states[1:])
    assert any("omits a state" in detail for detail in _findings(records))


def _order(*keys: bytes) -> list[str]:
    """Return the findings for records with these keys that all have one position, the last of a cut."""
    (record,) = _records("")
    cut = replace(record.here, offsets={"t": [len(keys)]})
    block = Block(None, [Timed(replace(record, here=cut, counts={"t": len(keys)}), 1)])
    tally = Tally(10)
    check = TopicCheck("t", block, {}, tally, lambda: 0)
    for offset, key in enumerate(keys):
        check.take(0, offset, key, Position(1, 1004, 0))
    check.finish()
    return [finding.kind for finding in tally.findings]


def test_a_topic_may_be_emptied_twice_at_one_position() -> None:
    assert _order(TRUNCATE_KEY, TRUNCATE_KEY) == []
    assert _order(TRUNCATE_KEY, b"row") == ["order"]
    assert _order(b"row", TRUNCATE_KEY) == ["order"]
    assert _order(TRUNCATE_KEY, b"row", TRUNCATE_KEY) == ["order", "order"]
