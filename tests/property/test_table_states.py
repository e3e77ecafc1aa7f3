"""States of sets of tables in position records, compared with the simplest model: all past cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.tables.position import Progress, new_origin, origin_behind_gap
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import MOST_BOUNDARIES, Cut, PositionRecord
from tailrace.sinks.kafka.outbox import Destination

_FEW = ("a", "b", "c", "d")
"""At most six sets of four tables contain none of the others, so nothing is dropped."""
_MANY = tuple("abcdefgh")

_steps = st.sampled_from(["commit", "commit", "commit", "split", "lost", "restart", "reread", "gap"])
_plans = st.lists(
    st.tuples(_steps, st.lists(st.sampled_from(_MANY), max_size=2), st.lists(st.sampled_from(_MANY), max_size=4)),
    max_size=60,
)


def _subsets(tables: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return chain.from_iterable(combinations(tables, size) for size in range(len(tables) + 1))


@dataclass
class _Pipeline:
    """A daemon's position records, and every unsplit cut with the tables that were incomplete there."""

    tables: tuple[str, ...]
    progress: Progress = field(init=False)
    stored: PositionRecord = field(init=False)
    boundaries: list[tuple[Cut, frozenset[str]]] = field(default_factory=list)
    lsn: int = 1000
    incomplete: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stored = new_origin(1, self.lsn, "1", 1, (1, 0), self.tables)
        self.progress = Progress(self.stored)
        self.incomplete = set(self.tables)
        self._commit(None)

    def do(self, step: str, begun: list[str], ended: list[str]) -> None:
        self.incomplete |= set(begun) & set(self.tables)
        self.incomplete -= set(ended)
        if step == "reread":
            self.progress.reread |= {table: self.lsn + 25 for table in begun if table in self.tables}
        elif step == "lost":
            self._record(None)  # Kafka did not store it
        elif step == "restart":
            self.progress = Progress(PositionRecord.from_json(self.stored.to_json()))
        elif step == "gap":
            self.lsn += 1000
            origin = new_origin(1, self.lsn, "1", 1, (1, 0), self.tables)
            self.progress = Progress(origin_behind_gap(self.stored, origin))
            self.incomplete = set(self.tables)
            self._commit(None)
        else:
            self._commit(7 if step == "split" else None)

    def _commit(self, open_xid: int | None) -> None:
        record = self._record(open_xid)
        self.progress.acknowledged(record)
        self.stored = PositionRecord.from_json(record.to_json())
        assert self.stored == record
        if open_xid is None:
            self.boundaries.append((record.here, frozenset(record.incomplete_tables)))

    def _record(self, open_xid: int | None) -> PositionRecord:
        self.lsn += 10
        # a table's topic is created with its first record
        made = [Destination(table, [self.lsn]) for table in self.tables[: (self.lsn - 1000) // 20]]
        return self.progress.record(
            position=Position(1, self.lsn - 10, 0),
            flushed_lsn=self.lsn,
            commit_us=5,
            open_xid=open_xid,
            counts={},
            diverted={},
            destinations=made,
            incomplete=self.incomplete,
            parked={},
        )

    def state_for(self, tables: tuple[str, ...]) -> Cut | None:
        complete = (cut for cut, incomplete in reversed(self.boundaries) if incomplete.isdisjoint(tables))
        return next(complete, None)


@settings(max_examples=200, deadline=None)
@given(_plans)
def test_any_set_of_tables_has_the_newest_cut_at_which_all_were_complete(plan: list[Any]) -> None:
    pipeline = _Pipeline(_FEW)
    for step, begun, ended in plan:
        pipeline.do(step, begun, ended)
        for tables in _subsets(_FEW):
            assert pipeline.stored.state_for(tables) == pipeline.state_for(tables), tables
        assert pipeline.stored.state == pipeline.state_for(_FEW)


@settings(max_examples=100, deadline=None)
@given(_plans)
def test_with_many_sets_of_incomplete_tables_the_oldest_cuts_are_dropped(plan: list[Any]) -> None:
    """A set of tables then has an older state, or none; never a cut that was not its state."""
    pipeline = _Pipeline(_MANY)
    for step, begun, ended in plan:
        pipeline.do(step, begun, ended)
        stored = pipeline.stored
        assert len(stored.states) <= MOST_BOUNDARIES
        for tables in _subsets(_MANY):
            expected, found = pipeline.state_for(tables), stored.state_for(tables)
            if found == expected:
                continue
            assert len(pipeline.boundaries) > MOST_BOUNDARIES
            assert expected is not None
            assert found is None or found.order < expected.order
            assert all(incomplete.isdisjoint(tables) for cut, incomplete in pipeline.boundaries if cut == found)
            if not stored.waits_for(tables):
                assert stored.open is not None  # otherwise the state is this very cut


@settings(max_examples=100, deadline=None)
@given(_plans)
def test_a_record_of_an_older_version_is_read_as_it_was(plan: list[Any]) -> None:
    pipeline = _Pipeline(_FEW)
    for step, begun, ended in plan:
        pipeline.do(step, begun, ended)
    value = orjson.loads(pipeline.stored.to_json())
    value.pop("states", None)
    old = PositionRecord.from_json(orjson.dumps(value))
    assert old == replace(pipeline.stored, states=())
    assert old.state == pipeline.stored.state == pipeline.state_for(_FEW)
    # the daemon continues from it, and the cuts that it names afterwards are states
    pipeline.progress, pipeline.stored = Progress(old), old
    for step in ("commit", "split", "commit"):
        pipeline.do(step, ["a"], ["b"])
        for tables in _subsets(_FEW):
            found = pipeline.stored.state_for(tables)
            assert found is None or any(
                found == cut and incomplete.isdisjoint(tables) for cut, incomplete in pipeline.boundaries
            )
