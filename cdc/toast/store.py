"""The TOAST cache's file: large values by table, key and column, and the cut of the topics that they belong to.

One SQLite file with one open transaction, which is committed after Kafka's: so the file is never ahead of the stored
position, and what a session leaves unfinished is gone with it. Every answer may be "not here", which costs a reread.
So a file that cannot be used, or fails while in use, is deleted and done without; it is never an error.
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
"""So much is written between two looks at the size of the file: by that much, and a value, it may pass its limit."""

_EVICTED: Final = 64
"""Values that give way at a time."""


@dataclass(slots=True)
class Shape:
    """What a table looked like when it was last asked, at the LSN `until`; None if that could not be told.

    `sure` says that the stream has passed `until` and brought a change of the same shape: what is kept belongs to it.
    """

    topic: str
    shape: str | None
    until: int
    sure: bool


class ToastCache:
    """Memory: 1 MiB that says which keys surely have no value, and SQLite's own 2 MB. Disk: `limit_bytes`, and for the
    open transaction as much as it writes. For one thread.
    """

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        """Without a `folder` nothing is ever there."""
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
        """Open the file, or make it; None if that cannot be."""
        assert self._file is not None
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            try:
                return self._connected()
            except sqlite3.OperationalError:
                raise  # in use, perhaps by a daemon that has lost the slot and does not know it yet: not ours to delete
            except sqlite3.DatabaseError as error:
                log.warning("toast cache begins empty: its file is of no use", file=str(self._file), error=str(error))
                self._unlink()
                return self._connected()
        except (OSError, sqlite3.Error) as error:
            log.warning("no toast cache: unchanged large values are read again", file=str(self._file), error=str(error))
            return None

    def _connected(self) -> sqlite3.Connection:
        db = sqlite3.connect(str(self._file), timeout=1, isolation_level=None)
        try:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            # A power cut may then take the last commits, but not the order: the file is behind, which is provided for.
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
        """Run a statement; at any fault give the cache up for this session, and its file for good."""
        if self._db is None:
            return []
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            self._give_up(error)
            return []

    def _give_up(self, error: sqlite3.Error) -> None:
        assert self._db is not None
        log.warning("toast cache given up: it begins empty at the next start", error=str(error))
        self._db.close()
        self._db = None
        with suppress(OSError):
            self._unlink()  # if it stays, it is behind at the next start

    @property
    def usable(self) -> bool:
        """Whether anything put here may be got again."""
        return self._db is not None

    # Which keys have values

    def _note_all(self) -> None:
        self._keys = KeyFilter()
        self._oids.clear()
        if self._db is None:
            return
        last = None
        try:
            # by the index alone, and not as one list
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
        """Whether a table may have values here."""
        return oid in self._oids

    def may_have(self, oid: int, key: bytes) -> bool:
        """Whether a key may have values here; a no is certain."""
        return oid in self._oids and self._keys.may_have(oid, key)

    # Values

    def get(self, oid: int, key: bytes, name: str) -> tuple[bytes, int] | None:
        """Return a value's text and the LSN that `put` was given with it."""
        if not self.may_have(oid, key):
            return None
        rows = self._run("SELECT text, until FROM value WHERE oid = ? AND key = ? AND name = ?", oid, key, name)
        return rows[0] if rows else None

    def names(self, oid: int, key: bytes) -> list[str]:
        """Return the columns of which a key has values here."""
        if not self.may_have(oid, key):
            return []
        return [name for (name,) in self._run("SELECT name FROM value WHERE oid = ? AND key = ?", oid, key)]

    def put(self, oid: int, key: bytes, name: str, text: bytes, *, until: int = 0, evict: bool = True) -> None:
        """Keep a value in place of the one before. When there is no room the oldest go, or without `evict` this one.

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
        """Forget values of a key, by default all."""
        if not self.may_have(oid, key):
            return
        if names is None:
            self._run("DELETE FROM value WHERE oid = ? AND key = ?", oid, key)
        else:
            for name in names:
                self._run("DELETE FROM value WHERE oid = ? AND key = ? AND name = ?", oid, key, name)

    def clear(self, oid: int) -> None:
        """Forget all values of a table."""
        if oid in self._oids:
            self._run("DELETE FROM value WHERE oid = ?", oid)
            self._oids.discard(oid)

    def clear_all(self) -> None:
        """Forget everything."""
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
                "toast cache is full: the oldest values go, and are read again when they are needed",
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
        """Return the tables, in the course of time, that a topic has been of."""
        return [oid for (oid,) in self._run("SELECT oid FROM shape WHERE topic = ?", topic)]

    # Where the topics stood

    @property
    def at(self) -> tuple[Cut, str] | None:
        """The cut and the origin of the last `commit`."""
        rows = self._run("SELECT cut, origin FROM at")
        return (Cut.from_json(rows[0][0]), rows[0][1]) if rows else None

    def commit(self, cut: Cut, origin: str) -> None:
        """Keep what there is, as that which belongs to `cut`. `origin` names what the cut is one of."""
        self._run("INSERT OR REPLACE INTO at (one, cut, origin) VALUES (1, ?, ?)", cut.to_json(), origin)
        self._run("COMMIT")
        self._run("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Leave the file as of the last `commit`."""
        if self._db is not None:
            self._run("ROLLBACK")
        if self._db is not None:
            self._db.close()
            self._db = None
