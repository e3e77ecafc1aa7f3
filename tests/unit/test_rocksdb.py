"""The caches of the jobs in RocksDB: filling one leaves all in it, merged, and merging as usual."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.sinks.iceberg.direct.database import begin_filling, end_filling, opened
from tests.faults.source import come_true

_FILE_ENTRIES = 4_500  # of a kilobyte: more than a memtable


def _batches(draw: random.Random, files: int) -> Iterator[dict[bytes, bytes]]:
    for _ in range(files):
        yield {draw.randbytes(8): draw.randbytes(1_000) for _ in range(_FILE_ENTRIES)}


def _write(database: Any, entries: dict[bytes, bytes]) -> None:
    from rocksdict import WriteBatch

    batch = WriteBatch(raw_mode=True)
    for key, value in entries.items():
        batch.put(key, value)
    database.write(batch)


def _at_level_0(database: Any) -> int:
    return sum(1 for file in database.live_files() if file["level"] == 0)


def test_a_filled_database_has_all_entries_and_merges_as_usual(tmp_path: Path) -> None:
    draw, written = random.Random(7), dict[bytes, bytes]()
    database = opened(tmp_path)
    begin_filling(database)
    for entries in _batches(draw, 8):
        _write(database, entries)
        written |= entries
    assert come_true(lambda: _at_level_0(database) >= 7, 20), "files were merged meanwhile"
    end_filling(database)
    assert _at_level_0(database) == 0
    for entries in _batches(draw, 8):
        _write(database, entries)
        written |= entries
    assert come_true(lambda: _at_level_0(database) < 4, 20), "files are no longer merged"
    database.close()
    again = opened(tmp_path)
    assert again.get(list(written)) == list(written.values())
    again.close()
