"""Compare three sides in a temporary database: source at X, topic at X and at C, view at C.

Rows are stored on disk by key, so memory does not grow with the table. All comparisons of a command are in one
database, which has one cache, so it does not grow with their number either. The caller (`cdc.operations.verify`)
supplies the rows; this module only stores and counts them and finds differences.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.schemas.closes import Closes

_SCHEMA: Final = """
CREATE TABLE source{number} (key BLOB PRIMARY KEY, row BLOB, copies INTEGER DEFAULT 1) WITHOUT ROWID;
CREATE TABLE topic{number} (
    key BLOB PRIMARY KEY, partition INTEGER, position BLOB,
    at_x BLOB, at_c BLOB, before_x INTEGER
) WITHOUT ROWID;
CREATE TABLE view{number} (key BLOB PRIMARY KEY, row BLOB, copies INTEGER DEFAULT 1) WITHOUT ROWID;
"""

_CACHE_KIB: Final = 65_536
"""The cache of the database."""

# A duplicate key on a side is an error of its own, whatever its rows contain.
_ROW: Final = (
    "INSERT INTO {table} (key, row) VALUES (?, ?) "
    "ON CONFLICT (key) DO UPDATE SET row = excluded.row, copies = copies + 1"
)
# The newest record has the greatest position; it is not necessarily the last one read.
_RECORD: Final = (
    "INSERT INTO topic{number} AS was (key, partition, position, at_x, at_c, before_x) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET position = excluded.position, partition = excluded.partition, "
    "at_c = excluded.at_c, at_x = CASE WHEN excluded.before_x THEN excluded.at_x ELSE at_x END "
    "WHERE excluded.position >= was.position"
)
_SIDES: Final = {
    "source and topic at X": (
        "SELECT key, row, copies FROM source{number}",
        "SELECT key, at_x AS row, 1 AS copies FROM topic{number} WHERE at_x IS NOT NULL",
    ),
    "topic and view at C": (
        "SELECT key, at_c AS row, 1 AS copies FROM topic{number} WHERE at_c IS NOT NULL",
        "SELECT key, row, copies FROM view{number}",
    ),
}
COMPARED: Final = tuple(_SIDES)


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose two sides differ; a side without the row is None, with 0 copies."""

    key: bytes
    left: bytes | None
    right: bytes | None
    left_copies: int
    right_copies: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one comparison: rows on each side, number of differing keys, and the first of them."""

    compared: str
    left_rows: int
    right_rows: int
    differing: int
    differences: tuple[Difference, ...]


class Comparisons(Closes):
    """The temporary database; a context manager that deletes it at the end."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-verify-", dir=folder)
        self._db = sqlite3.connect(Path(self._folder.name) / "rows.db", isolation_level=None)
        self._number = 0
        # The data need not outlive the process, so no journal is needed.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}", "temp_store = FILE"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("BEGIN")

    def close(self) -> None:
        self._db.close()
        self._folder.cleanup()

    def add(self) -> Comparison:
        """Return a comparison without rows; it can be used until this database is closed."""
        self._number += 1
        return Comparison(self._db, self._number)


class Comparison:
    """The three sides of one table, in a database of `Comparisons`."""

    def __init__(self, db: sqlite3.Connection, number: int) -> None:
        self._db = db
        self._number = number
        for statement in filter(str.strip, _SCHEMA.format(number=number).split(";")):
            db.execute(statement)

    def add_source(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add (key, row) pairs of the source at X."""
        self._db.executemany(_ROW.format(table=f"source{self._number}"), rows)

    def add_view(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Add (key, row) pairs of the view at its cut."""
        self._db.executemany(_ROW.format(table=f"view{self._number}"), rows)

    def add_records(self, records: Iterable[tuple[bytes, int, bytes, bytes | None, bool]]) -> None:
        """Add (key, partition, position, row or None for a delete, whether before X) in the topic's order."""
        self._db.executemany(
            _RECORD.format(number=self._number),
            (
                (key, partition, position, row if before_x else None, row, before_x)
                for key, partition, position, row, before_x in records
            ),
        )

    def truncate(self, partition: int, before_x: bool) -> None:
        """Delete the state of all keys of the partition at C, and at X too if the truncate was before X."""
        sides = "at_c = NULL, at_x = NULL" if before_x else "at_c = NULL"
        self._db.execute(f"UPDATE topic{self._number} SET {sides} WHERE partition = ?", (partition,))

    def start_view(self) -> None:
        """Delete topic and view rows, to compare another view with the same source rows."""
        self._db.execute(f"DELETE FROM topic{self._number}")
        self._db.execute(f"DELETE FROM view{self._number}")

    def outcome(self, compared: str, limit: int) -> Outcome:
        """Compare the two sides that `compared` names (of `COMPARED`); return the first `limit` differences."""
        left, right = (side.format(number=self._number) for side in _SIDES[compared])
        # Two left joins: supported systems may have an SQLite without FULL JOIN.
        differing = (
            f"SELECT l.key, l.row, r.row, l.copies, coalesce(r.copies, 0) "
            f"FROM ({left}) l LEFT JOIN ({right}) r USING (key) "
            "WHERE l.row IS NOT r.row OR l.copies IS NOT r.copies OR l.copies > 1 "
            f"UNION ALL SELECT r.key, NULL, r.row, 0, r.copies "
            f"FROM ({right}) r LEFT JOIN ({left}) l USING (key) WHERE l.key IS NULL"
        )
        found = tuple(Difference(*row) for row in self._all(f"{differing} ORDER BY 1 LIMIT ?", limit))
        # Usually there are few differences, and the list is complete; otherwise they are counted.
        total = len(found) if len(found) < limit else self._one(f"SELECT count(*) FROM ({differing})")
        return Outcome(
            compared,
            self._one(f"SELECT coalesce(sum(copies), 0) FROM ({left})"),
            self._one(f"SELECT coalesce(sum(copies), 0) FROM ({right})"),
            total,
            found,
        )

    def _all(self, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
        return iter(self._db.execute(query, values))

    def _one(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0])
