"""Every cut that calls itself a state is one: invariants hold, and no transaction crosses it.

Likewise, the tables that are complete at a cut equal the source's at its LSN, row by row. And each position record
names, for every set of tables, the newest cut at which all of them are complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, combinations

from tailrace.schemas.lsn import format_lsn
from tailrace.schemas.records.position import Boundary, Cut, PositionRecord
from tests.faults.evidence import Evidence, Key, Row
from tests.faults.source_at import Place, SourceAt
from tests.faults.workload import ACCOUNTS, BALANCE, KEYS, body_digest
from tests.support.topics import TopicRecord

Finding = tuple[str, str]


def check_cuts(evidence: Evidence) -> Iterator[Finding]:
    """Read the partitions up to the cut of each position record in turn, and judge the state there."""
    state, source = _State(), SourceAt(evidence)
    unlike = _Unlike(source, state)
    boundaries: list[Boundary] = []
    lines = {
        (table, partition): [record for record in records if record.partition == partition]
        for table, records in evidence.records.items()
        for partition in {record.partition for record in records}
    }
    taken = dict.fromkeys(lines, 0)
    before: Cut | None = None
    newest_state: Cut | None = None
    for offset, position in evidence.positions:
        where = f"cut {format_lsn(position.here.flushed_lsn)} @{offset}"
        yield from _follows(where, before, position, newest_state)
        count: Counter[str] = Counter()
        for (table, partition), records in lines.items():
            ends = position.here.offsets.get(f"{evidence.prefix}.public.{table}", [])
            end = ends[partition] if partition < len(ends) else 0
            at = taken[table, partition]
            while at < len(records) and records[at].offset < end:
                state.apply(table, records[at])
                unlike.look([(table, records[at].key)])
                count[table] += 1
                at += 1
            taken[table, partition] = at
            if position.is_state:
                yield from _on_its_side(where, table, records, at, position)
        for table in evidence.records:
            said = position.counts.get(f"{evidence.prefix}.public.{table}", 0)
            if said != count[table]:
                yield "cut", f"{where}: {count[table]} records of {table}, its position record says {said}"
        if position.open is None and position.is_begun:
            boundaries.append(Boundary(position.here, frozenset(position.incomplete_tables)))
            unlike.look(source.advance(position.here.flushed_lsn))
            yield from unlike.complete(where, position)
        yield from _names(where, position, boundaries)
        if position.is_state:
            newest_state = position.here
            yield from (("torn", f"{where}: {what}") for what in state.broken())
        before = position.here
    left = sum(len(records) - taken[line] for line, records in lines.items())
    if left:
        yield "cut", f"{left} records behind the last cut"
    for table, rows in evidence.source.items():
        there = state.rows[table]
        different = [key for key in rows.keys() | there.keys() if rows.get(key) != there.get(key)]
        if different:
            key = different[0]
            yield "end state", f"{len(different)} rows of {table}, first {key}: {there.get(key)}, not {rows.get(key)}"


def _names(where: str, position: PositionRecord, boundaries: list[Boundary]) -> Iterator[Finding]:
    """Compare the state that a record names for each set of tables with all unsplit cuts so far."""
    tables = [f"public.{table}" for table in KEYS]
    for some in chain.from_iterable(combinations(tables, size) for size in range(1, len(tables) + 1)):
        expected = next((b.cut for b in reversed(boundaries) if b.incomplete.isdisjoint(some)), None)
        named = position.state_for(some)
        if not _same(named, expected):
            yield "cut", f"{where} names {named} as the newest state of {', '.join(some)}, not {expected}"
    for boundary in position.states:
        if not any(b.incomplete == boundary.incomplete and _same(b.cut, boundary.cut) for b in boundaries):
            yield "cut", f"{where} names {boundary}, which never was"


def _same(one: Cut | None, other: Cut | None) -> bool:
    """Return whether two cuts are equal; after a promotion, a cut may name the new timeline."""
    if one is None or other is None:
        return one is other
    return replace(one, timeline=other.timeline) == other


def _follows(where: str, before: Cut | None, position: PositionRecord, newest_state: Cut | None) -> Iterator[Finding]:
    here = position.here
    named = position.newest_state
    # after a promotion, a cut may name the new timeline
    if named and newest_state:
        named = replace(named, timeline=newest_state.timeline)
    if not position.is_state and named != newest_state:
        yield "cut", f"{where} names {position.newest_state} as the newest state, not {newest_state}"
    if before is None:
        return
    if (here.position, here.flushed_lsn) < (before.position, before.flushed_lsn):
        yield "order", f"{where} is behind the one before it"
    for topic, ends in before.offsets.items():
        if any(now < then for now, then in zip(here.offsets.get(topic, []), ends, strict=True)):
            yield "order", f"{where}: {topic} goes back from {ends} to {here.offsets.get(topic)}"


def _on_its_side(
    where: str, table: str, records: list[TopicRecord], at: int, position: PositionRecord
) -> Iterator[Finding]:
    lsn = position.here.flushed_lsn
    if at and records[at - 1].position.commit_lsn >= lsn:
        yield "torn", f"{where}: {table}, {records[at - 1].position} is before it"
    if at < len(records) and records[at].position.commit_lsn < lsn:
        yield "torn", f"{where}: {table}, {records[at].position} is behind it"


class _Unlike:
    """The rows that differ between topics and source, updated with each change of either."""

    def __init__(self, source: SourceAt, state: _State) -> None:
        self._source, self._state = source, state
        self._keys: dict[str, set[Key]] = {table: set() for table in KEYS}
        self.look((table, key) for table, rows in source.rows.items() for key in rows)

    def look(self, places: Iterable[Place]) -> None:
        for table, key in places:
            same = self._source.rows[table].get(key) == self._state.rows[table].get(key)
            (self._keys[table].discard if same else self._keys[table].add)(key)

    def complete(self, where: str, position: PositionRecord) -> Iterator[Finding]:
        """Yield a finding for each table that is complete at a cut but differs from the source."""
        for table, keys in self._keys.items():
            if keys and f"public.{table}" not in position.incomplete_tables:
                key = min(keys)
                there, rows = self._state.rows[table].get(key), self._source.rows[table].get(key)
                first = f"first {key}: {there}, not {rows}"
                yield "cut", f"{where}: {len(keys)} rows of {table} are not the source's, {first}"


class _State:
    """The tables as the records so far make them, with running values for the invariants."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Key, Row]] = {"account": {}, "mirror": {}, "entry": {}}
        self._balance = 0
        self._sums: Counter[int] = Counter()
        self._odd: set[int] = set()
        self._unlike: set[Key] = set()

    def apply(self, table: str, record: TopicRecord) -> None:
        if record.snapshot is None and record.value is None:
            return  # the delete before it has already been applied
        rows = self.rows[table]
        old = rows.pop(record.key, None)
        new = record.value["after"] if record.value else None
        if new is not None:
            rows[record.key] = new
        if table == "entry":
            for row, sign in ((old, -1), (new, 1)):
                if row is not None:
                    self._sums[row["n"]] += sign * row["amount"]
                    (self._odd.add if self._sums[row["n"]] else self._odd.discard)(row["n"])
            return
        if table == "account":
            self._balance += (new["balance"] if new else 0) - (old["balance"] if old else 0)
        account, mirror = self.rows["account"].get(record.key), self.rows["mirror"].get(record.key)
        alike = account is None if mirror is None else account == {name: mirror[name] for name in account or mirror}
        body = mirror is None or mirror["body"] == body_digest(mirror["id"], mirror["body_version"])
        (self._unlike.discard if alike and body else self._unlike.add)(record.key)

    def broken(self) -> Iterator[str]:
        """Yield the invariants that do not hold."""
        if self._balance != ACCOUNTS * BALANCE:
            yield f"balances add up to {self._balance}, not {ACCOUNTS * BALANCE}"
        if self._odd:
            yield f"{len(self._odd)} transfers have one side only, first {min(self._odd)}"
        if self._unlike:
            yield f"{len(self._unlike)} accounts are unlike their mirror, first {min(self._unlike)}"
