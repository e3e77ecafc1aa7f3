"""The checker reports each fault that is planted in the evidence of a good round, by its name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tailrace.schemas.records.position import Boundary, Cut, states_after
from tests.faults.checker import check
from tests.faults.evidence import Evidence, SlotSample
from tests.faults.plan import plan
from tests.faults.rounds import play
from tests.faults.world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("faults"))
    yield world
    world.close()


@pytest.fixture(scope="module")
def good(world: World) -> Evidence:
    """Evidence of a round with load and without faults, in many short Kafka transactions: each has a position."""
    folder = world.folder / "good"
    folder.mkdir()
    settings = replace(plan(1, kind="kill at a point"), deaths=(), early=False)
    played = play(world, replace(settings, max_transaction_bytes=65_536, max_transaction_ms=20), folder)
    assert played.broken == ()
    return played.evidence


def test_a_round_without_faults_has_no_violations(good: Evidence) -> None:
    assert check(good) == []
    assert len(good.journal) >= 500
    assert sum(position.is_state for _, position in good.positions) > 5
    # `_BY_TURNS` spoils as many from the middle on
    assert len(good.positions) // 2 >= 12


def _drop(evidence: Evidence) -> None:
    records = evidence.records["account"]
    del records[_streamed(evidence, "account")]


def _double(evidence: Evidence) -> None:
    records = evidence.records["entry"]
    at = _streamed(evidence, "entry")
    records.insert(at + 1, records[at])


def _swap(evidence: Evidence) -> None:
    """Exchange two records of a partition, as a producer's retry could."""
    records = evidence.records["mirror"]
    at = _streamed(evidence, "mirror")
    one, two = records[at], records[at + 1]
    assert one.partition == two.partition
    records[at], records[at + 1] = replace(two, offset=one.offset), replace(one, offset=two.offset)


def _tear(evidence: Evidence) -> None:
    """Make a cut that calls itself a state end one record too early in one partition."""
    topic = f"{evidence.prefix}.public.account"
    for index, (offset, position) in enumerate(evidence.positions):
        if position.is_state and position.counts.get(topic):
            partition = next(
                p
                for p, end in enumerate(position.here.offsets[topic])
                if end > evidence.positions[index - 1][1].here.offsets[topic][p]
            )
            ends = dict(position.here.offsets)
            ends[topic] = [end - (p == partition) for p, end in enumerate(ends[topic])]
            evidence.positions[index] = offset, replace(position, here=replace(position.here, offsets=ends))
            return


def _lose_a_transaction(evidence: Evidence) -> None:
    lost = evidence.records["account"][_streamed(evidence, "account")].position.commit_lsn
    for records in evidence.records.values():
        records[:] = [record for record in records if record.position.commit_lsn != lost]


def _show_what_was_rolled_back(evidence: Evidence) -> None:
    xid = evidence.records["account"][_streamed(evidence, "account")].value
    assert xid is not None
    evidence.journal[:] = [change for change in evidence.journal if change.xid != xid["source"]["txId"]]


def _alter(evidence: Evidence) -> None:
    value = evidence.records["account"][_streamed(evidence, "account")].value
    assert value is not None
    value["after"]["balance"] += 1


def _forget_a_row(evidence: Evidence) -> None:
    evidence.source["entry"].popitem()


def _confirm_early(evidence: Evidence) -> None:
    """Make the slot confirm a position record before Kafka has it."""
    before, (offset, position) = next(
        pair
        for pair in pairwise(evidence.positions[len(evidence.positions) // 2 :])
        if pair[0][1].here.flushed_lsn < pair[1][1].here.flushed_lsn
    )
    assert before[0] < offset
    evidence.samples.append(SlotSample(position.here.flushed_lsn, offset))


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (_drop, "lost"),
        (_double, "twice"),
        (_swap, "order"),
        (_tear, "torn"),
        (_lose_a_transaction, "lost"),
        (_show_what_was_rolled_back, "aborted"),
        (_alter, "altered"),
        (_forget_a_row, "end state"),
        (_confirm_early, "confirmed early"),
    ],
)
def test_the_checker_names_each_planted_fault(good: Evidence, plant: Callable[[Evidence], None], promise: str) -> None:
    evidence = copy.deepcopy(good)
    plant(evidence)
    assert promise in {violation.promise for violation in check(evidence)}


