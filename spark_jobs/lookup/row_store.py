"""The rows of one table in RocksDB: by key, and by other columns.

RocksDB checks the bytes that it reads. What describes the content (`about`) is written in the same batch as the rows.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from tailrace.sinks.iceberg.direct.database import InUse, begin_filling, end_filling, opened

_ROW, _INDEX, _ABOUT = b"k", b"i", b"m"
_NUMBER: Final = struct.Struct(">H")
_LENGTH: Final = struct.Struct(">I")


class StoreUnusable(Exception):
    """The folder's store is damaged, or it cannot be opened."""


@dataclass(slots=True)
class Writes:
    """Rows and index entries to write in one batch."""

    rows: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Key and row; None: it is deleted."""
    entries: list[tuple[bytes, bool]] = field(default_factory=list)
    """Index entry, and whether it is added or removed."""


def opened_store(folder: Path) -> RowStore:
    """Return the store in a folder; one that is damaged is made anew. `StoreUnusable` if another process has it."""
    try:
        return RowStore(folder)
    except InUse:
        raise StoreUnusable("another process has it open") from None
    except StoreUnusable:
        shutil.rmtree(folder, ignore_errors=True)
        return RowStore(folder)


class RowStore:
    """The store in one folder. `InUse` if another process has it; `StoreUnusable` from any method if it is damaged.

    Memory: two memtables, the block cache, and the rows of one call.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _readable():
            self._db = opened(folder)

    def _items(self, prefix: bytes) -> Iterator[tuple[bytes, Any]]:
        """Yield what has a prefix: the rest of the key, and the iterator for the value."""
        # not the iterators of Python's protocol: those end at a damaged block as at the last one
        found = self._db.iter()
        found.seek(prefix)
        while found.valid() and (key := found.key()).startswith(prefix):
            yield key[len(prefix) :], found
            found.next()
        found.status()

    def close(self) -> None:
        """Release the folder for other processes."""
        with suppress(Exception):
            self._db.close()

    def remove(self) -> None:
        """Close the store and delete it."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def about(self) -> dict[str, Any] | None:
        """Return what was last written about the content; None: the content is nothing, or not complete."""
        with _readable():
            found = self._db.get(_ABOUT)
            return None if found is None else dict(orjson.loads(found))

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the row of each key."""
        with _readable():
            return list(self._db.get([_ROW + key for key in keys])) if keys else []

    def keys(self, index: int, value: bytes) -> Iterator[bytes]:
        """Yield the keys of the rows that have a value in an index."""
        prefix = entry(index, value)
        with _readable():
            for key, _ in self._items(prefix):
                yield key

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all keys with their rows."""
        with _readable():
            for key, found in self._items(_ROW):
                yield key, found.value()

    def begin_filling(self) -> None:
        """Write cheaply until `end_filling`: all rows will be written."""
        with _readable():
            begin_filling(self._db)

    def end_filling(self) -> None:
        """Make the store fast to read."""
        with _readable():
            end_filling(self._db)

    def write(self, writes: Writes, about: Mapping[str, Any] | None = None) -> None:
        """Write a batch; with `about`, also what describes the content from then on."""
        from rocksdict import WriteBatch

        batch: Any = WriteBatch(raw_mode=True)
        for key, row in writes.rows:
            if row is None:
                batch.delete(_ROW + key)
            else:
                batch.put(_ROW + key, row)
        for entry, added in writes.entries:
            if added:
                batch.put(entry, b"")
            else:
                batch.delete(entry)
        if about is not None:
            batch.put(_ABOUT, orjson.dumps(about))
        with _readable():
            self._db.write(batch)


def entry(index: int, value: bytes, key: bytes = b"") -> bytes:
    """Return the index entry for a row; without its key, the beginning of all entries of the value."""
    return _INDEX + _NUMBER.pack(index) + _LENGTH.pack(len(value)) + value + key


@contextmanager
def _readable() -> Iterator[None]:
    """Turn errors of RocksDB into `StoreUnusable`."""
    try:
        yield
    except (StoreUnusable, InUse):
        raise
    except Exception as error:
        raise StoreUnusable(str(error)) from None
