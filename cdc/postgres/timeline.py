"""Server identity in the WAL: system identifier, timeline, and the ends of earlier timelines.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tailrace.cdc.postgres.connect import command, connect_replication
from tailrace.schemas.errors import SourceError, StateError
from tailrace.schemas.lsn import format_lsn, parse_lsn
from tailrace.schemas.records.position import PositionRecord

_PRIMARY = "Let source.dsn connect to the current primary: host=a,b target_session_attrs=read-write finds it."


@dataclass(frozen=True, slots=True)
class Identity:
    """Server identity; `system_identifier` is a decimal number as text, `lsn` the end of its flushed WAL.

    `history` has, if it was queried, the LSN at which each ancestor timeline ended.
    """

    system_identifier: str
    timeline: int
    lsn: int
    history: Mapping[int, int] = field(default_factory=dict)

    def check(self, stored: PositionRecord, hint: str) -> None:
        """Raise StateError (TR-403, TR-421, TR-422) if the server's history lacks WAL of the topics."""
        here = stored.here
        if here.system_identifier != self.system_identifier:
            raise StateError(
                "TR-403",
                "this is not the server that the topics were filled from",
                detail=f"Its system identifier is {self.system_identifier}, that of the topics"
                f" {here.system_identifier}.",
                hint=f"{_PRIMARY} If the server was replaced on purpose:\n       {hint}",
            )
        if here.timeline == self.timeline:
            if self.lsn < stored.end_lsn:
                raise StateError(
                    "TR-422",
                    "the server's WAL ends before the topics: it was restored from a backup",
                    detail=f"Its WAL ends at {format_lsn(self.lsn)}, the topics at {format_lsn(stored.end_lsn)},"
                    f" {stored.end_lsn - self.lsn} bytes further; both are on timeline {self.timeline}.",
                    hint=f"{_PRIMARY} If this is the primary:\n       {hint}",
                )
            return
        left_at = self.history.get(here.timeline)
        if left_at is None:
            raise StateError(
                "TR-421",
                f"the server's timeline {self.timeline} does not descend from timeline {here.timeline} of the topics",
                detail="It is a former primary, or was restored from a backup taken before a promotion.",
                hint=f"{_PRIMARY} If this is the primary:\n       {hint}",
            )
        # a value fetched from the source may belong to a transaction that the stream had not shown yet
        end = max(stored.end_lsn, *stored.reread.values(), 0)
        if end > left_at:
            newest = "lacks" if here.position.commit_lsn >= left_at else "has"
            raise StateError(
                "TR-421",
                "the promoted server lacks changes that are on the topics",
                detail=f"Timeline {here.timeline} ended at {format_lsn(left_at)}; the topics continue to"
                f" {format_lsn(end)}, {end - left_at} bytes of WAL further. The server {newest} their newest"
                f" transaction, committed at {format_lsn(here.position.commit_lsn)}.",
                hint=f"{hint}\n       From PostgreSQL 17 on, synchronized_standby_slots on the primary prevents the"
                " topics from getting ahead of a standby.",
            )

    def promoted(self, timeline: int) -> str:
        """Return a sentence about the server's promotion since `timeline`; empty if there was none."""
        left_at = self.history.get(timeline)
        if timeline == self.timeline or left_at is None:
            return ""
        return f"The server was promoted at {format_lsn(left_at)}, from timeline {timeline} to {self.timeline}."


def identify(dsn: str, timeline: int | None) -> Identity:
    """Query the server's identity; its timeline history only if it is not on `timeline`.

    pg_control_checkpoint() is unsuitable: between a promotion and the first checkpoint it has the old timeline.
    """
    pgconn = connect_replication(dsn)
    try:
        system_identifier, now, lsn, _ = (text or b"" for text in command(pgconn, "IDENTIFY_SYSTEM")[0])
        found = Identity(system_identifier.decode(), int(now), parse_lsn(lsn.decode()))
        if timeline in (None, found.timeline) or found.timeline == 1:
            return found
        try:
            ((_, content),) = command(pgconn, f"TIMELINE_HISTORY {found.timeline}")
        except SourceError:  # without the history file the ancestors are unknown
            return found
        return replace(found, history=parse_history((content or b"").decode(errors="replace")))
    finally:
        pgconn.finish()


def parse_history(text: str) -> dict[int, int]:
    """Parse a timeline history file: timeline, LSN at which it ended, and reason, separated by tabs."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        words = line.split(maxsplit=2)
        if len(words) >= 2 and words[0].isdigit():
            found[int(words[0])] = parse_lsn(words[1])
    return found