def _read_again(evidence: Evidence, phases: dict[str, list[range]]) -> int:
    """Mark tables as incomplete in some records in mid-round, with all states named accordingly.

    Return the index of the first such record. This is no fault: a table that is reread has no state meanwhile, although
    here its rows are whole.
    """
    begins = len(evidence.positions) // 2
    for at in range(begins, len(evidence.positions)):
        offset, position = evidence.positions[at]
        before = evidence.positions[at - 1][1]
        incomplete = tuple(
            sorted(f"public.{table}" for table, spans in phases.items() if any(at - begins in span for span in spans))
        )
        evidence.positions[at] = (
            offset,
            replace(
                position,
                incomplete_tables=incomplete,
                newest_state=None if position.open is None and not incomplete else before.state,
                states=states_after(before, position.open, incomplete),
            ),
        )
    return begins


_BY_TURNS = {"account": [range(6), range(8, 12)], "entry": [range(4, 12)]}
"""From 8 on both are incomplete: account was last complete at 7, entry at 3, both together before 0."""


def _named(evidence: Evidence, at: int, cut: Cut) -> None:
    """Make a record name `cut` as a state of all tables."""
    offset, position = evidence.positions[at]
    evidence.positions[at] = offset, replace(position, states=(Boundary(cut, frozenset()),))


def test_tables_that_are_reread_are_no_violation(good: Evidence) -> None:
    evidence = copy.deepcopy(good)
    _read_again(evidence, _BY_TURNS)
    assert sum(len(position.states) for _, position in evidence.positions) > 5
    assert check(evidence) == []


def test_the_older_of_two_tables_newest_states_is_not_a_state_of_both(good: Evidence) -> None:
    evidence = copy.deepcopy(good)
    begins = _read_again(evidence, _BY_TURNS)
    positions = [position for _, position in evidence.positions[begins : begins + 10]]
    named = [positions[9].state_for([f"public.{table}"]) for table in ("account", "entry")]
    older = min((cut for cut in named if cut is not None), key=lambda cut: cut.order)
    assert older.order > (positions[9].state_for(["public.account", "public.entry"]) or older).order
    _named(evidence, begins + 9, older)
    assert "cut" in {violation.promise for violation in check(evidence)}


def test_a_cut_with_an_incomplete_table_is_not_a_state_of_it(good: Evidence) -> None:
    evidence = copy.deepcopy(good)
    begins = _read_again(evidence, _BY_TURNS)
    _named(evidence, begins + 5, evidence.positions[begins + 4][1].here)
    assert "cut" in {violation.promise for violation in check(evidence)}


def test_rows_of_complete_tables_are_compared_while_another_is_incomplete(good: Evidence) -> None:
    """With another table incomplete to the end, no cut is a state of all: no invariant is judged."""
    evidence = copy.deepcopy(good)
    _read_again(evidence, {"entry": [range(len(evidence.positions))]})
    # the newest record of its key: others might be replaced before the next cut
    newest = {record.key: record.value for record in evidence.records["mirror"]}
    next(value["after"] for value in newest.values() if value and value["after"])["balance"] += 1
    assert "cut" in {violation.promise for violation in check(evidence)}


def _streamed(evidence: Evidence, table: str) -> int:
    """Return the index of a stream record in mid-topic; the next record has the same partition."""
    records = evidence.records[table]
    return next(
        at
        for at in range(len(records) // 2, len(records) - 1)
        if records[at].snapshot is None
        and records[at].value is not None
        and records[at].value["after"] is not None  # type: ignore[index]
        and records[at + 1].partition == records[at].partition
        and records[at + 1].key != records[at].key
    )


def test_the_same_seed_gives_the_same_plan() -> None:
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]
