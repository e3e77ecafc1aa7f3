"""Lag of the topics, as `schemas.lag` defines it, measured by the daemon.

WAL without a change of a captured table (checkpoints, other databases, our own marks) is no lag.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tailrace.schemas.lag import age

_SAMPLES: Final = 720
"""Maximum number of stored WAL ends: one hour, with a sample every five seconds."""

_UNREAD_S: Final = 4.0
"""Unread WAL younger than this is assumed to contain no changes.

The server reports at least every 1.5 s how far it has read. After this time the WAL may contain changes, and counts.
"""


_SILENT_S: Final = 20.0
"""After this time without an answer of the server, the lag is unknown: it may have new commits."""


class LagMeter:
    """Tracks committed changes that are not in Kafka yet.

    The stream's thread calls `resume`, `pending` and `delivered`, the monitor's thread `saw_wal`; any thread may call
    `seconds`. Times are seconds since 1970.
    """

    def __init__(self) -> None:
        self._pending_since: float | None = None
        self._delivered_lsn = 0
        self._target_lsn: int | None = None
        self._level = False
        self._ends: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._seen_at = 0.0

    def resume(self, flushed_lsn: int, wal_lsn: int) -> None:
        """Record that a session begins at `flushed_lsn`, with the end of the server's WAL at `wal_lsn`.

        Changes that an earlier session read and did not deliver are read again; until then, they stay the oldest
        missing ones.
        """
        self._target_lsn = max(self._target_lsn or 0, self._delivered_lsn, wal_lsn)
        self._delivered_lsn = flushed_lsn

    def pending(self, commit_us: int | None) -> None:
        """Record the commit time (microseconds) of the oldest change that is read and not in Kafka."""
        if commit_us is not None:
            self._pending_since = commit_us / 1e6

    def delivered(self, lsn: int) -> None:
        """Record that all changes committed before `lsn` are in Kafka."""
        self._delivered_lsn = lsn
        if self._caught_up:
            self._pending_since, self._level = None, True

    @property
    def _caught_up(self) -> bool:
        """Whether this session has delivered all that earlier ones had, and the WAL present at its start."""
        return self._target_lsn is not None and self._delivered_lsn >= self._target_lsn

    def saw_wal(self, at: float, lsn: int) -> None:
        """Record that the server's WAL ended at `lsn` at time `at`."""
        self._seen_at = at
        while self._ends and self._ends[0][1] <= self._delivered_lsn:
            self._ends.popleft()
        self._ends.append((at, lsn))

    def seconds(self, now: float) -> float | None:
        """Return the lag in seconds; None while unknown: at a start, and after the source stops answering."""
        pending, delivered = self._pending_since, self._delivered_lsn
        if pending is not None:
            return age(pending, now)
        unread = next((at for at, lsn in tuple(self._ends) if lsn > delivered), None)
        if unread is not None and now - unread >= _UNREAD_S:
            return age(unread, now)
        return 0.0 if self._level and now - self._seen_at < _SILENT_S else None
