"""Reconcile at the end of a run: send a delete and a tombstone for each key missing in the source."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from tailrace.cdc.tables.shapes import CapturedTable
from tailrace.schemas.avro import without_logical_types
from tailrace.schemas.config.columns import is_excluded
from tailrace.schemas.config.model import Kafka
from tailrace.schemas.envelope import FRAMING_SIZE, POSITION_HEADER, SNAPSHOT_HEADER, framing
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.position import PositionRecord
from tailrace.sinks.kafka.options import client_options
from tailrace.sinks.kafka.outbox import Headers, Outbox
from tailrace.snapshot.sweep import Sweep

_DELETES: Final = 2000
"""Maximum number of keys that are deleted before the stream is served again."""

_CLOSE: Final = 20_000
"""Maximum number of unread records when noting the stream's keys, in memory, begins."""

_CLIENT: Final = {"queued.max.messages.kbytes": 8192, "fetch.max.bytes": 4_194_304}


class Reconcile:
    """Find the keys of one table that are missing in the source, while streaming.

    The topic is read to its end repeatedly, until few records are unread. From then on the keys that the stream sends
    are noted, and all records sent before are read. Keys whose records are from before the run, and that were not
    noted, are missing in the source.
    Memory: the keys that change while the rest of the topic is read and the deletes are sent.
    """

    def __init__(self, kafka: Kafka, topic: str, since: Sequence[int]) -> None:
        self._topic = topic
        self._sweep = Sweep(client_options(kafka) | _CLIENT, topic, since)
        self._ends: list[int] = []
        self._noted: set[bytes] | None = None
        self._opened: PositionRecord | None = None
        self._whole = False
        self._emptied = False

    def touch(self, key: bytes) -> None:
        """Note a key that the stream sends."""
        if self._noted is not None:
            self._noted.add(key)

    def truncated(self) -> None:
        """Note that a truncate has invalidated all records on the topic."""
        self._emptied = True

    def step(self, newest: PositionRecord, *, pending: bool) -> list[bytes] | None:
        """Do the next step; return the keys to delete now, or None when all are deleted.

        `newest` is the position record that Kafka has, `pending` whether records wait for their commit.
        """
        if self._sweep.reading:
            return []
        if self._emptied:
            return None
        if self._whole:
            assert self._noted is not None
            return self._sweep.take(_DELETES, self._noted)
        if self._opened is None:
            if sum(newest.here.offsets.get(self._topic, [])) - sum(self._ends) > _CLOSE:
                self._read(newest)
            else:
                self._noted, self._opened = set(), newest
        elif not pending or newest is not self._opened:
            # all records sent before the noting began have committed offsets now
            self._read(newest)
            self._whole = True
        return []

    def _read(self, newest: PositionRecord) -> None:
        self._ends = newest.here.offsets.get(self._topic, [])
        self._sweep.read(self._ends)

    def close(self) -> None:
        self._sweep.close()


class Deletes:
    """Send the deletes of one run."""

    def __init__(self, outbox: Outbox, table: CapturedTable, key_schema: tuple[int, str], run: int) -> None:
        self._outbox = outbox
        self._table = table
        self._run = run.to_bytes(4, "big")
        self._image = KeyImage(key_schema, table)

    def send(self, keys: Iterable[bytes], position: Position) -> Position:
        """Send delete and tombstone of each key, starting at `position`; return the last record's position."""
        table, ordinal = self._table, position.ordinal
        now_ms = time.time_ns() // 1_000_000
        table.encoder.begin_snapshot(position.commit_lsn, now_ms, now_ms)
        for key in keys:
            event = table.encoder.snapshot_delete(self._image.of(key), ordinal)
            for value in (event, None):
                at = Position(position.epoch, position.commit_lsn, ordinal)
                headers: Headers = [(POSITION_HEADER, at.to_bytes()), (SNAPSHOT_HEADER, self._run)]
                self._outbox.send(table.destination, key, value, headers)
                ordinal += 1
            if table.toast is not None:
                table.toast.gone(key)
        return Position(position.epoch, position.commit_lsn, ordinal - 1)


class KeyImage:
    """Build the `before` image of a delete from a key: the key's columns, all others NULL."""

    def __init__(self, key_schema: tuple[int, str], table: CapturedTable) -> None:
        # only a read that ends with deletes needs it: the first change after a start would wait for the import
        from fastavro import parse_schema, schemaless_reader

        fields: Sequence[Mapping[str, Any]] = orjson.loads(key_schema[1])["fields"]
        self._read = schemaless_reader
        self._types = [parse_schema(without_logical_types(field["type"])) for field in fields]
        self._columns = [
            table.key_columns.index(i) if i in table.key_columns else None
            for i, column in enumerate(table.columns)
            if not is_excluded(column)
        ]
        self._frame = framing(key_schema[0])

    def of(self, key: bytes) -> bytes:
        """Return the Avro bytes of `before`, a union; null for a key with an earlier schema."""
        if key[:FRAMING_SIZE] != self._frame:
            return b"\x00"
        body = io.BytesIO(key)
        body.seek(FRAMING_SIZE)
        values = []
        for kind in self._types:
            start = body.tell()
            self._read(body, kind, None)
            values.append(b"\x02" + key[start : body.tell()])
        return b"\x02" + b"".join(b"\x00" if i is None else values[i] for i in self._columns)
