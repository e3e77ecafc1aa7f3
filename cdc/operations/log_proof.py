"""Check the records of the topics against the position records. No I/O here.

The records of one Kafka transaction lie between two cuts. The position record that ends it has their number on each
topic, their end offset in each partition, and the position of the last one. So a missing, added or torn record is
always detected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.schemas.lsn import Position, format_lsn
from tailrace.schemas.records.position import RECORDS_LOST, Boundary, Cut, PositionRecord, states_after, without_lost
from tailrace.schemas.records.topics import Topics
from tailrace.schemas.table_names import candidates
from tailrace.sinks.kafka.producer import TRANSACTION_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation. `kind` is deleted (the topic), missing, unaccounted, order, misplaced, torn or cut.

    `partition` None means all partitions.
    """

    kind: str
    topic: str
    detail: str
    partition: int | None = None
    offset: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class Timed:
    """A position record and its Kafka timestamp (ms)."""

    record: PositionRecord
    taken_ms: int


@dataclass(slots=True)
class Tally:
    """Totals over all checked records.

    `compacted` counts records that compaction has deleted, `uncounted` those whose position record it has deleted.
    Only the first `limit` findings are stored.
    """

    limit: int
    missing: Counter[str] = field(default_factory=Counter)  # findings of this kind, by topic
    position_records: int = 0
    records: int = 0
    compacted: int = 0
    uncounted: int = 0
    found: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        self.found += 1
        self.missing[finding.topic] += finding.kind == "missing"
        if len(self.findings) < self.limit:
            self.findings.append(finding)

    def forgive(self, topic: str) -> None:
        """Drop the findings of missing records of a topic: a later position record says that they are lost."""
        self.found -= self.missing.pop(topic, 0)
        self.findings = [each for each in self.findings if each.topic != topic or each.kind != "missing"]


class Block:
    """Consecutive position records; `before` is their predecessor, None if there is none.

    Memory: 8 bytes for each partition and position record, plus the records themselves.
    """

    def __init__(self, before: Timed | None, timed: Sequence[Timed]) -> None:
        self.timed = timed
        self.records = [each.record for each in timed]
        self.before = before.record if before else None
        self._before_ms = (before or timed[0]).taken_ms

    @property
    def last(self) -> PositionRecord:
        return self.records[-1]

    def begins_ms(self, index: int) -> int:
        """Return the Kafka timestamp (ms) of the preceding position record; of the very first, its own."""
        return self.timed[index - 1].taken_ms if index else self._before_ms

    def check_cuts(self, tally: Tally) -> None:
        """Check that cuts and positions never go back and that each record names the newest state."""
        before = self.before
        for record in self.records:
            tally.position_records += 1
            if before is not None:
                for topic, detail in _follows(before, record):
                    tally.add(Finding("cut", topic, detail))
            before = record

    def moved(self) -> dict[str, tuple[list[int], list[int]]]:
        """Return the offsets that the block covers: (starts, ends) of the partitions of each topic that moved."""
        begin = self.before.here.offsets if self.before else {}
        spans = {
            topic: ([*begin.get(topic, []), *[0] * (len(ends) - len(begin.get(topic, [])))], ends)
            for topic, ends in self.last.here.offsets.items()
        }
        return {topic: (starts, ends) for topic, (starts, ends) in spans.items() if starts != ends}

    def lost(self, topics: Topics) -> dict[str, int]:
        """Return the topics that have lost records, with the index of the last position record that says so."""
        return {
            topics.table(*names): index
            for index, record in enumerate(self.records)
            for table, code in record.parked.items()
            if code == RECORDS_LOST
            for names in candidates(table)
        }

    def counted(self) -> set[str]:
        """Return the topics for which the block's position records have counts."""
        return {topic for record in self.records for topic in record.counts}


@dataclass(frozen=True, slots=True)
class Newest:
    """The last record of a partition."""

    position: Position
    is_truncate: bool


