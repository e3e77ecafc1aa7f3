"""From the stream's messages to records: whole transactions, each change with its place in the order.

The `Assembler` counts every change of a transaction, before any filter, so that a change has the same position each
time the server sends it, and leaves out what the stored position says is there already.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cdc import pgoutput
from cdc.copydata import XLOGDATA
from cdc.progress import Progress
from cdc.reread import Reread
from cdc.rows import RowPath
from cdc.tables import CapturedTable, Tables
from schemas.encoder import Record
from schemas.envelope import POSITION_HEADER, TRUNCATE_KEY
from schemas.errors import DecodeError
from schemas.lsn import Position
from schemas.rowcodec import ColumnRefused, split_tuple
from sinks.kafka import KafkaSink
from sinks.outbox import Headers

_ALL = 2**63


class Assembler:
    """The state of the stream between two messages.

    `position` is that of the last record sent, `flushed_lsn` the end of the last transaction that was sent whole,
    `open_xid` the transaction in whose middle we are.
    """

    def __init__(
        self,
        tables: Tables,
        sink: KafkaSink,
        progress: Progress,
        reread: Reread,
    ) -> None:
        """`on_message` gets logical messages, `on_commit` ends and xids."""
        self._tables = tables
        self._outbox = sink.outbox
        self._progress = progress
        self._reread = reread
        self._rows = RowPath(tables, sink.outbox, self._fetched)
        self.on_message: Callable[[pgoutput.Message], None] | None = None
        self.on_commit: Callable[[pgoutput.Commit, int], None] | None = None
        self._begin: pgoutput.Begin | None = None
        self._position = progress.newest.here.position
        self.flushed_lsn = progress.flushed_lsn
        self.commit_us = 0

    @property
    def open_xid(self) -> int | None:
        return self._begin.xid if self._begin else None

    @property
    def position(self) -> Position:
        if self._begin is not None and self._rows.ordinal >= 0:
            return Position(self._progress.epoch, self._begin.final_lsn, self._rows.ordinal)
        return self._position

    def sent(self, position: Position) -> None:
        """Say that somebody else has sent records, up to this position."""
        self._position = position

    def watch_keys(self, on_key: Callable[[CapturedTable, bytes], None] | None) -> None:
        """Have `on_key` called with every key that a change touches, `TRUNCATE_KEY` for a truncate."""
        self._rows.on_key = on_key

    def feed(self, messages: list[bytes]) -> None:
        """Take XLogData messages. Raises DecodeError, SourceError, SinkError."""
        done = 0
        while (done := self._rows.feed(messages, done)) < len(messages):
            self._other(messages[done][XLOGDATA:], int.from_bytes(messages[done][1:9], "big"))
            done += 1

    def _other(self, message: bytes, lsn: int) -> None:
        """Take a message that is no row; `lsn` is where its WAL record stands."""
        kind = message[0] if message else 0
        if kind == pgoutput.BEGIN:
            self._start(pgoutput.begin(message))
        elif kind == pgoutput.COMMIT:
            self._end(pgoutput.commit(message))
        elif kind == pgoutput.RELATION:
            self._rows.forget()
            self._tables.see(pgoutput.relation(message))
        elif kind == pgoutput.TRUNCATE:
            self._truncate(lsn, pgoutput.truncate(message))
        elif kind == pgoutput.MESSAGE:
            self._message(pgoutput.message_(message))
        elif kind == pgoutput.TYPE:
            pgoutput.type_(message)
        elif kind == pgoutput.ORIGIN:
            pgoutput.origin(message)
        else:
            raise DecodeError(f"message of unknown type {kind}", 0, 1, 0)

    def _start(self, begin: pgoutput.Begin) -> None:
        self._begin = begin
        self._now_ms = time.time_ns() // 1_000_000
        header = Position(self._progress.epoch, begin.final_lsn, 0).to_bytes()[:12]
        self._rows.begin(begin, header, self._already_sent(begin.final_lsn), self._now_ms)

    def _already_sent(self, commit_lsn: int) -> int:
        """Return the last ordinal of the transaction that Kafka holds already, −1 if none."""
        stored = self._progress.newest
        if commit_lsn < stored.here.flushed_lsn:
            return _ALL
        if stored.open is not None and commit_lsn == stored.here.position.commit_lsn:
            return stored.here.position.ordinal
        return -1

    def _end(self, commit: pgoutput.Commit) -> None:
        begin = self._in_transaction()
        self.flushed_lsn = max(self.flushed_lsn, commit.end_lsn)
        self.commit_us = commit.commit_us
        self._position = self.position
        self._begin = None
        self._rows.end()
        if self.on_commit:
            self.on_commit(commit, begin.xid)

    def _in_transaction(self) -> pgoutput.Begin:
        if self._begin is None:
            raise DecodeError("change outside a transaction", 0, 1, 0)
        return self._begin

    def _fetched(self, table: CapturedTable, message: bytes, pos: int, lsn: int, ordinal: int) -> list[Record]:
        """Complete an update's row from the source; no records if it is gone by now, for its delete will follow."""
        new = pos
        if message[pos : pos + 1] != b"N":
            _, new = split_tuple(message, pos + 1)
        texts, _ = split_tuple(message, new + 1)
        fields, until = self._reread.row(table.relation, table.key_columns, texts)
        self._progress.reread[table.name] = until
        if fields is None:
            return []
        try:
            return table.encoder.change_filled(message, pos, fields, lsn, ordinal)
        except ColumnRefused as error:
            raise table.refused(error) from None

    def _truncate(self, lsn: int, truncate: pgoutput.Truncate) -> None:
        """A control record in every partition: what lies before it there is gone."""
        begin = self._in_transaction()
        for oid in truncate.relation_oids:
            ordinal = self._rows.count()
            if ordinal < 0:
                continue
            table = self._tables[oid]
            table.encoder.begin(begin, begin.final_lsn, begin.commit_us // 1000, begin.xid, self._now_ms)
            value = table.encoder.truncate(lsn, ordinal)
            headers: Headers = [(POSITION_HEADER, self._rows.position(ordinal))]
            for partition in range(table.destination.partitions):
                self._outbox.send_to(table.destination, partition, TRUNCATE_KEY, value, headers)
            if self._rows.on_key:
                self._rows.on_key(table, TRUNCATE_KEY)
            self._rows.ordinal = ordinal

    def _message(self, message: pgoutput.Message) -> None:
        if message.transactional:
            self._in_transaction()
            if self._rows.count() >= 0 and self.on_message:
                self.on_message(message)
