"""The rest of a first snapshot that was cut short: windows over the stream, their rows sent at the high mark."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import orjson
import structlog

from cdc import pgoutput
from cdc.connect import connect
from cdc.delivery import Delivery
from cdc.first_snapshot import RowSender, chunk_done
from cdc.progress import Progress
from cdc.tables import CapturedTable, Tables
from cdc.transaction import Assembler
from schemas.config import Config
from schemas.envelope import TRUNCATE_KEY
from schemas.lsn import PARTS_PER_CHANGE
from schemas.progress import is_chunk_key
from schemas.relation import Relation
from schemas.topics import Topics
from sinks.progress import Reader
from snapshot.plan import Chunk
from snapshot.window import Window, WindowReader

log = structlog.get_logger()


class Windows:
    """Joins the reader of windows to the stream: what the stream touches goes in, rows come out at commits."""

    def __init__(
        self,
        config: Config,
        delivery: Delivery,
        tables: Tables,
        progress: Progress,
        assembler: Assembler,
        relations: dict[str, Relation],
        chunks: Sequence[Chunk],
    ) -> None:
        self._delivery = delivery
        self._tables = tables
        self._progress = progress
        self._assembler = assembler
        self._relations = relations
        self._left = set(chunks)
        self._closed: Window | None = None
        self._xid = 0
        dsn = config.source.dsn.get_secret_value()
        for relation in relations.values():
            tables.see(relation)
        self._reader = WindowReader(
            lambda: connect(dsn, application_name="tailrace window"),
            f"tailrace:{config.source.slot}",
            uuid.uuid4().hex,
            relations,
            chunks,
        )
        assembler.on_message = self._message
        assembler.rows.on_key = self._touch
        assembler.rows.on_commit = self._commit
        log.info("snapshot goes on in windows", chunks=len(chunks))

    def _message(self, message: pgoutput.Message) -> None:
        """Take a logical message of the stream."""
        self._closed = self._reader.mark(message.prefix, message.content) or self._closed

    @property
    def finished(self) -> bool:
        """Whether all rows are there. Raises what the reader met."""
        return self._reader.finished

    def _touch(self, table: CapturedTable, key: bytes) -> None:
        if key == TRUNCATE_KEY:
            self._reader.truncated(table.name)
        else:
            self._reader.touch(table.name, key)

    def _commit(self, commit_lsn: int, xid: int) -> None:
        self._reader.delivered(xid)
        window, self._closed = self._closed, None
        if window is None:
            return
        table = self._tables[self._relations[window.chunk.table].oid]
        if table.relation != self._relations[window.chunk.table]:
            self._relations[window.chunk.table] = table.relation
            window.void = True
        if not window.void:
            # behind the mark itself, which is the only change of its transaction
            sender = RowSender(self._delivery, self._tables, self._progress.epoch, commit_lsn, PARTS_PER_CHANGE)
            sender.divert(sender.send(table.relation.oid, window.lines, window.keys))
            chunk_done(self._delivery, self._progress, window.chunk, self._left)
            self._assembler.sent(sender.position)
        self._reader.finish(window)

    def close(self) -> None:
        self._reader.close()
        self._assembler.on_message = None
        self._assembler.rows.on_key = None
        self._assembler.rows.on_commit = None


def open_chunks(config: Config) -> list[Chunk] | None:
    """Return the chunks that the progress topic says are not read yet, None if none was ever written down."""
    topics = Topics(config.kafka.prefix)
    newest: dict[bytes, dict[str, Any]] = {}
    with Reader(config.kafka, topics.progress) as reader:
        for record in reader.all():
            key, value = record.key(), record.value()
            if isinstance(key, bytes) and isinstance(value, bytes) and is_chunk_key(key, config.source.slot):
                newest[key] = orjson.loads(value)
    if not newest:
        return None
    return [Chunk.from_dict(value) for value in newest.values() if not value["done"]]
