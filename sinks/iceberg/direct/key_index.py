"""Where each row of a table is: key → data file and position, in RocksDB.

It is a cache of one branch of one table as of one snapshot, whose id is written in the same batch as the entries. An
entry may be stale: it counts only while its file is among the live ones and the file's deletion vector does not have
its position. Deleting the folder costs the time to read the keys of all data files again, nothing else.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.sinks.iceberg.direct.database import InUse, begin_filling, end_filling, opened

_ENTRY: Final = struct.Struct("<IIq")
_NUMBER: Final = struct.Struct(">I")
_SNAPSHOT: Final = struct.Struct("<q")
_ROW, _FILE, _META, _NEXT = b"k", b"f", b"m", b"n"
_FORM: Final = b"1"
"""The form of the entries; an index of another form, or of another key, is made anew."""


class IndexUnusable(Exception):
    """The folder's index is damaged, or of another form: it should be deleted."""


class IndexInUse(Exception):
    """Another process, or another writer of this one, has the index open."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a row: the number of its data file in the index, its position there, and Iceberg's row id."""

    file: int
    position: int
    row_id: int


class KeyIndex:
    """The index in one folder. IndexUnusable from any method if it is damaged; IndexInUse when it is opened.

    Memory: two memtables, the block cache and the file table, which has one path for each live data file.
    """

    def __init__(self, folder: Path, key: Sequence[str]) -> None:
        """`key` are the names of the key columns."""
        self._form = b"\0".join((_FORM, *(name.encode() for name in key)))
        with _usable():
            self._db = opened(folder)
        self._files: dict[int, str] = {}
        self._unsaved: list[int] = []
        self._next = 1
        self._snapshot: int | None = None
        try:
            self._load()
        except Exception as error:
            self.close()
            raise IndexUnusable(str(error)) from None

    @property
    def snapshot(self) -> int | None:
        """The snapshot that the entries describe; None: there are none."""
        return self._snapshot

    @property
    def files(self) -> Mapping[int, str]:
        """The paths of the data files, by their number in the entries."""
        return self._files

    def close(self) -> None:
        """Release the folder for other processes; what can no longer be written is found missing at the next start."""
        with suppress(Exception):
            self._db.close()

    def get(self, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return the entry of each key, which may be stale."""
        with _usable():
            found = self._db.get([_ROW + key for key in keys])
        return [None if value is None else Entry(*_ENTRY.unpack(value)) for value in found]

    def add_file(self, path: str) -> int:
        """Give a data file a number, which `Changes` may use; no other file ever has it, for entries may be stale."""
        number, self._next = self._next, self._next + 1
        changes = Changes()
        changes.batch.put(_NEXT, _NUMBER.pack(self._next))
        self.write(changes)
        self._files[number] = path
        self._unsaved.append(number)
        return number

    def drop_files(self, numbers: Iterable[int]) -> None:
        """Forget data files that are no longer live; their entries are stale from then on."""
        changes = Changes()
        for number in list(numbers):
            del self._files[number]
            changes.batch.delete(_FILE + _NUMBER.pack(number))
        self.write(changes)

    def begin_filling(self) -> None:
        """Write cheaply until `end_filling`: most of the entries will be written."""
        with _usable():
            begin_filling(self._db)

    def end_filling(self) -> None:
        """Make the index fast to read again."""
        with _usable():
            end_filling(self._db)

    def commit(self, changes: Changes, snapshot: int) -> None:
        """Write entries, the new files and the snapshot that all entries describe now, in one batch."""
        for number in self._unsaved:
            changes.batch.put(_FILE + _NUMBER.pack(number), self._files[number].encode())
        changes.batch.put(_META, _SNAPSHOT.pack(snapshot) + self._form)
        self.write(changes)
        self._unsaved.clear()
        self._snapshot = snapshot

    def write(self, changes: Changes) -> None:
        """Write entries; the snapshot stays what it is."""
        with _usable():
            self._db.write(changes.batch)

    def _load(self) -> None:
        meta, number = self._db.get(_META), self._db.get(_NEXT)
        if number is not None:
            (self._next,) = _NUMBER.unpack(number)
        if meta is None:
            return
        if meta[_SNAPSHOT.size :] != self._form:
            raise ValueError("it is of another form or key")
        (self._snapshot,) = _SNAPSHOT.unpack_from(meta)
        for key, path in self._db.items(from_key=_FILE):
            if not key.startswith(_FILE):
                break
            self._files[_NUMBER.unpack(key[1:])[0]] = path.decode()


class Changes:
    """Entries to write in one batch."""

    def __init__(self) -> None:
        from rocksdict import WriteBatch

        self.batch: Any = WriteBatch(raw_mode=True)

    def put(self, key: bytes, file: int, position: int, row_id: int) -> None:
        """Record the place of a row."""
        self.batch.put(_ROW + key, _ENTRY.pack(file, position, row_id))

    def delete(self, key: bytes) -> None:
        """Record that a row is gone."""
        self.batch.delete(_ROW + key)


def remove(folder: Path) -> None:
    """Delete an index that is not open."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _usable() -> Iterator[None]:
    """Turn errors of RocksDB into `IndexInUse` and `IndexUnusable`."""
    try:
        yield
    except InUse:
        raise IndexInUse from None
    except Exception as error:
        raise IndexUnusable(str(error)) from None
