"""Handle values that cannot be stored exactly: write a dead letter, park the table, or stop.

With ``on_table_error = "divert"`` a refused change is written whole to ``{prefix}.tailrace.dead``, in the same Kafka
transaction as its neighbors. The table's topic gets an exact substitute: a delete of the row, because its version there
is no longer the newest; or, if only the old image was refused, the new row without the old image. So no view shows an
old state as the present one: a row whose newest version was refused is missing, and its next version that can be stored
brings it back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from tailrace.cdc.tables.destinations import Destinations, record_limit
from tailrace.cdc.tables.shapes import CapturedTable
from tailrace.cdc.wal.copydata import XLOGDATA
from tailrace.schemas.config.model import Config
from tailrace.schemas.encode.refused import ColumnRefused
from tailrace.schemas.encode.row_codec import split_tuple
from tailrace.schemas.envelope import Record
from tailrace.schemas.errors import DecodeError, SourceError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.dead_letter import DeadLetter, Place, Texts
from tailrace.schemas.records.topics import Topics, kept
from tailrace.sinks.kafka.admin import TopicSpec, ensure_topics
from tailrace.sinks.kafka.outbox import Outbox

log = structlog.get_logger()

LETTER: Final = 3
"""The part number of a dead letter within its change; substitute records have lower numbers."""

_REPORT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A refused row of a snapshot; `key` is empty if it cannot be encoded."""

    table: CapturedTable
    key: bytes
    letter: DeadLetter


class Refusals:
    """Handle refused changes. `report` logs their numbers; values are never logged."""

    def __init__(self, config: Config, outbox: Outbox, destinations: Destinations) -> None:
        self._outbox = outbox
        self._limit = record_limit(config.kafka)
        topic = Topics(config.kafka.prefix).dead
        self._dead = destinations.beside(topic) if config.source.on_table_error == "divert" else None
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._uncommitted: Counter[str] = Counter()
        self._reported_at = 0.0

    @property
    def divert_changes(self) -> bool:
        """Whether refused changes become dead letters."""
        return self._dead is not None

    def refused(self, table: CapturedTable, error: ColumnRefused, message: bytes, pos: int) -> SourceError:
        """Return the error that names all refused columns of a change; the mark of its first tuple is at `pos`."""
        return table.refused(error, *_others(table, error, _tuples(message, pos, self._limit)))

    def change(
        self, table: CapturedTable, error: ColumnRefused, message: bytes, pos: int, ordinal: int, place: Place
    ) -> list[Record]:
        """Write a change's dead letter; return the substitute records for the table's topic.

        The mark of the change's first tuple is at `pos`. `place` belongs to the dead letter, `ordinal` to the change.
        Only for a configuration that diverts.
        """
        op = {73: "c", 85: "u", 68: "d"}[message[XLOGDATA]]
        mark = message[pos : pos + 1]
        old: Texts | None = None
        new: Texts | None = None
        at = pos
        if mark != b"N":
            old, at = split_tuple(message, pos + 1, self._limit)
        if op != "d":
            new, _ = split_tuple(message, at + 1, self._limit)
        records: list[Record] = []
        key = b""
        if table.key_columns:
            assert place.lsn is not None
            records = _in_place(table, message, at, old, new, mark == b"O", place.lsn, ordinal)
            key = records[-1][1] if records else b""
        self._send(table, _letter(table, error, op, old, new, mark == b"K", len(message)), key, place)
        return records

    def row(self, table: CapturedTable, error: ColumnRefused, fields: Sequence[bytes | None]) -> RefusedRow:
        """Return a refused snapshot row for `divert`. Raises SourceError if the configuration does not divert."""
        if self._dead is None:
            raise table.refused(error, *_others(table, error, [fields])) from None
        size = sum(len(field) for field in fields if field is not None)
        letter = _letter(table, error, "r", None, fields, False, size)
        if size > self._limit:
            letter = letter.without_texts()
        return RefusedRow(table, _key(table, fields), letter)

    def divert(self, row: RefusedRow, position: Position) -> None:
        """Write the dead letter of a snapshot row."""
        self._send(row.table, row.letter, row.key, Place(position))

    def _send(self, table: CapturedTable, letter: DeadLetter, key: bytes, place: Place) -> None:
        assert self._dead is not None
        value = letter.to_json(place, self._limit - len(key))
        self._outbox.send_to(self._dead, 0, key, value, place.position.to_bytes())
        self._counts[table.name, letter.column or "", letter.reason] += 1
        self._uncommitted[table.name] += 1

    def flushed(self) -> dict[str, int]:
        """Return the number of dead letters of each table since the last call: those of one Kafka transaction."""
        found = dict(self._uncommitted)
        self._uncommitted.clear()
        return found

    def report(self, *, now: bool = False) -> None:
        """Log the changes diverted since the last report, if `now` or if more than ten seconds have passed."""
        if not self._counts or not (now or time.monotonic() - self._reported_at > _REPORT_S):
            return
        for (table, column, reason), count in self._counts.items():
            log.warning("changes diverted", table=table, column=column, reason=reason, count=count)
        self._counts.clear()
        self._reported_at = time.monotonic()


