"""File of the TOAST cache: large values by table, key and column, and the cut that they belong to.

One SQLite file with one open transaction, which is committed after Kafka's. So the file is never ahead of the stored
position, and uncommitted work of a session is rolled back. A missing value only costs a reread. So a file that is
unusable, or fails while in use, is never an error: the cache works without it, and deletes it unless it cannot be
opened because another process may be using it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from tailrace.cdc.toast.bloom_filter import KeyFilter
from tailrace.schemas.records.position import Cut

log = structlog.get_logger()

FILE_NAME: Final = "toast.db"
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE at (one INTEGER PRIMARY KEY CHECK (one = 1), cut TEXT, origin TEXT);
CREATE TABLE shape (oid INTEGER PRIMARY KEY, topic TEXT, shape TEXT, until INTEGER, sure INTEGER);
CREATE TABLE value (id INTEGER PRIMARY KEY, oid INTEGER, key BLOB, name TEXT, text BLOB, until INTEGER);
CREATE UNIQUE INDEX value_key ON value (oid, key, name);
"""

_CHECK_BYTES: Final = 1_048_576
"""Bytes written between checks of the file size; the file may exceed its limit by that and a value."""

_EVICTED: Final = 64
"""Number of values evicted at a time."""


@dataclass(slots=True)
class Shape:
    """A table's shape mark as of the LSN `until` of a catalog query; `shape` is None if unknown.

    `sure` says that the cached values belong to this shape: the stream has brought a change after `until` without a new
    Relation message, or the first snapshot reads the table.
    """

    topic: str
    shape: str | None
    until: int
    sure: bool


