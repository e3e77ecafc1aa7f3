"""Write a small batch into an Iceberg table without reading the table: rows, deletion vectors and cut in one commit.

Where a row is comes from the key index. `MERGE` is the other way, for large batches and for whatever this one refuses;
both leave the same rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.schemas.reasons import reason
from tailrace.sinks.iceberg.direct.deletion_vectors import Blob, positions, puffin
from tailrace.sinks.iceberg.direct.java_table import Committed, JavaTable, LiveFile, NewFile, Refused, Written
from tailrace.sinks.iceberg.direct.key_bytes import can_be_key, key_bytes
from tailrace.sinks.iceberg.direct.key_index import Changes, Entry, IndexInUse, IndexUnusable, KeyIndex, remove
from tailrace.sinks.iceberg.direct.parquet import arrow_schema, data_file, read_keys
from tailrace.sinks.target.ahead import made_ahead
from tailrace.sinks.target.protocol import DELETED

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_ATTEMPTS: Final = 3
_UNKNOWN: Final = -1
_FILES_AHEAD: Final = 2
_MANY_ROWS: Final = 1_000_000
"""From so many on, the keys of added data files are merged once, if they are most of the index."""


class CannotWrite(Exception):
    """This batch has to be written by Spark; the text says why. Nothing was committed."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a batch does: the rows to add with their old row ids, and the positions that are deleted, by file number."""

    keys: Sequence[bytes]
    deleted: Sequence[bool]
    row_ids: Sequence[int | None]
    gone: Mapping[int, Any]


