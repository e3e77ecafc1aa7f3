"""RocksDB, as the caches of the jobs use it: keys and values are bytes, and memory is small."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_MEMTABLE_BYTES: Final = 4 << 20
_CACHE_BYTES: Final = 8 << 20
_OPEN_FILES: Final = 64
_AUTO: Final = "disable_auto_compactions"
_USUALLY: Final = {
    "level0_file_num_compaction_trigger": "4",
    "level0_slowdown_writes_trigger": "20",
    "level0_stop_writes_trigger": "36",
}
"""RocksDB's defaults: each fourth file is merged with all that its keys overlap."""

_SELDOM: Final = {
    "level0_file_num_compaction_trigger": "100",
    "level0_slowdown_writes_trigger": "150",
    "level0_stop_writes_trigger": "200",
}
"""While a database is filled. Merging opens all of these files at once, and a process may have only 1,024 open."""


class InUse(Exception):
    """Another process, or another part of this one, has the database open."""


def opened(folder: Path) -> Any:
    """Return the database in a folder, which is made if necessary.

    Memory: two memtables and the block cache. `InUse` if another process has it; an Exception of any other class if it
    is damaged.
    """
    from rocksdict import BlockBasedOptions, Cache, Options, Rdict

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_open_files(_OPEN_FILES)
    options.set_keep_log_file_num(2)
    options.set_disable_auto_compactions(True)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(_CACHE_BYTES))
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    folder.mkdir(parents=True, exist_ok=True)
    there = {file.name for file in folder.glob("*.sst")}
    try:
        database = Rdict(str(folder), options)
    except Exception as error:
        if "LOCK" in str(error):
            raise InUse from None
        raise
    # A manifest that has lost its end names fewer files: without this, their rows would be missing silently.
    if lost := there - {Path(file["name"]).name for file in database.live_files()}:
        database.close()
        raise ValueError(f"its manifest does not name {len(lost)} of its files")
    database.set_options({_AUTO: "false"})
    return database


def begin_filling(database: Any) -> None:
    """Merge files seldom, until `end_filling`; looking up is slow meanwhile.

    For writing most of the content. As usual, each entry is merged again and again, and the writer waits for that: with
    20 million scattered keys of 9 bytes it took 470 s, and so 55 s, and 15 s to merge all at the end.
    """
    database.set_options(_SELDOM)


def end_filling(database: Any) -> None:
    """Merge all files, and from then on as usual."""
    database.compact_range(None, None)
    database.set_options(_USUALLY)
