"""The records of the topics ``{prefix}.tailrace.progress``, ``{prefix}.tailrace.tables``, and of the views topic.

Keys are JSON arrays. On the progress topic: ``[slot, "position"]``. On the tables topic: ``[slot, "table", table]``,
whose value is a `schemas.layout.TableState`, and ``[slot, "chunk", table, run, n]``. Every Kafka transaction of the
daemon ends with a position record. A cut taken from it names, for every partition of every topic, the offset behind the
last record that belongs to the state as of `flushed_lsn`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Self

import orjson

from schemas.lsn import Position, format_lsn, parse_lsn


@dataclass(frozen=True, slots=True)
class Cut:
    """The state of all topics as of one LSN: everything committed before `flushed_lsn`, nothing after.

    `offsets[topic][partition]` is the next offset; a topic that is missing has none yet (read nothing from it).
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
        """What decides which cut is newer: an idle advance keeps the position and moves `flushed_lsn`."""
        return self.position, self.flushed_lsn

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; LSNs as PostgreSQL prints them."""
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


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The last record of a Kafka transaction.

    `here` is the cut at this very transaction. It is a state if no source transaction is split across it (`open` is
    None) and no table is in the middle of its snapshot (`incomplete_tables` is empty); otherwise `newest_state` is
    the last cut that was one, if any. `counts` is the number of records this Kafka transaction wrote per topic,
    `diverted` that of all dead letters so far. `nokey_oid` is the oid of the publication for tables without a key, 0 if
    there is none. `reread` names the tables of which values were read again, with the LSN up to which they may be newer
    than the cut: these, too, are incomplete until then. `generation` rises when a new slot begins behind changes that
    the topics lack: what was kept beside them is of no use any more. `parked` has the code of the error of each table
    that is set aside: it is incomplete until a person resumes it.
    """

    here: Cut
    publication_oid: int
    open: int | None = None
    incomplete_tables: tuple[str, ...] = ()
    newest_state: Cut | None = None
    counts: dict[str, int] = field(default_factory=dict)
    diverted: int = 0
    nokey_oid: int = 0
    reread: dict[str, int] = field(default_factory=dict)
    generation: int = 1
    parked: dict[str, str] = field(default_factory=dict)

    @property
    def is_begun(self) -> bool:
        """Whether a slot goes with it: the first record of all comes before the slot is made, and has no position."""
        return self.here.position.commit_lsn > 0

    @property
    def end_lsn(self) -> int:
        """All transactions of which the topics hold anything began their commit before it."""
        return max(self.here.flushed_lsn, self.here.position.commit_lsn + 1)

    @property
    def is_state(self) -> bool:
        return self.open is None and not self.incomplete_tables

    @property
    def state(self) -> Cut | None:
        """The newest cut that is a state, up to and including this one."""
        return self.here if self.is_state else self.newest_state

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
            }
        )

    @classmethod
    def from_json(cls, raw: bytes) -> Self:
        value = orjson.loads(raw)
        return cls(
            here=Cut.from_dict(value["here"]),
            publication_oid=value["publication_oid"],
            open=value["open"],
            incomplete_tables=tuple(value["incomplete_tables"]),
            newest_state=Cut.from_dict(value["newest_state"]) if value["newest_state"] else None,
            counts=value["counts"],
            diverted=value.get("diverted", 0),
            nokey_oid=value["nokey_oid"],
            reread={table: parse_lsn(lsn) for table, lsn in value.get("reread", {}).items()},
            generation=value.get("generation", 1),
            parked=value.get("parked", {}),
        )


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