class TopicCheck:
    """Check of one topic's records against a block.

    `newest` has the last record of each partition, for all blocks.
    """

    def __init__(
        self,
        topic: str,
        block: Block,
        newest: dict[tuple[str, int], Newest],
        tally: Tally,
        horizon_ms: Callable[[], int],
        lost: int = -1,
    ) -> None:
        """Set up. Records from before `horizon_ms()` may be compacted: if missing, they are only counted.

        Those up to the position record of index `lost` are known to be lost.
        """
        self._lost = lost
        self._topic, self._block, self._newest, self._tally = topic, block, newest, tally
        self._horizon_ms = horizon_ms
        self._counts = [0] * len(block.records)
        partitions = len(block.last.here.offsets.get(topic, []))
        cuts = [record.here.offsets.get(topic, []) for record in block.records]
        self._ends = [[cut[p] if p < len(cut) else 0 for cut in cuts] for p in range(partitions)]
        self._last: dict[int, tuple[int, int]] = {}

    def take(self, partition: int, offset: int, key: bytes, position: Position) -> None:
        """Check the next record of a partition; its offset is before the end of the block."""
        index = min(bisect_right(self._ends[partition], offset), len(self._counts) - 1)
        self._counts[index] += 1
        self._tally.records += 1
        newest, is_truncate = self._newest.get((self._topic, partition)), key == TRUNCATE_KEY
        # two alterations before the first record of a transaction: the topic is emptied for each, at one position
        again = is_truncate and newest == Newest(position, is_truncate=True)
        if newest is not None and position <= newest.position and not again:
            self._add("order", partition, offset, f"{position} comes after {newest.position}")
        self._newest[self._topic, partition] = Newest(position, is_truncate)
        self._place(index, partition, offset, key, position)
        self._ended(partition, upto=index)
        self._last[partition] = index, offset

    def _place(self, index: int, partition: int, offset: int, key: bytes, position: Position) -> None:
        record = self._block.records[index]
        before = self._block.records[index - 1] if index else self._block.before
        if position > record.here.position or (before is not None and position <= before.here.position):
            after = before.here.position if before else "the beginning"
            self._add("misplaced", partition, offset, f"{position} is not in ({after}, {record.here.position}]")
        # a truncate record that precedes a transaction has the LSN before that of the transaction
        lsn = position.commit_lsn + (key == TRUNCATE_KEY and position.ordinal == 0)
        if record.is_state and position.commit_lsn >= record.here.flushed_lsn:
            self._add("torn", partition, offset, f"{position} is before the cut at {_at(record)}")
        if before is not None and before.is_state and lsn < before.here.flushed_lsn:
            self._add("torn", partition, offset, f"{position} is after the cut at {_at(before)}")

    def _ended(self, partition: int, upto: int) -> None:
        """Check that a cut that moved is directly after a record."""
        if partition in self._last:
            index, offset = self._last[partition]
            if index != upto and self._ends[partition][index] != offset + 1 and not self._old(index):
                end = self._ends[partition][index]
                self._add("cut", partition, offset, f"the cut at {_at(self._block.records[index])} ends at {end}")

    def finish(self) -> None:
        """Compare the counts after all records up to the end of the block have been checked."""
        for partition in list(self._last):
            self._ended(partition, upto=len(self._counts))
        for index, record in enumerate(self._block.records):
            there, said = self._counts[index], record.counts.get(self._topic, 0)
            if there < said and index <= self._lost:
                continue
            if there < said and self._old(index):  # or retention has deleted them
                self._tally.compacted += said - there
            elif there < said:
                self._add("missing", None, None, f"{there} of {said} records {self._between(index)}")
            elif there > said and self._block.begins_ms(index) - TRANSACTION_TIMEOUT_MS < self._horizon_ms():
                # compaction deletes old position records only, each in favor of a later old one
                self._tally.uncounted += there - said
            elif there > said:
                self._add("unaccounted", None, None, f"{there} records, not {said}, {self._between(index)}")

    def _old(self, index: int) -> bool:
        # the first record of a Kafka transaction is older than the last by at most the transaction timeout
        return self._block.timed[index].taken_ms - TRANSACTION_TIMEOUT_MS < self._horizon_ms()

    def _between(self, index: int) -> str:
        before = self._block.records[index - 1] if index else self._block.before
        return f"after {_at(before) if before else 'the beginning'}, up to {_at(self._block.records[index])}"

    def _add(self, kind: str, partition: int | None, offset: int | None, detail: str) -> None:
        self._tally.add(Finding(kind, self._topic, detail, partition, offset))


def _follows(before: PositionRecord, record: PositionRecord) -> Iterator[tuple[str, str]]:
    then, now = before.here, record.here
    if (now.position, now.flushed_lsn) < (then.position, then.flushed_lsn):
        yield "", f"the position goes back from {then.position} at {_at(before)} to {now.position} at {_at(record)}"
    if record.newest_state is None:  # older versions named states of tables whose topics had lost records
        before = without_lost(before, record.parked)
    if not record.is_state and not _same(record.newest_state, before.state):
        yield "", f"{_at(record)} names the newest state {_state(record.newest_state)}, not {_state(before.state)}"
    yield from _states_follow(before, record)
    for topic, ends in then.offsets.items():
        later = now.offsets.get(topic, [])
        if len(later) < len(ends) or any(b < a for a, b in zip(ends, later, strict=False)):
            yield topic, f"the cut goes back from {ends} at {_at(before)} to {later} at {_at(record)}"


def _states_follow(before: PositionRecord, record: PositionRecord) -> Iterator[tuple[str, str]]:
    """Compare the cuts that are states of some tables only; records of older versions have none."""
    if not record.states or not before.is_begun or before.generation != record.generation:
        return  # the state before the first record of a slot is not on the topic
    expected = {_boundary(each) for each in states_after(before, record.open, record.incomplete_tables)}
    named = {_boundary(each) for each in record.states}
    for wrong, what in ((named - expected, "names a cut that is no state"), (expected - named, "omits a state")):
        for lsn, incomplete, _ in sorted(wrong):
            but = f" except {', '.join(incomplete)}" if incomplete else ""
            yield "", f"{_at(record)} {what}: {format_lsn(lsn)}, of all tables{but}"


def _boundary(boundary: Boundary) -> tuple[int, tuple[str, ...], str]:
    cut = replace(boundary.cut, timeline=0)
    return cut.flushed_lsn, tuple(sorted(boundary.incomplete)), cut.to_json()


def _same(one: Cut | None, other: Cut | None) -> bool:
    """Whether two cuts are the same; the timeline is ignored, because a promotion changes it."""
    if one is None or other is None:
        return one is other
    return replace(one, timeline=0) == replace(other, timeline=0)


def _state(cut: Cut | None) -> str:
    return "none" if cut is None else format_lsn(cut.flushed_lsn)


def _at(record: PositionRecord) -> str:
    return format_lsn(record.here.flushed_lsn)
