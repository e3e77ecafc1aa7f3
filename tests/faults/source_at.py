"""The source's tables as of any commit of a round, from its journal and the commit LSNs on the topics.

Transactions that are in the journal but not on the topics were committed before the slot was created, or are lost,
as the checker reports.
"""

from __future__ import annotations

from collections import defaultdict

from tests.faults.evidence import Change, Evidence, Key, Row
from tests.faults.workload import first_rows

Place = tuple[str, Key]


class SourceAt:
    """`rows` are the tables as of the LSN of the last `advance`; LSNs only rise."""

    def __init__(self, evidence: Evidence) -> None:
        self.rows: dict[str, dict[Key, Row]] = first_rows()
        commits = {
            record.value["source"]["txId"]: record.position.commit_lsn
            for records in evidence.records.values()
            for record in records
            if record.snapshot is None and record.value is not None
        }
        changes: defaultdict[int, list[Change]] = defaultdict(list)
        for change in evidence.journal:
            changes[commits.get(change.xid, 0)].append(change)
        self._left = sorted(changes.items(), reverse=True)

    def advance(self, lsn: int) -> list[Place]:
        """Apply all that was committed before `lsn`; return the changed rows."""
        touched: list[Place] = []
        while self._left and self._left[-1][0] < lsn:
            for change in self._left.pop()[1]:
                rows = self.rows[change.table]
                if change.old is not None:
                    rows.pop(change.old, None)
                    touched.append((change.table, change.old))
                if change.new is not None and change.row is not None:
                    rows[change.new] = change.row
                    touched.append((change.table, change.new))
        return touched
