"""Judges a round by its evidence: topics under read_committed, journal, tables and slot.

Every committed change is there once, in order, and whole at every state cut; nothing that was rolled back is; the end
state is that of the source; the slot was never confirmed past what Kafka holds. The checker does not know the faults.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tailrace.schemas.lsn import PARTS_PER_CHANGE, Position, format_lsn
from tests.faults.cuts import check_cuts
from tests.faults.evidence import Change, Evidence, Key, Row
from tests.faults.workload import body_digest
from tests.support.topics import TopicRecord

Said = tuple[str, Key, str, tuple[tuple[str, Any], ...] | None]
"""A record as the checker compares it: table, key, op or "tombstone", and the row after the change."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise, by its name.

    lost, twice, order, aborted, altered, torn, cut, end state, confirmed early; or other: the daemon failed, or
    `tailrace verify --log` has a finding.
    """

    promise: str
    detail: str


def check(evidence: Evidence) -> list[Violation]:
    """Return the broken promises; an empty list if all were kept."""
    return [
        *_once_in_order(evidence),
        *_transactions(evidence),
        *_versions(evidence),
        *(Violation(promise, detail) for promise, detail in check_cuts(evidence)),
        *_confirmed(evidence),
    ]


def _once_in_order(evidence: Evidence) -> Iterator[Violation]:
    """Check that no position comes twice and that positions rise within a partition."""
    seen: Counter[tuple[str, Position]] = Counter()
    for table, records in evidence.records.items():
        newest: dict[int, Position] = {}
        for record in records:
            seen[table, record.position] += 1
            before = newest.get(record.partition)
            if before is not None and before > record.position:
                yield Violation("order", f"{table}/{record.partition}@{record.offset}: {record.position} < {before}")
            newest[record.partition] = record.position
    for (table, position), count in seen.items():
        if count > 1:
            yield Violation("twice", f"{table}: {count} records at {position}")


def _transactions(evidence: Evidence) -> Iterator[Violation]:
    """Check that each journalled transaction is on the topics, change by change, and no other."""
    streamed: defaultdict[int, list[tuple[int, Said]]] = defaultdict(list)
    commits: defaultdict[int, set[int]] = defaultdict(set)
    for table, records in evidence.records.items():
        for record in records:
            if record.snapshot is None:
                xid = record.value["source"]["txId"] if record.value else None
                streamed[record.position.commit_lsn].append((record.position.ordinal, _said(table, record)))
                if xid is not None:
                    commits[record.position.commit_lsn].add(xid)
    journal: defaultdict[int, list[Change]] = defaultdict(list)
    for change in evidence.journal:
        journal[change.xid].append(change)
    found: Counter[int] = Counter()
    for commit_lsn, said in sorted(streamed.items()):
        xids = commits[commit_lsn]
        where = f"commit {format_lsn(commit_lsn)}, transactions {sorted(xids)}"
        if len(xids) != 1 or not xids <= journal.keys():
            yield Violation("aborted", f"{where}: {len(said)} records that no committed transaction made")
            continue
        (xid,) = xids
        found[xid] += 1
        yield from _compare(where, dict(_expected(journal[xid])), dict(said))
    for xid, times in found.items():
        if times > 1:
            yield Violation("twice", f"transaction {xid} at {times} places")
    # A transaction that began before the slot may also have committed before it; `_versions` detects a gap there.
    start = max(_first_copy(evidence), evidence.samples[0].confirmed if evidence.samples else 0)
    for xid in journal.keys() - found.keys():
        if min(change.lsn for change in journal[xid]) >= start:
            yield Violation("lost", f"transaction {xid}: none of its {len(journal[xid])} changes")


def _first_copy(evidence: Evidence) -> int:
    """Return the LSN of the first copy.

    A copy that is interrupted before its first record is repeated with a new slot. Commits between the two slots are in
    the rows of the second copy.
    """
    begun = 0
    for _, record in sorted(evidence.positions, key=lambda found: found[0]):
        if record.counts or not record.incomplete_tables:
            break
        begun = record.here.flushed_lsn
    return begun


def _compare(where: str, expected: dict[int, Said], said: dict[int, Said]) -> Iterator[Violation]:
    for ordinal in expected.keys() - said.keys():
        yield Violation("lost", f"{where}, ordinal {ordinal}: {expected[ordinal][:3]}")
    for ordinal in said.keys() - expected.keys():
        yield Violation("aborted", f"{where}, ordinal {ordinal}: {said[ordinal][:3]}")
    for ordinal in said.keys() & expected.keys():
        if said[ordinal] != expected[ordinal] and not _fetched(said[ordinal], expected[ordinal]):
            yield Violation("altered", f"{where}, ordinal {ordinal}: {said[ordinal]} is not {expected[ordinal]}")


def _fetched(said: Said, expected: Said) -> bool:
    """Return whether only the body differs, being that of a later version: it was reread, not in the WAL.

    This is allowed where no cut is a state until the stream has reached that version; `check_cuts` verifies that.
    """
    if said[0] != "mirror" or said[:3] != expected[:3] or said[3] is None or expected[3] is None:
        return False
    row, other = dict(said[3]), dict(expected[3])
    body, version = row.pop("body"), other["body_version"]
    del other["body"]
    return row == other and any(body == body_digest(row["id"], version + more) for more in range(1, 500))


def _said(table: str, record: TopicRecord) -> Said:
    if record.value is None:
        return table, record.key, "tombstone", None
    return table, record.key, record.value["op"], _frozen(record.value["after"])


def _expected(changes: list[Change]) -> Iterator[tuple[int, Said]]:
    """Yield the expected records of a transaction by ordinal: 4 × index of the change + part."""
    for index, change in enumerate(changes):
        parts: list[Said] = []
        if change.old is not None and change.old != change.new:
            parts += [(change.table, change.old, "d", None), (change.table, change.old, "tombstone", None)]
        if change.new is not None:
            op = "u" if change.old == change.new else "c"
            parts.append((change.table, change.new, op, _frozen(change.row)))
        for part, said in enumerate(parts):
            yield index * PARTS_PER_CHANGE + part, said


def _frozen(row: Row | None) -> tuple[tuple[str, Any], ...] | None:
    return None if row is None else tuple(sorted(row.items()))


def _versions(evidence: Evidence) -> Iterator[Violation]:
    """Check that each account's counter rises by one per record; a row of a snapshot keeps the counter."""
    for table in ("account", "mirror"):
        versions: dict[Key, tuple[int, int]] = {}
        for record in evidence.records[table]:
            row = record.value["after"] if record.value else None
            if row is None:
                continue
            version = (row["version"], row.get("body_version", 0))
            before = versions.get(record.key)
            # a body's version also rises without the account's
            step = None if before is None else (version[0] - before[0]) + (version[1] - before[1])
            allowed = (0,) if record.snapshot is not None else (1, 2) if table == "mirror" else (1,)
            if step is not None and step not in allowed:
                yield Violation("order", f"{table} {record.key} at {record.position}: version {version} after {before}")
            versions[record.key] = version


def _confirmed(evidence: Evidence) -> Iterator[Violation]:
    """Check that the server never had a confirmation past the newest position record then in Kafka."""
    positions = sorted(evidence.positions, key=lambda found: found[0])
    offsets = [offset for offset, _ in positions]
    newest = [0, *accumulate((record.here.flushed_lsn for _, record in positions), max)]
    for sample in evidence.samples:
        held = newest[bisect_left(offsets, sample.progress_end)]
        first = evidence.samples[0].confirmed  # confirmed when the slot was created
        if sample.confirmed > max(held, first):
            yield Violation(
                "confirmed early",
                f"slot at {format_lsn(sample.confirmed)}, Kafka at {format_lsn(held)} (end {sample.progress_end})",
            )
