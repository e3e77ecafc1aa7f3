"""Merge small data files in this process: for files of some kilobytes, a Spark job costs more than all that it does.

Files of similar sizes are merged, so that a row is rewritten a few times in its life, however large the table is.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tailrace.sinks.iceberg.direct.deletion_vectors import positions
from tailrace.sinks.iceberg.direct.java_table import Facts, JavaTable, LiveFile, Refused
from tailrace.sinks.iceberg.direct.parquet import arrow_schema, data_file, read_rows

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_MOST_FILES: Final = 500
"""Data files of a table that are looked at one by one; each look takes a millisecond."""
_MOST_BYTES: Final = 8 << 20
_MOST_ROWS: Final = 200_000
"""Size and rows of all files that are merged at once. They bound memory, which holds the rows uncompressed."""
_ALWAYS_SMALL: Final = 256 << 10
MIN_FILES: Final = 5
"""Number of files from which on it pays to merge them; for Iceberg's own procedure, too."""
_MUCH_DELETED: Final = 0.3
"""Share of deleted rows from which on Iceberg's own procedure rewrites a file; it is the default there."""
_SMALL_PART: Final = 0.75
"""Part of the target size below which a file is small; the default there."""


@dataclass(frozen=True, slots=True)
class Merged:
    """How many data files were rewritten, and how many were written for them."""

    rewritten: int
    added: int


def merge_small(table: JavaTable, io: FileIO, target_bytes: int) -> Merged | None:
    """Merge the small data files of a table without partitions and sort order, in one commit without a cut.

    Each row has the id and the sequence number of its last change that it had before. None if Iceberg's own procedure
    has to do it, for these files or for others.
    """
    head = table.head()
    if head is None or table.count_files(head) > _MOST_FILES or table.has_defaults():
        return None
    try:
        live = list(table.files(head))
    except ValueError:
        return None
    found = chosen([table.facts(file) for file in live], target_bytes)
    if not found:
        return None if found is None else Merged(0, 0)
    files = [live[place] for place in found]
    try:
        content = _content(table, io, files)
    except Exception:
        # of a type that Arrow does not convert, or out of reach: Spark says why, if it cannot either
        return None
    new = None if content is None else table.write(f"{uuid.uuid4().hex}.parquet", content)
    try:
        table.rewrite(files, new, head)
    except Refused:
        if new is not None:
            table.delete(new.path)
        return None
    return Merged(len(files), 0 if new is None else 1)


def chosen(files: Sequence[Facts], target_bytes: int) -> list[int] | None:
    """Return the places of the files to merge; None if there is work for Iceberg's own procedure."""
    by_size = sorted(range(len(files)), key=lambda place: files[place].size)
    small = [place for place in by_size if files[place].size < _SMALL_PART * target_bytes]
    found, taken = list[int](), Facts(0, 0, 0)
    for place in small:
        more = taken + files[place]
        if files[place].size > max(_ALWAYS_SMALL, taken.size) or not _fits(more):
            break
        found.append(place)
        taken = more
    if len(found) < MIN_FILES:
        found, taken = [], Facts(0, 0, 0)
    for place in by_size:
        if place not in found and files[place].deleted >= _MUCH_DELETED * files[place].rows:
            taken += files[place]
            if not _fits(taken):
                return None
            found.append(place)
    return found if len(set(small) - set(found)) < MIN_FILES else None


def _fits(files: Facts) -> bool:
    return files.size <= _MOST_BYTES and files.rows <= _MOST_ROWS


def _content(table: JavaTable, io: FileIO, files: Sequence[LiveFile]) -> bytes | None:
    """Return a data file with the live rows of these; None if there are none."""
    import pyarrow as pa  # type: ignore[import-untyped]

    schema = arrow_schema(table.schema_json())
    tables, row_ids, changed = [], list[int | None](), list[int | None]()
    for file in files:
        with io.new_input(file.path).open() as stream:
            rows, given_ids, given_changed = read_rows(stream, schema)
        first, sequence = file.first_row_id, table.sequence(file)
        ids = given_ids or [None] * len(rows)
        at = given_changed or [None] * len(rows)
        deleted = () if file.vector is None else positions(table.read_vector(file.vector))
        stays = [place for place in range(len(rows)) if place not in deleted]
        tables.append(rows.take(pa.array(stays, pa.int64())))
        for place in stays:
            id_ = ids[place]
            row_ids.append(id_ if id_ is not None else None if first is None else first + place)
            last = at[place]
            changed.append(sequence if last is None else last)
    merged: Any = pa.concat_tables(tables)
    return data_file(merged, row_ids, schema, changed) if len(merged) else None
