"""Lag, defined once for status, metrics, `/readyz` and views.

Lag is the time since the commit of the oldest change of a captured table that a reader does not have yet, in seconds;
0 when there is none. WAL that brings no such change (checkpoints, other databases, our own marks) is no lag.
Commit times are the source's clock, `now` is ours.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_SAMPLES: Final = 720
"""Bounds how far back the end of the WAL is remembered: an hour, with a sample every five seconds."""

_UNREAD_S: Final = 4.0
"""For how long WAL that nobody has read yet is taken for WAL without changes.

The server says at least every 1.5 s how far it has read. Past this time the WAL may hold changes, and counts.
"""


_SILENT_S: Final = 20.0
"""When the server was not seen for so long, nobody knows what has been committed there since."""


def age(since: float | None, now: float) -> float:
    """Return the lag at `now` if `since` is when the oldest missing change was committed; None: none is missing."""
    return 0.0 if since is None else round(max(0.0, now - since), 3)


class LagMeter:
    """What a daemon knows of committed changes that are not in Kafka yet.

    The stream's thread calls `resume`, `pending` and `delivered`, the watch's thread `saw_wal`; anyone may ask.
    Times are seconds since 1970.
    """

    def __init__(self) -> None:
        self._pending_since: float | None = None
        self._delivered_lsn = 0
        self._target_lsn: int | None = None
        self._level = False
        self._ends: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._seen_at = 0.0

    def resume(self, flushed_lsn: int, wal_lsn: int) -> None:
        """Note that a session begins at `flushed_lsn`, with the server's WAL at `wal_lsn`.

        What an earlier session had read and not delivered is read again: until then it stays the oldest missing.
        """
        self._target_lsn = max(self._target_lsn or 0, self._delivered_lsn, wal_lsn)
        self._delivered_lsn = flushed_lsn

    def pending(self, commit_us: int | None) -> None:
        """Note when the oldest change was committed that has been read and is not in Kafka (microseconds)."""
        if commit_us is not None:
            self._pending_since = commit_us / 1e6

    def delivered(self, lsn: int) -> None:
        """Note that all changes committed before `lsn` are in Kafka."""
        self._delivered_lsn = lsn
        if self._caught_up:
            self._pending_since, self._level = None, True

    @property
    def _caught_up(self) -> bool:
        """Whether this session has read what earlier ones had, and what was there when it began."""
        return self._target_lsn is not None and self._delivered_lsn >= self._target_lsn

    def saw_wal(self, at: float, lsn: int) -> None:
        """Note that the server's WAL ended at `lsn`."""
        self._seen_at = at
        while self._ends and self._ends[0][1] <= self._delivered_lsn:
            self._ends.popleft()
        self._ends.append((at, lsn))

    def seconds(self, now: float) -> float | None:
        """Return the lag; None while it is not known: at a start, and when the source cannot be asked any more."""
        pending, delivered = self._pending_since, self._delivered_lsn
        if pending is not None:
            return age(pending, now)
        unread = next((at for at, lsn in tuple(self._ends) if lsn > delivered), None)
        if unread is not None and now - unread >= _UNREAD_S:
            return age(unread, now)
        return 0.0 if self._level and now - self._seen_at < _SILENT_S else None
