"""Find keys on a topic from before a snapshot run that neither the run nor the stream has sent since.

When all rows of a table have been read, such a key belongs to a row that the source no longer has: every existing row
has been sent since, by the run or, if it was changed meanwhile, by the stream.
"""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tailrace.schemas.envelope import TRUNCATE_KEY
from tailrace.sinks.kafka.read_topic import Record, read_to

_CLOSE_S: Final = 2.0
_SCHEMA: Final = "CREATE TABLE old (partition INTEGER, key BLOB, PRIMARY KEY (partition, key)) WITHOUT ROWID"


class Sweep:
    """Reads a topic from its start in a thread; the table `old` has the keys on disk, in a temporary file.

    Memory: SQLite's 8 MB cache. Only one thread may call the methods, and `take` only while nothing is being read.
    """

    def __init__(self, options: Mapping[str, Any], topic: str, since: Sequence[int]) -> None:
        """Set up; `since` are the offsets by partition at which the run began."""
        self._options = options
        self._topic = topic
        self._since = since
        self._read_to: list[int] = []
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._stop = False
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-sweep-")
        self._db = sqlite3.connect(Path(self._folder.name) / "keys.db", isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -8192", "temp_store = FILE"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(_SCHEMA)

    def read(self, ends: Sequence[int]) -> None:
        """Continue to read, up to but excluding these offsets."""
        self._thread = threading.Thread(target=self._work, args=(list(ends),), name="snapshot-sweep", daemon=True)
        self._thread.start()

    @property
    def reading(self) -> bool:
        """Whether the thread is reading. Raises the thread's error, if any."""
        if self._error is not None:
            raise self._error
        return self._thread is not None and self._thread.is_alive()

    def take(self, limit: int, without: Collection[bytes]) -> list[bytes] | None:
        """Remove up to `limit` keys and return them except those in `without`; None if no key is left."""
        found = self._db.execute("SELECT partition, key FROM old LIMIT ?", (limit,)).fetchall()
        self._db.executemany("DELETE FROM old WHERE partition = ? AND key = ?", found)
        return [key for _, key in found if key not in without] if found else None

    def close(self) -> None:
        """Stop the thread and delete the file; both stay until the process ends if Kafka blocks the thread."""
        self._stop = True
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                return
        self._db.close()
        self._folder.cleanup()

    def _work(self, ends: list[int]) -> None:
        try:
            for records in read_to(self._options, self._topic, ends, self._read_to):
                if self._stop:
                    return
                self._db.execute("BEGIN")
                self._note(records)
                self._db.execute("COMMIT")
            self._read_to = ends
        except Exception as error:
            self._error = error

    def _note(self, records: Sequence[Record]) -> None:
        latest: dict[tuple[int, bytes], bool] = {}
        for record in records:
            if record.key == TRUNCATE_KEY:
                self._store(latest)
                latest = {}
                self._db.execute("DELETE FROM old WHERE partition = ?", (record.partition,))
            else:
                before = record.partition < len(self._since) and record.offset < self._since[record.partition]
                latest[record.partition, record.key] = before and record.value is not None
        self._store(latest)

    def _store(self, latest: Mapping[tuple[int, bytes], bool]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO old VALUES (?, ?)", (key for key, old in latest.items() if old))
        self._db.executemany(
            "DELETE FROM old WHERE partition = ? AND key = ?", (key for key, old in latest.items() if not old)
        )
