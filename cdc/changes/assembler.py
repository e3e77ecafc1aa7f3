"""Turn the stream's messages into records of whole transactions, each change with its position.

The `Assembler` counts every change of a transaction, before any filter, so that a change has the same position each
time the server sends it. It skips changes up to the stored position.
"""

from __future__ import annotations

from collections.abc import Callable

from tailrace.cdc.changes.dead_letters import LETTER, Refusals
from tailrace.cdc.changes.logical_messages import OWN, Messages
from tailrace.cdc.changes.row_path import RowPath
from tailrace.cdc.changes.toast_completion import Unchanged
from tailrace.cdc.tables.position import Progress
from tailrace.cdc.tables.shapes import CapturedTable, Tables
from tailrace.cdc.wal import pgoutput
from tailrace.cdc.wal.copydata import XLOGDATA
from tailrace.cdc.wal.streamed import InProgress
from tailrace.schemas.encode.row_codec import ColumnRefused
from tailrace.schemas.envelope import TRUNCATE_KEY, Record
from tailrace.schemas.errors import DecodeError, TailraceError
from tailrace.schemas.lsn import PARTS_PER_CHANGE, Position
from tailrace.schemas.records.dead_letter import Place
from tailrace.schemas.relation import Relation
from tailrace.sinks.kafka.producer import KafkaSink


