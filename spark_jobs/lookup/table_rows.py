"""The rows of one table as of a moment, and as of the last few before it, looked up by the values of columns.

A moment is the offsets that the table's topic has at a cut; of a view, the commit that made its state. `advance`
records what it overwrites: with that, the state before a batch is known as well.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.schemas.records.position import Cut
from tailrace.sinks.iceberg.direct.key_bytes import key_bytes
from tailrace.spark_jobs.lookup.row_form import RowForm
from tailrace.spark_jobs.lookup.row_store import RowStore, StoreUnusable, Writes, entry, opened_store

Moment = tuple[int, ...]
Rows = dict[bytes, bytes]
"""Rows by the bytes of their key."""

_STEPS: Final = 8
_STEP_ROWS: Final = 20_000
"""Up to this many changed rows, a step is remembered, so that the state before it can be looked up."""


class NotKnown(Exception):
    """The rows at a moment are not known, or they are too many; the text says why."""


@dataclass(frozen=True, slots=True)
class _Step:
    start: Moment
    before: Mapping[bytes, bytes | None]
    """The rows of the changed keys at `start`."""


@dataclass(frozen=True, slots=True)
class Log:
    """The log that a moment belongs to: that of another server or epoch has other rows at the same offsets."""

    system_identifier: str
    epoch: int

    @classmethod
    def of(cls, cut: Cut) -> Log:
        return cls(cut.system_identifier, cut.position.epoch)


class TableRows:
    """The rows of one table. `NotKnown` from any method but `close` and `drop`, after which it may be filled again.

    Memory: the store's, and the overwritten rows of a few small steps. The methods may be called from any thread.
    """

    def __init__(self, folder: Path, form: RowForm) -> None:
        self._folder = folder
        self.form = form
        self.renewal: Final = threading.Lock()
        """Hold it while the rows are brought to a newer moment, so that only one thread reads the changes."""
        self._lock = threading.RLock()
        self._store: RowStore | None = None
        self._moment: Moment | None = None
        self._log: Log | None = None
        self._level_ms = 0
        self._indexes: list[tuple[str, ...]] = []
        self._steps: deque[_Step] = deque(maxlen=_STEPS)
        self._sound = 0
        """The value of `_doubted` when the rows were filled."""

    def _doubted(self) -> int:
        """Return when the rows were last doubted, in ns since 1970; 0: never."""
        try:
            return _mark(self._folder).stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        """Release the folder; what it holds can be used again."""
        with self._lock:
            if self._store is not None:
                self._store.close()
            self._forget()

    def drop(self) -> None:
        """Delete all rows."""
        with self._lock:
            if self._store is not None:
                self._store.remove()
            self._forget()

    def _forget(self) -> None:
        self._store = self._moment = None
        self._steps.clear()

    def moment(self, log: Log) -> tuple[Moment, int] | None:
        """Return the newest known moment of a log, and a time at which it was the newest (ms since 1970)."""
        with self._using():
            if self._moment is None:
                self._open()
            if self._moment is not None and self._sound != self._doubted():
                self.drop()
            return (self._moment, self._level_ms) if self._moment is not None and self._log == log else None

    def knows(self, moment: Moment) -> bool:
        """Whether the rows at a moment can be looked up: it is the newest, or one of the last before it."""
        with self._using():
            try:
                self._filled()
                self._overlay(moment)
            except NotKnown:
                return False
            return True

    def fill(self, batches: Iterable[Any], moment: Moment, log: Log, level_ms: int) -> int:
        """Replace all rows by those of Arrow batches, as of a moment; return how many they are."""
        with self._using():
            sound = self._doubted()
            (self._store or self._opened()).remove()
            store = self._store = self._opened()
            self._moment = None
            self._steps.clear()
            count = 0
            store.begin_filling()
            for batch in batches:
                rows = self.form.aligned(batch)
                self._write(store, self._added(rows))
                count += rows.num_rows
            store.end_filling()
            self._moment, self._log, self._level_ms, self._sound = moment, log, level_ms, sound
            self._write(store, Writes(), about=True)
            return count

    def advance(self, changes: Any, deleted: Sequence[bool], moment: Moment, level_ms: int) -> None:
        """Apply an Arrow table with one row per changed key; `deleted` says which of them are gone."""
        with self._using():
            store, start = self._filled()
            rows = self.form.aligned(changes)
            keys = self._keys(rows)
            before = dict(zip(keys, store.get(keys), strict=True))
            writes = self._removed({key: row for key, row in before.items() if row is not None})
            writes.rows = [(key, None) for key, gone in zip(keys, deleted, strict=True) if gone]
            stays = [not gone for gone in deleted]
            import pyarrow as pa  # type: ignore[import-untyped]

            added = self._added(rows.filter(pa.array(stays, pa.bool_())))
            writes.rows += added.rows
            writes.entries += added.entries
            self._moment, self._level_ms = moment, level_ms
            self._write(store, writes, about=True)
            if len(keys) <= _STEP_ROWS:
                self._steps.append(_Step(start, before))
            else:
                self._steps.clear()

    def pass_over(self, moment: Moment, level_ms: int) -> None:
        """Go on to a moment that has the same rows."""
        with self._using():
            store, start = self._filled()
            self._moment, self._level_ms = moment, level_ms
            self._write(store, Writes(), about=True)
            self._steps.append(_Step(start, {}))

    def images(self, start: Moment, end: Moment) -> tuple[Rows, Rows]:
        """Return the rows of the keys that changed between two moments, as of each."""
        with self._using():
            store, _ = self._filled()
            old, new = self._overlay(start), self._overlay(end)
            # all keys that changed since `start`: some of them only after `end`
            keys = [key for key in old if key in self._changed(start, end)]
            wanted = [key for key in keys if key not in new]
            now = dict(zip(wanted, store.get(wanted), strict=True))
            after = {key: new[key] if key in new else now[key] for key in keys}
            return (
                {key: row for key in keys if (row := old[key]) is not None},
                {key: row for key, row in after.items() if row is not None},
            )

    def rows(self, at: Moment, by: tuple[str, ...], values: Sequence[Any], most: int) -> Rows:
        """Return the rows at a moment whose columns `by` equal one of the tuples of `values`, as `<=>` does.

        `values` has an Arrow array for each column, of its type. NotKnown if the rows are more than `most`.
        """
        with self._using():
            store, _ = self._filled()
            overlay = self._overlay(at)
            wanted = set(_values(values))
            found = self._by_key(store, by, values) if set(by) == set(self.form.key) else None
            if found is None:
                found = self._by_index(store, by, wanted, most)
            for key in overlay.keys() & found.keys():
                del found[key]
            there = [(key, row) for key, row in overlay.items() if row is not None]
            if there:
                columns = self._columns([row for _, row in there], by)
                found |= {
                    key: row for (key, row), value in zip(there, _values(columns), strict=True) if value in wanted
                }
            if len(found) > most:
                raise NotKnown(f"more than {most} rows are reached")
            return found

    def ensure_index(self, by: tuple[str, ...]) -> None:
        """Make an index on columns, unless there is one or they are the key; it reads all rows once."""
        with self._using():
            if by in self._indexes or set(by) == set(self.form.key):
                return
            if self._moment is None:
                self._indexes.append(by)
                return
            store, _ = self._filled()
            number = len(self._indexes)
            part: list[tuple[bytes, bytes]] = []
            for pair in store.rows():
                part.append(pair)
                if len(part) == _STEP_ROWS:
                    self._write(store, self._entries(part, number, by))
                    part = []
            self._write(store, self._entries(part, number, by))
            self._indexes.append(by)
            self._write(store, Writes(), about=True)

    def _entries(self, rows: Sequence[tuple[bytes, bytes]], number: int, by: tuple[str, ...]) -> Writes:
        columns = self._columns([row for _, row in rows], by)
        keys = (key for key, _ in rows)
        return Writes(entries=[(entry(number, v, key), True) for v, key in zip(_values(columns), keys, strict=True)])

    def _by_key(self, store: RowStore, by: tuple[str, ...], values: Sequence[Any]) -> Rows:
        keys = list(dict.fromkeys(key_bytes([values[by.index(name)] for name in self.form.key])))
        return {key: row for key, row in zip(keys, store.get(keys), strict=True) if row is not None}

    def _by_index(self, store: RowStore, by: tuple[str, ...], wanted: Iterable[bytes], most: int) -> Rows:
        self.ensure_index(by)
        number = self._indexes.index(by)
        keys: list[bytes] = []
        for value in sorted(wanted):
            for key in store.keys(number, value):
                keys.append(key)
                if len(keys) > most:
                    raise NotKnown(f"more than {most} rows are reached")
        return {key: row for key, row in zip(keys, store.get(keys), strict=True) if row is not None}

    def _added(self, rows: Any) -> Writes:
        """Return the writes that add the rows of an aligned table."""
        keys = self._keys(rows)
        return Writes(list(zip(keys, self.form.encode(rows), strict=True)), self._indexed(rows, keys, there=True))

    def _removed(self, rows: Rows) -> Writes:
        """Return the writes that remove the index entries of rows."""
        if not rows or not self._indexes:
            return Writes()
        return Writes(entries=self._indexed(self.form.decode(list(rows.values())), list(rows), there=False))

    def _indexed(self, rows: Any, keys: Sequence[bytes], *, there: bool) -> list[tuple[bytes, bool]]:
        """Return the entries of an aligned table's rows in all indexes."""
        entries = []
        for number, by in enumerate(self._indexes):
            values = _values([_array(rows.column(name)) for name in by])
            entries += [(entry(number, value, key), there) for value, key in zip(values, keys, strict=True)]
        return entries

    def _keys(self, rows: Any) -> list[bytes]:
        return key_bytes([_array(rows.column(name)) for name in self.form.key])

    def _columns(self, rows: Sequence[bytes], by: Sequence[str]) -> list[Any]:
        decoded = self.form.decode(rows)
        return [_array(decoded.column(name)) for name in by]

    def _overlay(self, at: Moment) -> dict[bytes, bytes | None]:
        """Return the rows, at a moment, of all keys that changed since."""
        found: dict[bytes, bytes | None] = {}
        if at == self._moment:
            return found
        for step in reversed(self._steps):
            found |= step.before
            if step.start == at:
                return found
        raise NotKnown("the rows before this batch are not known")

    def _changed(self, start: Moment, end: Moment) -> set[bytes]:
        """Return the keys that changed between two moments, both of which `_overlay` knows."""
        keys: set[bytes] = set()
        inside = False
        for step in self._steps:
            inside = inside or step.start == start
            if step.start == end:
                break
            if inside:
                keys |= step.before.keys()
        return keys

    def _filled(self) -> tuple[RowStore, Moment]:
        if self._store is None or self._moment is None:
            raise NotKnown("its rows are not known")
        return self._store, self._moment

    def _open(self) -> None:
        """Take up what the folder holds, if it is complete and of this form."""
        store = self._store = self._store or self._opened()
        about = store.about()
        if about is None or about["form"] != self.form.identity:
            return
        self._moment, self._level_ms = tuple(about["moment"]), about["level_ms"]
        self._sound = about.get("sound", 0)
        self._log = Log(*about["log"])
        self._indexes = [tuple(by) for by in about["indexes"]]

    def _opened(self) -> RowStore:
        try:
            return opened_store(self._folder)
        except StoreUnusable as error:
            raise NotKnown(f"the store of its rows cannot be opened: {error}") from None

    def _write(self, store: RowStore, writes: Writes, *, about: bool = False) -> None:
        header = None
        if about:
            assert self._moment is not None
            assert self._log is not None
            header = {
                "form": self.form.identity,
                "moment": self._moment,
                "level_ms": self._level_ms,
                "log": [self._log.system_identifier, self._log.epoch],
                "indexes": self._indexes,
                "sound": self._sound,
            }
        store.write(writes, header)

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Hold the lock for the block; if the store turns out to be damaged, drop it and raise `NotKnown`."""
        with self._lock:
            try:
                yield
            except StoreUnusable as error:
                self.drop()
                raise NotKnown(f"the store of its rows was unusable and is made anew: {error}") from None


def doubt(folder: Path) -> None:
    """Have the rows in a folder read again by whatever process uses them next: what they came from was not right."""
    mark = _mark(folder)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _mark(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.doubted")


def _values(columns: Sequence[Any]) -> list[bytes]:
    return key_bytes(list(columns))


def _array(column: Any) -> Any:
    """Return a column of a table as one array."""
    return column.combine_chunks()