class DirectWriter:
    """Small batches of one branch of a table, by the index in `folder`, which no other process may have open.

    Memory: the index, one deletion vector for each data file that has deleted rows, and one batch.
    """

    def __init__(self, folder: Path, io: FileIO, key: Sequence[str]) -> None:
        self._folder = folder
        self._io = io
        self._key = tuple(key)
        self._index: KeyIndex | None = None
        self._vectors: dict[int, Any] = {}
        """The deleted positions of a data file, by its number."""
        self._objects: dict[int, Any] = {}
        """Java's objects of the same."""
        self._vectors_of: int | None = None
        """The snapshot that both describe."""
        self.rows_indexed = 0
        """Rows whose keys the last `merge` had to read before it could begin."""

    def close(self) -> None:
        """Close the index; the next `merge` opens it again."""
        if self._index is not None:
            self._index.close()
            self._index = None
        self._forget_vectors()

    def merge(self, table: JavaTable, changes: Any, properties: Mapping[str, str]) -> int:
        """Apply an Arrow table with one row per key and a column `DELETED`; return the id of the new snapshot.

        CannotWrite if it is to be done by `MERGE`.
        """
        self.rows_indexed = 0
        columns = [changes.column(name).combine_chunks() for name in self._key]
        if not all(can_be_key(column.type) for column in columns):
            raise CannotWrite("a key column has a nested type")
        keys, deleted = key_bytes(columns), changes.column(DELETED).to_pylist()
        for attempt in range(_ATTEMPTS):
            if attempt:
                table.refresh()
            head = table.head()
            if head is None:
                raise CannotWrite("the branch has no snapshot")
            try:
                index = self._synchronized(table, head)
                plan = self._planned(index, keys, deleted)
                done = self._commit(table, index, changes, plan, properties)
            except Refused:
                continue
            except IndexInUse:
                raise CannotWrite("another process has the key index open") from None
            except IndexUnusable:
                self._discard()
                continue
            except BaseException:
                self.close()
                raise
            if done.parent == head:
                try:
                    self._record(index, done, plan)
                except IndexUnusable:
                    self._discard()
            return done.snapshot
        raise CannotWrite("other commits came in between each time, or the key index cannot be written")

    def _synchronized(self, table: JavaTable, head: int) -> KeyIndex:
        """Return the index as of `head`, brought there from the data files that have been added since."""
        index = self._index = self._index or KeyIndex(self._folder, self._key)
        if index.snapshot == head and self._vectors_of == head:
            return index
        if index.snapshot is not None and not table.descends(head, index.snapshot):
            # Of a line that was left: positions may have been deleted there that are not here.
            self._discard()
            index = self._index = KeyIndex(self._folder, self._key)
        try:
            live = {file.path: file for file in table.files(head)}
        except ValueError as error:
            raise CannotWrite(str(error)) from None
        numbers = {path: number for number, path in index.files.items()}
        index.drop_files([number for path, number in numbers.items() if path not in live])
        self._forget_vectors()
        fills = _are_most(table, [file for path, file in live.items() if path not in numbers], live.values())
        if fills:
            index.begin_filling()
        for path, file in live.items():
            added = path not in numbers
            number = index.add_file(path) if added else numbers[path]
            if file.vector is not None:
                self._vectors[number] = positions(table.read_vector(file.vector))
                self._objects[number] = file.vector
            if added:
                try:
                    self._read_keys(table, index, number, file)
                except IndexUnusable:
                    raise
                except Exception as error:
                    # Spark may have rights, or a file system, that this process has not.
                    raise CannotWrite(f"its data files cannot be read here: {reason(error)}") from None
        if fills:
            index.end_filling()
        if index.snapshot != head:
            index.commit(Changes(), head)
        self._vectors_of = head
        return index

    def _read_keys(self, table: JavaTable, index: KeyIndex, number: int, file: LiveFile) -> None:
        """Add the keys of a data file's live rows."""
        deleted = self._vectors.get(number)
        wanted = [arrow_schema(table.schema_json()).field(name) for name in self._key]
        at = 0
        with self._io.new_input(file.path).open() as stream:
            for columns, given in read_keys(stream, wanted):
                changes = Changes()
                keys = key_bytes(columns)
                for offset, key in enumerate(keys):
                    place = at + offset
                    if deleted is not None and place in deleted:
                        continue
                    row_id = None if given is None else given[offset]
                    if row_id is None:
                        row_id = _UNKNOWN if file.first_row_id is None else file.first_row_id + place
                    changes.put(key, number, place, row_id)
                index.write(changes)
                at += len(keys)
        self.rows_indexed += at

    def _planned(self, index: KeyIndex, keys: Sequence[bytes], deleted: Sequence[bool]) -> _Plan:
        gone: dict[int, Any] = {}
        row_ids: list[int | None] = []
        for entry in index.get(keys):
            if entry is None or not self._is_live(index, entry):
                row_ids.append(None)
                continue
            if entry.file not in gone:
                gone[entry.file] = _copy(self._vectors.get(entry.file))
            gone[entry.file].add(entry.position)
            row_ids.append(None if entry.row_id == _UNKNOWN else entry.row_id)
        return _Plan(keys, deleted, row_ids, gone)

    def _is_live(self, index: KeyIndex, entry: Entry) -> bool:
        if entry.file not in index.files:
            return False
        deleted = self._vectors.get(entry.file)
        return deleted is None or entry.position not in deleted

    def _commit(
        self, table: JavaTable, index: KeyIndex, changes: Any, plan: _Plan, properties: Mapping[str, str]
    ) -> Committed:
        """Write the files of a batch and commit them."""
        import pyarrow as pa  # type: ignore[import-untyped]

        token = uuid.uuid4().hex
        paths = {number: index.files[number] for number in plan.gone}
        stays = [not deleted for deleted in plan.deleted]
        data = holes = None
        blobs: Mapping[str, Blob] = {}
        try:
            if any(stays):
                row_ids = [row_id for row_id, stay in zip(plan.row_ids, stays, strict=True) if stay]
                content = data_file(changes.filter(pa.array(stays)), row_ids, arrow_schema(table.schema_json()))
                data = table.write(f"{token}.parquet", content)
            if paths:
                content, blobs = puffin({paths[number]: vector for number, vector in plan.gone.items()})
                holes = table.write(f"{token}-deletes.puffin", content)
            replaced = [self._objects[number] for number in plan.gone if number in self._objects]
            return table.commit(Written(data, holes, blobs, replaced), list(paths.values()), properties)
        except Refused:
            for file in (data, holes):
                if file is not None:
                    table.delete(file.path)
            # Another commit may have replaced some.
            self._forget_vectors()
            raise

    def _record(self, index: KeyIndex, done: Committed, plan: _Plan) -> None:
        """Bring the index to a snapshot of ours. After a crash before this, the file that it added is read."""
        changes = Changes()
        number = _UNKNOWN if done.data_path is None else index.add_file(done.data_path)
        place = 0
        for key, deleted, row_id in zip(plan.keys, plan.deleted, plan.row_ids, strict=True):
            if deleted:
                changes.delete(key)
                continue
            new_id = _UNKNOWN if done.first_row_id is None else done.first_row_id + place
            changes.put(key, number, place, new_id if row_id is None else row_id)
            place += 1
        index.commit(changes, done.snapshot)
        for file, vector in plan.gone.items():
            self._vectors[file] = vector
            self._objects[file] = done.vectors[index.files[file]]
        self._vectors_of = done.snapshot

    def _discard(self) -> None:
        """Delete the index: the next batch makes it anew."""
        self.close()
        remove(self._folder)

    def _forget_vectors(self) -> None:
        self._vectors.clear()
        self._objects.clear()
        self._vectors_of = None


def append(table: JavaTable, rows: Any, properties: Mapping[str, str]) -> None:
    """Add the rows of an Arrow table in one commit. CannotWrite if other commits come in between."""
    data = table.write(f"{uuid.uuid4().hex}.parquet", data_file(rows, [], arrow_schema(table.schema_json())))
    try:
        table.commit(Written(data, None, {}, ()), (), properties)
    except Refused as error:
        table.delete(data.path)
        raise CannotWrite(str(error)) from None


def replace(table: JavaTable, chunks: Iterable[Any], properties: Mapping[str, str]) -> None:
    """Write Arrow tables as data files, and make them the whole content in one commit."""
    schema, written = arrow_schema(table.schema_json()), list[NewFile]()
    try:
        for content in made_ahead(lambda rows: data_file(rows, [], schema), chunks, 1, _FILES_AHEAD):
            written.append(table.write(f"{uuid.uuid4().hex}.parquet", content))
        table.replace(written, properties)
    except BaseException:
        for file in written:
            table.delete(file.path)
        raise


def _are_most(table: JavaTable, added: Iterable[LiveFile], live: Iterable[LiveFile]) -> bool:
    """Whether added data files have many rows, and more than all others."""
    rows = sum(table.facts(file).rows for file in added)
    return rows >= _MANY_ROWS and 2 * rows > sum(table.facts(file).rows for file in live)


def _copy(vector: Any) -> Any:
    from pyroaring import BitMap64

    return BitMap64() if vector is None else BitMap64(vector)
