"""The spool compared with the simplest model of it: a list per transaction."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tailrace.cdc.wal.spool import Spool

_xids = st.integers(1, 4)
_subs = st.integers(1, 5)
_HEAD = 16


class SpoolMachine(RuleBasedStateMachine):
    @initialize(limit=st.integers(0, 400))
    def start(self, limit: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-test-"))
        self.limit = limit
        self.spool = Spool(self.folder, limit)
        self.model: dict[int, list[tuple[int, int, bytes]]] = {}
        self.aborted: dict[int, set[int]] = {}
        self.lsn = 0

    @rule(xid=_xids, sub=_subs, message=st.binary(max_size=60))
    def append(self, xid: int, sub: int, message: bytes) -> None:
        self.lsn += 1
        self.spool.append(xid, xid * 10 + sub, self.lsn, message)
        self.model.setdefault(xid, []).append((xid * 10 + sub, self.lsn, message))

    @rule(xid=_xids, sub=_subs)
    def abort_part(self, xid: int, sub: int) -> None:
        self.spool.abort(xid, xid * 10 + sub)
        if xid in self.model:
            self.aborted.setdefault(xid, set()).add(xid * 10 + sub)

    @rule(xid=_xids)
    def abort_whole(self, xid: int) -> None:
        self.spool.abort(xid, xid)
        self._drop(xid)

    @rule(xid=_xids)
    def take(self, xid: int) -> None:
        assert list(self.spool.take(xid)) == self._expected(xid)
        self._drop(xid)

    @rule(xid=_xids, count=st.integers(1, 3), message=st.binary(max_size=60))
    def break_off(self, xid: int, count: int, message: bytes) -> None:
        """Take a few messages while another transaction grows."""
        expected = self._expected(xid)[:count]
        taken = self.spool.take(xid)
        for each in expected:
            assert next(taken) == each
            self.append(xid % 4 + 1, 1, message)
        if expected:
            self._drop(xid)

    def _expected(self, xid: int) -> list[tuple[int, bytes]]:
        aborted = self.aborted.get(xid, set())
        return [(lsn, message) for sub, lsn, message in self.model.get(xid, []) if sub not in aborted]

    def _drop(self, xid: int) -> None:
        self.model.pop(xid, None)
        self.aborted.pop(xid, None)

    @invariant()
    def counted(self) -> None:
        if hasattr(self, "spool"):
            assert self.spool.memory_bytes <= self.limit
            held = sum(_HEAD + len(message) for changes in self.model.values() for _, _, message in changes)
            assert self.spool.memory_bytes + self.spool.disk_bytes == held
            assert list(self.folder.iterdir()) == []

    def teardown(self) -> None:
        if hasattr(self, "spool"):
            self.spool.close()
            assert (self.spool.memory_bytes, self.spool.disk_bytes) == (0, 0)
            shutil.rmtree(self.folder)


TestSpool = SpoolMachine.TestCase
TestSpool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
