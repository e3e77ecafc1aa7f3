"""Where the snapshots of tables stand, from what Kafka holds: it is known on every machine, whether a daemon runs or
not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cdc.ops.read_status import read_stored
from cdc.stored_reads import stored_reads
from schemas.config import Config
from schemas.layout import Asked
from schemas.requests import Request
from sinks.requests import RequestTail


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table's newest run. `incomplete`: no cut is a state until it is done. `chunks` is None before it is planned."""

    table: str
    run: int
    state: str
    incomplete: bool
    chunks: int | None = None
    chunks_done: int | None = None
    where: str | None = None
    rate: int | None = None
    reconcile: bool = False


@dataclass(frozen=True, slots=True)
class Snapshots:
    """All tables, and the requests that no daemon has taken up yet."""

    tables: tuple[TableSnapshot, ...]
    waiting: tuple[Request, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_snapshots(config: Config) -> Snapshots:
    """Ask Kafka. SinkError if it does not answer."""
    reads = stored_reads(config)
    stored, _ = read_stored(config)
    incomplete = set(stored.incomplete_tables) - stored.reread.keys() if stored else set()
    found = []
    for name, state in sorted(reads.states.items()):
        if state.oid == 0 and name not in incomplete:
            continue  # it has another name by now
        asked = state.asked or Asked()
        chunks = [value["done"] for (table, run, _), value in reads.chunks.items() if (table, run) == (name, state.run)]
        reading = name in incomplete or state.asked is not None
        found.append(
            TableSnapshot(
                name,
                state.run,
                _state(asked, chunks) if reading else "done",
                name in incomplete,
                len(chunks) if chunks else None,
                sum(chunks) if chunks else None,
                asked.where,
                asked.rate,
                asked.since is not None,
            )
        )
    tail = RequestTail(config.kafka, config.source.slot)
    try:
        return Snapshots(tuple(found), tail.waiting)
    finally:
        tail.close()


def _state(asked: Asked, chunks: list[bool]) -> str:
    if asked.paused:
        return "paused"
    if not chunks:
        return "waiting"
    return "deleting what is gone" if all(chunks) and asked.since is not None else "reading"
