"""Complete updates that lack unchanged TOAST values, from the TOAST cache or else from the source.

| what the source answers | the update's records |
|---|---|
| the row | complete; no cut is a state of the table until the stream has passed the LSN of the read |
| no such row, or no such table | only the delete of a changed old key: the row's own delete follows in the stream |
| a column is missing or has another name; no right, or row security | the same, and a full read is scheduled |
| the connection is lost, or the server passes an OperationalError | none: TR-211, the session begins again |
| any other refusal | none: TR-227, the daemon ends |

A completed row that cannot be stored is that of `source.on_table_error` (`Assembler` and `dead_letters.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import psycopg
import structlog

from tailrace.cdc.changes.reread import Reread
from tailrace.cdc.postgres.connect import cannot_read
from tailrace.cdc.tables.position import Progress
from tailrace.cdc.tables.shapes import CapturedTable
from tailrace.cdc.toast.table_cache import Texts
from tailrace.schemas.encode.row_codec import split_tuple
from tailrace.schemas.envelope import Record
from tailrace.schemas.relation import Relation

log = structlog.get_logger()

_REPORT_S: Final = 60.0


class Unchanged:
    """Complete updates without their unchanged TOAST values.

    Logs, at most once a minute, the counts by origin.
    """

    def __init__(self, reread: Reread, progress: Progress, want: Callable[[Relation], None]) -> None:
        """`want` schedules a full read of a table."""
        self._reread = reread
        self._want = want
        self._progress = progress
        self._from_cache = 0
        self._reported = (0, 0)
        self._reported_at = time.monotonic()

    def records(
        self, table: CapturedTable, message: bytes, pos: int, lsn: int, ordinal: int, commit_lsn: int
    ) -> list[Record]:
        """Return the records of the Update at `pos`, of a transaction whose commit is at `commit_lsn`.

        Raises ColumnRefused, psycopg.OperationalError, and SourceError (TR-227) if the server refuses to read.
        """
        old: Texts | None = None
        new = pos
        if message[pos : pos + 1] != b"N":
            old, new = split_tuple(message, pos + 1)
        texts = table.shown(split_tuple(message, new + 1)[0])
        old_key = None
        if old is not None:
            # an out-of-line key column is missing, too, but then the update includes the old key
            texts = [old[i] if text is False and i in table.key_columns else text for i, text in enumerate(texts)]
            old_key = _key(table, old)
        key = _key(table, texts)
        if old_key == key:
            old_key = None
        if table.toast is not None:
            self._from_cache += table.toast.fill(texts, key, old_key, commit_lsn)
        if not any(text is False for text in texts):
            return table.encoder.change_filled(message, pos, _known(texts), lsn, ordinal)
        fields: list[bytes | None] | None = None
        try:
            fields, until = self._reread.row(table.relation, table.key_columns, texts)
            self._progress.reread[table.name] = until
        except (psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege):
            # altered since, or without the right to read it: its full read waits for that
            self._want(table.relation)
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            raise cannot_read(error) from None
        if fields is None:
            if table.toast is not None:
                table.toast.gone(key)
            return table.encoder.remove(message, pos, lsn, ordinal) if old_key is not None else []
        if table.toast is not None:
            table.toast.reread(texts, key, fields, until)
        return table.encoder.change_filled(message, pos, fields, lsn, ordinal)

    def report(self, *, now: bool = False) -> None:
        """Log the counts of this session if they have changed, when `now` is set or a minute has passed."""
        counts = (self._from_cache, self._reread.count)
        if counts == self._reported or not (now or time.monotonic() - self._reported_at > _REPORT_S):
            return
        self._reported, self._reported_at = counts, time.monotonic()
        log.info("unchanged large values completed", from_cache=counts[0], reread=counts[1], gone=self._reread.gone)


def _key(table: CapturedTable, texts: Texts) -> bytes:
    return table.encoder.row_key(_known([text if i in table.key_columns else None for i, text in enumerate(texts)]))


def _known(texts: Texts) -> Sequence[bytes | None]:
    return [text for text in texts if not isinstance(text, bool)]
