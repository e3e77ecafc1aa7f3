"""Read the tables topic: the state, layout and snapshot progress of each table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tailrace.schemas.config.model import Config
from tailrace.schemas.records.daemon import DaemonRecord
from tailrace.schemas.records.layout import TableState, TableStatus
from tailrace.schemas.records.topics import Topics
from tailrace.sinks.control.positions import TIMEOUT, Reader
from tailrace.snapshot.plan import Chunk
from tailrace.snapshot.progress import ReadProgress, stored_progress


@dataclass(frozen=True, slots=True)
class StoredReads:
    """Table states by name, the newest record of each chunk by (table, run, n), and the daemon's record.

    If `counted` is given, it is the reads' progress, and `chunks` is empty.
    """

    states: Mapping[str, TableState] = field(default_factory=dict)
    chunks: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    daemon: DaemonRecord | None = None
    counted: ReadProgress | None = None

    def left(self, table: str, run: int) -> list[Chunk]:
        """Return the chunks of a table's run that are not read yet; empty if the run was not planned."""
        return [
            Chunk.from_dict(value)
            for (name, of_run, _), value in self.chunks.items()
            if name == table and of_run == run and not value["done"]
        ]

    def unread(self) -> set[str]:
        """Return the tables whose newest run has begun and not ended.

        The newest position record also lists them as incomplete, but without transactions it may be older than these
        records.
        """
        planned = {
            table
            for (table, run, _), value in self.chunks.items()
            if not value["done"] and table in self.states and self.states[table].run == run
        }
        wanted = {table for table, state in self.states.items() if state.status in (None, TableStatus.WANTED)}
        return planned | {table for table in wanted if self.states[table].oid and self.states[table].layout is None}

    def remedies(self) -> dict[str, str]:
        """Return the statements that publish all changes of each unpublished table."""
        return {name: each.remedy for name, each in self.states.items() if each.status is TableStatus.UNPUBLISHED}

    def progress(self) -> ReadProgress:
        """Return the progress of each table's newest read."""
        if self.counted is not None:
            return self.counted
        return stored_progress((run, value) for (_, run, _), value in self.chunks.items())


def stored_reads(config: Config, timeout: float = TIMEOUT, counted: ReadProgress | None = None) -> StoredReads:
    """Read the tables topic; without its chunks if the caller has `counted` the progress itself."""
    states: dict[str, TableState] = {}
    found = StoredReads(states)
    daemon: DaemonRecord | None = None
    with Reader(config.kafka, Topics(config.kafka.prefix).tables, timeout, once=True) as reader:
        for record in reader.all():
            key, value = record.key(), record.value()
            if not isinstance(key, bytes):
                continue
            slot, kind, *name = orjson.loads(key)
            if slot != config.source.slot:
                continue
            if kind == "table" and value is not None:
                states[name[0]] = TableState.from_json(value)
            elif kind == "chunk" and counted is None:
                table, run, n = name
                if value is None:
                    found.chunks.pop((table, run, n), None)
                else:
                    found.chunks[table, run, n] = orjson.loads(value)
            elif kind == "daemon" and value is not None:
                daemon = DaemonRecord.from_json(value)
    return replace(found, daemon=daemon, counted=counted)