class Assembler:
    """The state of the stream between two messages; `rows` has the state of rows and transactions.

    `oldest_us` is the commit time of the oldest transaction with records in the open Kafka transaction. The caller
    resets it to None when it ends the Kafka transaction.
    """

    def __init__(
        self,
        tables: Tables,
        sink: KafkaSink,
        progress: Progress,
        unchanged: Unchanged,
        in_progress: InProgress,
        messages: Messages,
        refusals: Refusals,
    ) -> None:
        """The caller sets `on_message` to receive our own marks after the stored position."""
        self._tables = tables
        self._outbox = sink.outbox
        self._progress = progress
        self._unchanged = unchanged
        self._in_progress = in_progress
        self._messages = messages
        self._refusals = refusals
        self._waiting: list[bytes] = []
        self.oldest_us: int | None = None
        self.rows = RowPath(tables, sink.outbox, progress, self._fetched, self._refused)
        self.on_message: Callable[[pgoutput.Message], None] | None = None
        tables.on_emptied = self._emptied

    @property
    def open_xid(self) -> int | None:
        """The xid of the transaction in progress."""
        return self.rows.xid if self.rows.open else None

    @property
    def lsn(self) -> int:
        """The commit LSN of the transaction in progress, or else of the last record sent."""
        return self.rows.final_lsn if self.rows.open else self.rows.position_lsn

    @property
    def position(self) -> Position:
        """The position of the last record sent."""
        return Position(self._progress.epoch, self.rows.position_lsn, self.rows.position_ordinal)

    @property
    def behind(self) -> Position:
        """The next position after `position`: for records between transactions that no change has caused."""
        return Position(self._progress.epoch, self.rows.position_lsn, self.rows.position_ordinal + 1)

    def sent(self, position: Position) -> None:
        """Note that another component has sent records up to this position."""
        self.rows.position_lsn, self.rows.position_ordinal = position.commit_lsn, position.ordinal

    def feed(self, messages: list[bytes]) -> None:
        """Process XLogData messages. Raises DecodeError, SourceError, SinkError.

        Messages after the commit of a streamed transaction wait until `release` has sent that transaction.
        """
        self._note_oldest(messages)
        done = 0
        while done < len(messages):
            if self._in_progress.in_block:
                done = self._in_progress.keep(messages, done)
                continue
            done = self.rows.feed(messages, done)
            if done < len(messages):
                releasing = self._in_progress.releasing
                self._other(messages[done])
                done += 1
                if self._in_progress.releasing and not releasing:
                    self._waiting = messages[done:]
                    return

    def _note_oldest(self, messages: list[bytes]) -> None:
        rows = self.rows
        if self.oldest_us is not None and (rows.open or self._outbox.open):
            return
        if rows.open:
            self.oldest_us = rows.begin_us
            return
        for raw in messages:
            if raw[XLOGDATA : XLOGDATA + 1] == b"B":
                self.oldest_us = pgoutput.begin(raw[XLOGDATA:]).commit_us
                return

    @property
    def releasing(self) -> bool:
        """Whether `release` has messages to send."""
        return self._in_progress.releasing

    def release(self, limit: int) -> bool:
        """Send up to `limit` messages of a committed streamed transaction; False if there is none."""
        if not self._in_progress.releasing:
            return False
        messages = self._in_progress.release(limit)
        if not messages:
            messages, self._waiting = self._waiting, []
        self.feed(messages)
        return True

    def _other(self, raw: bytes) -> None:
        """Process the XLogData of a message that is not a row change."""
        message = raw[XLOGDATA:]
        kind = message[0] if message else 0
        if kind == pgoutput.BEGIN:
            begin = pgoutput.begin(message)
            self.rows.begin(begin.final_lsn, begin.commit_us, begin.xid)
        elif kind == pgoutput.COMMIT:
            commit = pgoutput.commit(message)
            self.rows.commit(commit.commit_lsn, commit.end_lsn, commit.commit_us)
        elif kind == pgoutput.RELATION:
            self.rows.forget()
            self._tables.see(pgoutput.relation(message), self.rows.final_lsn)
        elif kind == pgoutput.TRUNCATE:
            self._truncate(int.from_bytes(raw[1:9], "big"), pgoutput.truncate(message))
        elif kind == pgoutput.MESSAGE:
            self._message(pgoutput.message_(message), int.from_bytes(raw[17:25], "big", signed=True))
        elif kind == pgoutput.TYPE:
            pgoutput.type_(message)
        elif kind == pgoutput.ORIGIN:
            pgoutput.origin(message)
        elif not self._in_progress.take(message):
            raise DecodeError(f"message of unknown type {kind}", 0, 1, 0)

    def _in_transaction(self) -> None:
        if not self.rows.open:
            raise DecodeError("change outside a transaction", 0, 1, 0)

    def _fetched(self, table: CapturedTable, message: bytes, pos: int, lsn: int, ordinal: int) -> list[Record]:
        """Return the records of an update that lacks unchanged TOAST values."""
        try:
            return self._unchanged.records(table, message, pos, lsn, ordinal, self.rows.final_lsn)
        except ColumnRefused as error:
            records = self._refused(table, message, pos, lsn, ordinal, error)
            if table.toast is not None and not self._tables.is_ignored(table.relation.oid):
                table.toast.refused(records)
            return records

    def _refused(
        self, table: CapturedTable, message: bytes, pos: int, lsn: int, ordinal: int, error: ColumnRefused
    ) -> list[Record]:
        """Return the substitute records for a change that cannot be stored; none once its table is parked.

        Raises SourceError if the daemon is to stop.
        """
        rows = self.rows
        if not self._refusals.divert_changes:
            refused = self._refusals.refused(table, error, message, pos)
            if not self.park(table.relation.oid, refused):
                raise refused from None
            return []
        place = Place(Position.from_bytes(rows.position(ordinal + LETTER)), lsn, rows.xid, rows.begin_us // 1000)
        records = self._refusals.change(table, error, message, pos, ordinal, place)
        rows.sent(ordinal + LETTER)
        return records

    def park(self, oid: int, error: TailraceError) -> bool:
        """Park a table for an error that concerns it alone; False if the daemon is to stop."""
        parked = self._tables.park(oid, error, self.lsn)
        if parked:
            self.rows.forget()
        return parked

    def set_aside(self, relation: Relation, error: TailraceError) -> None:
        """Park a table at a person's request."""
        self._tables.set_aside(relation, error, self.lsn)
        self.rows.forget()

    def empty(self, table: CapturedTable, position: Position) -> None:
        """Empty the topic of a table whose rows follow: records before `position` become invalid."""
        self._empty(table, position.commit_lsn, position)

    def _truncate(self, lsn: int, truncate: pgoutput.Truncate) -> None:
        self._in_transaction()
        rows = self.rows
        for oid in truncate.relation_oids:
            ordinal = rows.count()
            if ordinal < 0:
                continue
            table = self._tables.captured(oid, rows.final_lsn)
            if table is None:
                continue
            self._empty(table, lsn, Position(self._progress.epoch, rows.final_lsn, ordinal))
            rows.sent(ordinal)

    def _emptied(self, table: CapturedTable) -> None:
        """Empty the topic of a table to be refilled, directly before the record that is about to be sent."""
        rows = self.rows
        lsn = rows.final_lsn
        if not rows.open:
            position = self.behind  # rows of a window follow
            self.sent(position)
        elif (behind := rows.changes * PARTS_PER_CHANGE - 1) > 0:
            position = Position(self._progress.epoch, lsn, behind)  # the last part of the change before this one
        else:
            # no other record has this position: commit records are at multiples of 8
            position = Position(self._progress.epoch, lsn - 1, 0)
        self._empty(table, lsn, position)

    def _empty(self, table: CapturedTable, lsn: int, position: Position) -> None:
        """Send a truncate control record to every partition: it deletes all rows before it."""
        self.rows.prepare(table.encoder)
        value = table.encoder.truncate(lsn, position.ordinal)
        for partition in range(table.destination.partitions):
            self._outbox.send_to(table.destination, partition, TRUNCATE_KEY, value, position.to_bytes())
        if table.toast is not None:
            table.toast.clear()
        if self.rows.on_key:
            self.rows.on_key(table, TRUNCATE_KEY)

    def _message(self, message: pgoutput.Message, sent_us: int) -> None:
        """Process a logical message, transactional or not.

        `sent_us` is the time at which the server sent it, in microseconds since 2000: a non-transactional message has
        no other time.
        """
        rows = self.rows
        if message.transactional:
            self._in_transaction()
        elif rows.open:
            raise DecodeError("non-transactional message inside a transaction", 0, 1, 0)
        else:
            # its LSN is that of the first byte after it, where the next commit may be
            rows.begin(message.lsn - 1, sent_us + pgoutput.POSTGRES_EPOCH_US, 0)
        ordinal = rows.count()
        if ordinal >= 0:
            if not message.prefix.startswith(OWN):
                self._messages.send(rows, message, ordinal)
            elif self.on_message:
                self.on_message(message)
        if not message.transactional:
            rows.end_alone()