def _tuples(message: bytes, pos: int, limit: int) -> list[Texts]:
    """Return the tuples of a change whose first mark is at `pos`; fewer if the message is damaged."""
    found: list[Texts] = []
    try:
        while message[pos : pos + 1] in (b"K", b"O", b"N"):
            texts, pos = split_tuple(message, pos + 1, limit)
            found.append(texts)
    except DecodeError:
        pass
    return found


def _others(table: CapturedTable, error: ColumnRefused, rows: Sequence[Texts]) -> list[ColumnRefused]:
    """Return all other refused values of the same change, so that one error reports all of them.

    The encoder stops at the first refused value, so the row is encoded again without the values found so far.
    """
    found: dict[int, ColumnRefused] = {error.index: error}
    if error.index < 0:
        return []
    # the encoder may be prepared for a snapshot only; it sends nothing any more
    table.encoder.begin(0, 0, 0, 0, 0)
    for row in rows:
        texts = [None if isinstance(text, bool) else text for text in row]
        for _ in texts:
            for index in found:
                texts[index] = None
            try:
                table.encoder.insert(_tuple_data(texts), 0, 0, 0)
            except ColumnRefused as other:
                if other.index < 0 or other.index in found:
                    break  # the row's size, or a key column that was set to null here
                found[other.index] = other
            else:
                break
    return [each for each in found.values() if each is not error]


def _tuple_data(texts: Sequence[bytes | None]) -> bytes:
    """Return a row in pgoutput's TupleData format."""
    parts = [b"n" if text is None else b"t" + len(text).to_bytes(4, "big") + text for text in texts]
    return len(texts).to_bytes(2, "big") + b"".join(parts)


def make_dead_topic(config: Config) -> None:
    """Create the dead-letter topic, or check the settings of an existing one."""
    ensure_topics(config.kafka, [dead_topic(config)])


def dead_topic(config: Config) -> TopicSpec:
    """Return the settings that the dead-letter topic needs."""
    return TopicSpec(Topics(config.kafka.prefix).dead, 1, kept(config.kafka.max_message_bytes))


def _letter(
    table: CapturedTable,
    error: ColumnRefused,
    op: str,
    old: Texts | None,
    new: Texts | None,
    old_is_key: bool,
    size: int,
) -> DeadLetter:
    relation = table.relation
    return DeadLetter(
        relation.schema,
        relation.name,
        table.columns,
        table.key_columns,
        error.index,
        table.types[error.index] if error.index >= 0 else "",
        error.reason,
        op,
        old,
        new,
        old_is_key,
        size,
    )


def _in_place(
    table: CapturedTable,
    message: bytes,
    at: int,
    old: Texts | None,
    new: Texts | None,
    full: bool,
    lsn: int,
    ordinal: int,
) -> list[Record]:
    """Return the substitute records for a refused change; the mark of its new tuple is at `at`.

    A key that cannot be encoded needs no record, because it has never been on the topic.
    """
    if new is not None and full:
        assert old is not None
        # encoding the key detects a damaged message whose tuples differ in length
        new = [before if text is False else text for before, text in zip(old, new, strict=False)]
    row = _row_alone(table, message, at, new, lsn, ordinal + 2) if old is not None and new is not None else None
    gone = _key(table, old if old is not None else new)
    key = _key(table, new) if new is not None else gone
    records: list[Record] = []
    if gone and not (row is not None and key == gone):
        records += [(0, gone, table.encoder.removed(lsn, ordinal)), (1, gone, None)]
    if row is not None:
        records.append(row)
    elif key and key != gone:
        # no row to send, but a snapshot window must learn of the change of this key
        records.append((2, key, None))
    return records


def _row_alone(table: CapturedTable, message: bytes, at: int, new: Texts, lsn: int, ordinal: int) -> Record | None:
    """Return the record of the new row without its old image, None if the new row cannot be stored.

    It cannot if a large value is in neither tuple, because the old one is only a key. A later change brings the row
    back.
    """
    fields = [text for text in new if not isinstance(text, bool)]
    if len(fields) < len(new):
        return None
    try:
        ((_, key, value),) = table.encoder.change_filled(message, at, fields, lsn, ordinal)
    except ColumnRefused:
        return None
    return 2, key, value


def _key(table: CapturedTable, texts: Texts | None) -> bytes:
    """Return the framed key of a row, empty if the key cannot be encoded."""
    if texts is None or not table.key_columns:
        return b""
    try:
        return table.encoder.row_key([None if isinstance(text, bool) else text for text in texts])
    except ColumnRefused:
        return b""