class ToastCache:
    """The cached values in their SQLite file. For one thread.

    Memory: 1 MiB for the Bloom filter of keys, and SQLite's own 2 MB. Disk: `limit_bytes`, and the bytes written by the
    open transaction.
    """

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        """Without a `folder` the cache stays empty."""
        self._limit = limit_bytes
        self._written = 0
        self._warned = False
        self._full = False
        self._keys = KeyFilter()
        self._oids: set[int] = set()
        self._file = folder / FILE_NAME if folder else None
        self._db = self._opened() if folder else None
        self._note_all()

    def _opened(self) -> sqlite3.Connection | None:
        """Open or create the file; return None if that fails."""
        assert self._file is not None
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            try:
                return self._connected()
            except sqlite3.OperationalError:
                raise  # in use, perhaps by a daemon that has lost the slot without noticing: must not be deleted
            except sqlite3.DatabaseError as error:
                log.warning("toast cache emptied: its file is unusable", file=str(self._file), error=str(error))
                self._unlink()
                return self._connected()
        except (OSError, sqlite3.Error) as error:
            log.warning(
                "toast cache disabled: unchanged large values are read from the source",
                file=str(self._file),
                error=str(error),
            )
            return None

    def _connected(self) -> sqlite3.Connection:
        db = sqlite3.connect(str(self._file), timeout=1, isolation_level=None)
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            # a power failure may lose the last commits, but not their order: an outdated file is handled at the start
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA journal_size_limit = 67108864")
            db.execute("BEGIN IMMEDIATE")
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _SCHEMA.strip().split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")
            elif version != _VERSION:
                raise sqlite3.DatabaseError(f"version {version}")
            return db
        except BaseException:
            db.close()
            raise

    def _unlink(self) -> None:
        assert self._file is not None
        for suffix in ("", "-wal", "-shm"):
            self._file.with_name(FILE_NAME + suffix).unlink(missing_ok=True)

    def _run(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement; at any error disable the cache for this session and delete its file."""
        if self._db is None:
            return []
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._give_up(error)
            return []

    def _give_up(self, error: sqlite3.Error) -> None:
        assert self._db is not None
        log.warning("toast cache disabled: it is emptied at the next start", error=str(error))
        self._db.close()
        self._db = None
        with suppress(OSError):
            self._unlink()  # if that fails, the file is outdated at the next start, which is handled

    @property
    def usable(self) -> bool:
        """Whether the cache stores values."""
        return self._db is not None

    # Which keys have values

    def _note_all(self) -> None:
        self._keys = KeyFilter()
        self._oids.clear()
        if self._db is None:
            return
        last = None
        try:
            # read from the index alone, row by row, to save I/O and memory
            for found in self._db.execute("SELECT oid, key FROM value INDEXED BY value_key"):
                if found != last:
                    self._note(*found)
                    last = found
            self._keys.settle()
        except sqlite3.Error as error:
            self._give_up(error)

    def _note(self, oid: int, key: bytes) -> None:
        self._keys.add(oid, key)
        self._oids.add(oid)

    def has(self, oid: int) -> bool:
        """Whether a table may have cached values."""
        return oid in self._oids

    def may_have(self, oid: int, key: bytes) -> bool:
        """Whether a key may have cached values; False is certain."""
        return oid in self._oids and self._keys.may_have(oid, key)

    # Values

    def get(self, oid: int, key: bytes, name: str) -> tuple[bytes, int] | None:
        """Return a value's text and its `until` LSN; None if it is not cached."""
        if not self.may_have(oid, key):
            return None
        rows = self._run("SELECT text, until FROM value WHERE oid = ? AND key = ? AND name = ?", oid, key, name)
        return rows[0] if rows else None

    def names(self, oid: int, key: bytes) -> list[str]:
        """Return the columns of a key that have cached values."""
        if not self.may_have(oid, key):
            return []
        return [name for (name,) in self._run("SELECT name FROM value WHERE oid = ? AND key = ?", oid, key)]

    def put(self, oid: int, key: bytes, name: str, text: bytes, *, until: int = 0, evict: bool = True) -> None:
        """Store a value. If the cache is full, evict the oldest values, or without `evict` skip this one.

        `until` is the LSN before which the value may be newer than the stream.
        """
        if self._db is None:
            return
        self._written += len(text)
        if self._written >= min(_CHECK_BYTES, self._limit // 16):
            self._written = 0
            self._make_room(evict)
        if len(text) > self._limit // 4 or (self._full and not evict):
            self.erase(oid, key, [name])
            return
        self._run(
            "INSERT OR REPLACE INTO value (oid, key, name, text, until) VALUES (?, ?, ?, ?, ?)",
            *(oid, key, name, text, until),
        )
        self._note(oid, key)
        if self._keys.worn:
            self._note_all()

    def erase(self, oid: int, key: bytes, names: Iterable[str] | None = None) -> None:
        """Erase values of a key, by default all."""
        if not self.may_have(oid, key):
            return
        if names is None:
            self._run("DELETE FROM value WHERE oid = ? AND key = ?", oid, key)
        else:
            for name in names:
                self._run("DELETE FROM value WHERE oid = ? AND key = ? AND name = ?", oid, key, name)

    def clear(self, oid: int) -> None:
        """Erase all values of a table."""
        if oid in self._oids:
            self._run("DELETE FROM value WHERE oid = ?", oid)
            self._oids.discard(oid)

    def clear_all(self) -> None:
        """Erase everything."""
        for table in ("value", "shape", "at"):
            self._run(f"DELETE FROM {table}")
        self._oids.clear()

    def _used(self) -> int:
        sizes = [self._run(f"PRAGMA {name}") for name in ("page_size", "page_count", "freelist_count")]
        if not all(sizes):
            return 0
        page_size, count, free = (rows[0][0] for rows in sizes)
        return int(page_size * (count - free))

    def _make_room(self, evict: bool) -> None:
        self._full = self._used() > self._limit
        if not self._full:
            return
        if not self._warned:
            self._warned = True
            log.warning(
                "toast cache full: the oldest values are evicted, and read from the source when needed",
                limit_bytes=self._limit,
                file=str(self._file),
                hint="Raise source.toast_cache_bytes.",
            )
        while evict and self._full and self._db is not None:
            self._run(f"DELETE FROM value WHERE id IN (SELECT id FROM value ORDER BY id LIMIT {_EVICTED})")
            self._full = self._used() > self._limit

    # Shapes of tables

    def shape(self, oid: int) -> Shape | None:
        rows = self._run("SELECT topic, shape, until, sure FROM shape WHERE oid = ?", oid)
        return Shape(rows[0][0], rows[0][1], rows[0][2], bool(rows[0][3])) if rows else None

    def set_shape(self, oid: int, shape: Shape) -> None:
        row = (oid, shape.topic, shape.shape, shape.until, shape.sure)
        self._run("INSERT OR REPLACE INTO shape (oid, topic, shape, until, sure) VALUES (?, ?, ?, ?, ?)", *row)

    def oids(self, topic: str) -> list[int]:
        """Return the oids of all tables that have ever had a topic."""
        return [oid for (oid,) in self._run("SELECT oid FROM shape WHERE topic = ?", topic)]

    # Cut of the topics

    @property
    def at(self) -> tuple[Cut, str] | None:
        """The cut and the origin of the last `commit`."""
        rows = self._run("SELECT cut, origin FROM at")
        return (Cut.from_json(rows[0][0]), rows[0][1]) if rows else None

    def commit(self, cut: Cut, origin: str) -> None:
        """Commit the present values as those of `cut`; `origin` identifies its server and topics."""
        self._run("INSERT OR REPLACE INTO at (one, cut, origin) VALUES (1, ?, ?)", cut.to_json(), origin)
        self._run("COMMIT")
        self._run("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close the file in the state of the last `commit`."""
        if self._db is not None:
            self._run("ROLLBACK")
        if self._db is not None:
            self._db.close()
            self._db = None
