"""Cuts (also used on the views topic), position records, and the keys of progress and tables topic.

Keys are JSON arrays. On ``{prefix}.tailrace.progress``: ``[slot, "position"]``. On ``{prefix}.tailrace.tables``:
``[slot, "table", table]``, whose value is a `layout.TableState`, and ``[slot, "chunk", table, run, n]``. Every Kafka
transaction of the daemon ends with a position record. Its cut gives, for every partition of every topic, the offset
after the last record that belongs to the state as of `flushed_lsn`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

import orjson

from tailrace.schemas.lsn import Position, format_lsn, parse_lsn


@dataclass(frozen=True, slots=True)
class Cut:
    """The state of all topics as of one LSN: everything committed before `flushed_lsn`, nothing after.

    `offsets[topic][partition]` is the next offset; a missing topic has none yet (read nothing from it).
    `commit_ts_us` is the source's commit time of the newest transaction inside, microseconds since 1970 (0: none yet).
    """

    position: Position
    flushed_lsn: int
    commit_ts_us: int
    system_identifier: str
    timeline: int
    offsets: dict[str, list[int]] = field(default_factory=dict)

    @property
    def order(self) -> tuple[Position, int]:
        """Sort key from old to new: an idle advance keeps the position and moves `flushed_lsn`."""
        return self.position, self.flushed_lsn

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with LSNs as PostgreSQL prints them."""
        value = asdict(self)
        value["position"] = _position_dict(self.position)
        value["flushed_lsn"] = format_lsn(self.flushed_lsn)
        return value

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(
            position=_position(value["position"]),
            flushed_lsn=parse_lsn(value["flushed_lsn"]),
            commit_ts_us=value["commit_ts_us"],
            system_identifier=value["system_identifier"],
            timeline=value["timeline"],
            offsets=value["offsets"],
        )

    def to_json(self) -> str:
        return orjson.dumps(self.to_dict()).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls.from_dict(orjson.loads(text))


MOST_BOUNDARIES: Final = 8
"""Limit of the cuts in a position record's `states`; the oldest are dropped.

If only a dropped cut was a state for a view's tables, the view gets an older cut or none: it does not advance, or
cannot start, until one of them is complete.
"""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A cut at which no source transaction was split, with the tables that were incomplete there.

    For every other table it is a state: the table's topic up to the cut equals the table as of its LSN.
    """

    cut: Cut
    incomplete: frozenset[str]


RECORDS_LOST: Final = "TR-424"
"""Error code of a table whose topic has lost records."""

MOST_DIVERTED: Final = 100
"""Limit of the tables in a position record's `diverted_tables`: those with the newest dead letters."""


