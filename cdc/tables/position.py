"""Durable progress: the position and cut in Kafka, and the LSN that may be confirmed to PostgreSQL.

Only `acknowledged` advances that LSN, and it is called only for records that Kafka has committed. So received but
uncommitted changes, whose confirmation would lose data, are never confirmed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import Cut, PositionRecord, diverted_after, states_after, without_lost
from tailrace.sinks.kafka.outbox import Destination


class Progress:
    """The position records of one slot, starting with the stored one.

    `reread` holds, for each table, the LSN that the stream must pass until values fetched from the source are no newer
    than the rest of the cut.
    """

    def __init__(self, origin: PositionRecord) -> None:
        """`origin` is the stored record, or for a new slot one with its consistent point and an empty cut."""
        self.newest = origin
        self.reread = dict(origin.reread)
        self._offsets = dict(origin.here.offsets)

    @property
    def epoch(self) -> int:
        return self.newest.here.position.epoch

    @property
    def flushed_lsn(self) -> int:
        """The LSN before which everything committed is in Kafka."""
        return self.newest.here.flushed_lsn

    def record(
        self,
        *,
        position: Position,
        flushed_lsn: int,
        commit_us: int,
        open_xid: int | None,
        counts: dict[str, int],
        diverted: Mapping[str, int],
        destinations: Iterable[Destination],
        incomplete: Set[str],
        parked: dict[str, str],
    ) -> PositionRecord:
        """Return the record that ends the open Kafka transaction; its cut has the destinations' offsets.

        `incomplete` are the tables, besides those in `reread`, for which this cut is not a state. `parked` are some of
        them, with the codes of their errors. `diverted` has the number of new dead letters of each table.
        """
        self.reread = {table: lsn for table, lsn in self.reread.items() if lsn > flushed_lsn}
        offsets = self._offsets | {to.topic: list(to.next_offsets) for to in destinations}
        here = replace(
            self.newest.here,
            position=position,
            flushed_lsn=flushed_lsn,
            commit_ts_us=commit_us or self.newest.here.commit_ts_us,
            offsets=offsets,
        )
        not_whole = tuple(sorted(incomplete | self.reread.keys()))
        is_state = open_xid is None and not not_whole
        before = without_lost(self.newest, parked)
        return PositionRecord(
            here=here,
            publication_oid=self.newest.publication_oid,
            nokey_oid=self.newest.nokey_oid,
            open=open_xid,
            incomplete_tables=not_whole,
            newest_state=None if is_state else before.state,
            states=states_after(before, open_xid, not_whole),
            counts=counts,
            diverted=self.newest.diverted + sum(diverted.values()),
            diverted_tables=diverted_after(self.newest.diverted_tables, diverted, int(time.time() * 1000)),
            reread=self.reread,
            generation=self.newest.generation,
            parked=parked,
        )

    def acknowledged(self, record: PositionRecord) -> int:
        """Record that Kafka has committed `record`; return the LSN that may be confirmed to PostgreSQL."""
        self.newest = record
        self._offsets = dict(record.here.offsets)
        return record.here.flushed_lsn


def origin_behind_gap(stored: PositionRecord, origin: PositionRecord) -> PositionRecord:
    """Return the `origin` of a new slot as the successor of `stored`, with changes lost in between.

    Its positions sort after the old ones. The epoch rises only if LSNs start again: on another or a restored server.
    """
    then, now = stored.here, origin.here
    end = max(then.flushed_lsn, then.position.commit_lsn)
    same = then.system_identifier == now.system_identifier and now.position.commit_lsn >= end
    epoch = then.position.epoch + (not same)
    return replace(
        origin,
        here=replace(now, position=replace(now.position, epoch=epoch), offsets=then.offsets),
        newest_state=stored.state,
        states=states_after(stored, origin.open, origin.incomplete_tables),
        diverted=stored.diverted,
        diverted_tables=stored.diverted_tables,
        generation=stored.generation + 1,
    )


def new_origin(
    epoch: int,
    consistent_point: int,
    system_identifier: str,
    timeline: int,
    publication_oids: tuple[int, int],
    tables: Iterable[str],
) -> PositionRecord:
    """Return the position record from which a new slot starts: nothing read, all tables incomplete.

    The second of `publication_oids` is the oid of the publication for tables without a key, 0 if there is none.
    """
    cut = Cut(
        position=Position(epoch, consistent_point - 1, 0),
        flushed_lsn=consistent_point,
        commit_ts_us=0,
        system_identifier=system_identifier,
        timeline=timeline,
    )
    oid, nokey_oid = publication_oids
    return PositionRecord(
        here=cut, publication_oid=oid, nokey_oid=nokey_oid, incomplete_tables=tuple(sorted(tables)), recorded=False
    )


def before_slot(origin: PositionRecord) -> PositionRecord:
    """Return the position record to write before a slot is created.

    If later only this record and a slot are found, the slot is ours.
    """
    return replace(
        origin, here=replace(origin.here, position=Position(origin.here.position.epoch, 0, 0)), recorded=True
    )
