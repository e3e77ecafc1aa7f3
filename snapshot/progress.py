"""Progress of table reads, from the daemon's counts and from its records on the tables topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from tailrace.snapshot.plan import Chunk


@dataclass(frozen=True, slots=True)
class Counted:
    """Result of a chunk: rows, bytes of COPY's text, and its completion time (milliseconds since 1970)."""

    rows: int = 0
    copied: int = 0
    ms: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "copied": self.copied, "ms": self.ms}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        return cls(value.get("rows", 0), value.get("copied", 0), value.get("ms", 0))


@dataclass(slots=True)
class TableProgress:
    """Progress of the newest read of a table, counted by complete chunks.

    `size` are the table's bytes in all chunks, `size_done` those in the chunks that are read; `rows` and `copied` are
    the rows and bytes of COPY's text from these. Times are milliseconds since 1970.
    """

    table: str
    run: int
    began_ms: int = 0
    newest_ms: int = 0
    chunks: int = 0
    chunks_done: int = 0
    size: int = 0
    size_done: int = 0
    rows: int = 0
    copied: int = 0

    @property
    def done(self) -> bool:
        return self.chunks_done == self.chunks

    def rows_per_s(self, now_ms: int = 0, limit: int | None = None) -> float:
        """Return the mean rate from the start of the read to its newest chunk, or to `now_ms` while reading.

        With a limit, each chunk is followed by a pause that belongs to its time, so the mean is at most the limit.
        """
        mean = self.rows / max((max(now_ms, self.newest_ms) - self.began_ms) / 1000, 0.001)
        return mean if limit is None else min(mean, limit)


class ReadProgress(dict[str, TableProgress]):
    """The newest read of each table, by name; bounded by the number of tables."""

    def planned(self, chunk: Chunk, run: int) -> None:
        """Record a chunk that is to be read."""
        there = self.get(chunk.table)
        if there is None or there.run < run:
            there = self[chunk.table] = TableProgress(chunk.table, run, chunk.planned_ms, chunk.planned_ms)
        if there.run == run:
            there.chunks += 1
            there.size += chunk.size

    def read(self, chunk: Chunk, run: int, counted: Counted) -> None:
        """Record a chunk that has been read."""
        there = self.get(chunk.table)
        if there is not None and there.run == run:
            there.chunks_done += 1
            there.size_done += chunk.size
            there.rows += counted.rows
            there.copied += counted.copied
            there.newest_ms = max(there.newest_ms, counted.ms)


def seconds_left(tables: Iterable[TableProgress], now_ms: int) -> float | None:
    """Return the seconds that the rest takes at the rate so far, by bytes of table; None without a rate."""
    open_or_done = list(tables)
    size, done = sum(each.size for each in open_or_done), sum(each.size_done for each in open_or_done)
    began = min((each.began_ms for each in open_or_done), default=now_ms)
    return (size - done) * (now_ms - began) / 1000 / done if done else 0.0 if size == done else None


def stored_progress(records: Iterable[tuple[int, dict[str, Any]]]) -> ReadProgress:
    """Return the progress from (run, chunk record) pairs: the newest record of each chunk, in any order."""
    found = ReadProgress()
    for run, value in sorted(records, key=lambda record: record[0]):
        chunk = Chunk.from_dict(value)
        found.planned(chunk, run)
        if value["done"]:
            found.read(chunk, run, Counted.from_dict(value))
    return found