@dataclass(frozen=True, slots=True)
class Diverted:
    """Number of a table's dead letters, and the time of the newest one (ms since 1970, on the daemon's clock)."""

    changes: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The last record of a Kafka transaction.

    `here` is the cut at this transaction. It is a state if no source transaction is split across it (`open` is None)
    and no table is incomplete (`incomplete_tables` is empty); otherwise `newest_state` is the last cut that was one, if
    any. `states` are the cuts between these two that are the newest state for some tables, newest first
    (`states_after`); records of older versions have none. `counts` is the number of records per topic in this Kafka
    transaction, `diverted` the number of all dead letters so far, `diverted_tables` those of each table, as far as they
    have been counted by table (`diverted_after`). `nokey_oid` is the oid of the publication for tables without a key, 0
    if there is none. `reread` has the tables of which values were read again, with the LSN up to which these may be
    newer than the cut: until then, such a table is incomplete. `generation` rises when a new slot begins after changes
    that the topics lack, so that records stored beside them are invalid. `parked` has each parked table's error code:
    the table is incomplete until a person resumes it.
    """

    here: Cut
    publication_oid: int
    open: int | None = None
    incomplete_tables: tuple[str, ...] = ()
    newest_state: Cut | None = None
    states: tuple[Boundary, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    diverted: int = 0
    diverted_tables: dict[str, Diverted] = field(default_factory=dict)
    nokey_oid: int = 0
    reread: dict[str, int] = field(default_factory=dict)
    generation: int = 1
    parked: dict[str, str] = field(default_factory=dict)
    recorded: bool = True

    @property
    def is_begun(self) -> bool:
        """True if a slot belongs to it: the very first record precedes the slot and has no position."""
        return self.here.position.commit_lsn > 0

    @property
    def diverted_uncounted(self) -> int:
        """The number of dead letters that are not counted by table."""
        return self.diverted - sum(each.changes for each in self.diverted_tables.values())

    @property
    def diverted_newest_first(self) -> list[tuple[str, Diverted]]:
        """The tables with dead letters, those with the newest ones first."""
        return sorted(self.diverted_tables.items(), key=lambda each: (-each[1].last_ms, each[0]))

    @property
    def end_lsn(self) -> int:
        """The LSN before which the commits of all transactions on the topics began, even of partial ones."""
        return max(self.here.flushed_lsn, self.here.position.commit_lsn + 1)

    @property
    def is_state(self) -> bool:
        return self.open is None and not self.incomplete_tables

    @property
    def state(self) -> Cut | None:
        """The newest cut that is a state of all tables, up to and including this one."""
        return self.here if self.is_state else self.newest_state

    def state_for(self, tables: Collection[str]) -> Cut | None:
        """Return the newest cut that is a state of all of `tables` (``schema.table``), if there is one.

        It need not be a state of other tables. Each cut has its own incomplete tables, because the last complete cut
        per table is not sufficient: at the older of two such cuts, the other table may have been incomplete.
        """
        if self.open is None and not self.waits_for(tables):
            return self.here
        found = (boundary.cut for boundary in self.states if boundary.incomplete.isdisjoint(tables))
        return next(found, self.newest_state)

    def waits_for(self, tables: Collection[str]) -> tuple[str, ...]:
        """Return the incomplete ones of `tables`: while there are any, `state_for` does not advance."""
        wanted = set(tables)
        return tuple(table for table in self.incomplete_tables if table in wanted)

    def to_json(self) -> bytes:
        return orjson.dumps(
            {
                "here": self.here.to_dict(),
                "publication_oid": self.publication_oid,
                "open": self.open,
                "incomplete_tables": self.incomplete_tables,
                "newest_state": self.newest_state.to_dict() if self.newest_state else None,
                "counts": self.counts,
                "diverted": self.diverted,
                "nokey_oid": self.nokey_oid,
                "reread": {table: format_lsn(lsn) for table, lsn in self.reread.items()},
                "generation": self.generation,
                "parked": self.parked,
                **({"diverted_tables": _diverted_dict(self.diverted_tables)} if self.diverted_tables else {}),
                **({"states": [_boundary_dict(each, self.here) for each in self.states]} if self.states else {}),
            }
        )

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        here = Cut.from_dict(value["here"])
        return cls(
            here=here,
            publication_oid=value["publication_oid"],
            open=value["open"],
            incomplete_tables=tuple(value["incomplete_tables"]),
            newest_state=Cut.from_dict(value["newest_state"]) if value["newest_state"] else None,
            states=tuple(_boundary(each, here) for each in value.get("states", ())),
            counts=value["counts"],
            diverted=value.get("diverted", 0),
            diverted_tables={table: Diverted(*each) for table, each in value.get("diverted_tables", {}).items()},
            nokey_oid=value["nokey_oid"],
            reread={table: parse_lsn(lsn) for table, lsn in value.get("reread", {}).items()},
            generation=value.get("generation", 1),
            parked=value.get("parked", {}),
        )


def states_after(before: PositionRecord, open_xid: int | None, incomplete: Collection[str]) -> tuple[Boundary, ...]:
    """Return the `states` of the record that follows `before`.

    Of all cuts that split no source transaction, these are the newest state of some set of tables: a cut is dropped
    once a newer one is complete for all the tables for which it was. A cut with all tables complete is `newest_state`
    and is not repeated here.
    """
    known = before.states
    if before.recorded and before.open is None:
        incomplete_then = frozenset(before.incomplete_tables)
        known = (Boundary(before.here, incomplete_then), *known) if incomplete_then else ()
    if open_xid is None:
        now = frozenset(incomplete)
        known = tuple(boundary for boundary in known if not now <= boundary.incomplete)
    return known[:MOST_BOUNDARIES]


def without_lost(before: PositionRecord, parked: Mapping[str, str]) -> PositionRecord:
    """Return `before` as the predecessor of a record with these `parked` tables: as if those had been incomplete at
    all cuts whose topics have lost records.

    A reader of an older cut would find records of that topic missing, and once the topic is filled again, would find
    none and raise no error.
    """
    lost = frozenset(table for table, code in parked.items() if code == RECORDS_LOST)
    if not lost:
        return before
    states = [replace(boundary, incomplete=boundary.incomplete | lost) for boundary in before.states]
    if not before.is_state and before.newest_state is not None:
        states.append(Boundary(before.newest_state, lost))
    newest: list[Boundary] = []
    for boundary in states:  # newest first
        if not any(newer.incomplete <= boundary.incomplete for newer in newest):
            newest.append(boundary)
    incomplete = tuple(sorted(lost.union(before.incomplete_tables)))
    return replace(before, incomplete_tables=incomplete, newest_state=None, states=tuple(newest))


def diverted_after(before: Mapping[str, Diverted], new: Mapping[str, int], now_ms: int) -> dict[str, Diverted]:
    """Return the `diverted_tables` of the record that follows one with `before`, after `new` dead letters by table.

    Records of older versions have none, and of too many tables the oldest are dropped: then `diverted` is more than the
    sum.
    """
    if not new:
        return dict(before)
    counted = {table: Diverted(_changes(before, table) + count, now_ms) for table, count in new.items()}
    found = sorted({**before, **counted}.items(), key=lambda each: -each[1].last_ms)
    return dict(found[:MOST_DIVERTED])


def _changes(diverted: Mapping[str, Diverted], table: str) -> int:
    return diverted[table].changes if table in diverted else 0


def _diverted_dict(diverted: Mapping[str, Diverted]) -> dict[str, list[int]]:
    return {table: [each.changes, each.last_ms] for table, each in diverted.items()}


def _boundary_dict(boundary: Boundary, here: Cut) -> dict[str, Any]:
    """Return the JSON form, with only the offsets that differ from `here`; null for a topic that is newer."""
    cut = boundary.cut
    topics = (*here.offsets, *(topic for topic in cut.offsets if topic not in here.offsets))
    moved = {topic: cut.offsets.get(topic) for topic in topics if cut.offsets.get(topic) != here.offsets.get(topic)}
    value = replace(cut, offsets={}).to_dict()
    value["offsets"] = moved
    return {"cut": value, "incomplete_tables": sorted(boundary.incomplete)}


def _boundary(value: dict[str, Any], here: Cut) -> Boundary:
    cut = Cut.from_dict(value["cut"])
    offsets = {topic: ends for topic, ends in (here.offsets | cut.offsets).items() if ends is not None}
    return Boundary(replace(cut, offsets=offsets), frozenset(value["incomplete_tables"]))


def position_key(slot: str) -> bytes:
    return orjson.dumps([slot, "position"])


def table_key(slot: str, table: str) -> bytes:
    return orjson.dumps([slot, "table", table])


def chunk_key(slot: str, table: str, run: int, n: int) -> bytes:
    return orjson.dumps([slot, "chunk", table, run, n])


def _position_dict(position: Position) -> dict[str, Any]:
    return {
        "epoch": position.epoch,
        "commit_lsn": format_lsn(position.commit_lsn),
        "ordinal": position.ordinal,
    }


def _position(value: dict[str, Any]) -> Position:
    return Position(value["epoch"], parse_lsn(value["commit_lsn"]), value["ordinal"])
