"""Refused changes: their dead letters, and the records that replace them on the table's topic."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import fastavro
import pytest

from tailrace.cdc.changes.dead_letters import Refusals
from tailrace.cdc.tables.destinations import Destinations
from tailrace.cdc.tables.shapes import CapturedTable
from tailrace.cdc.wal.copydata import XLOGDATA
from tailrace.schemas.avro import value_schema
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.model import Config, Kafka, Source
from tailrace.schemas.encode.encoder import Names, TableEncoder
from tailrace.schemas.encode.row_codec import ColumnRefused
from tailrace.schemas.envelope import Record
from tailrace.schemas.errors import DecodeError, SourceError
from tailrace.schemas.lsn import Position
from tailrace.schemas.records.dead_letter import Place
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo, type_name, value_type
from tailrace.sinks.kafka.outbox import Destination, Outbox
from tests.unit.test_encoder import tuple_data

_TYPES = {
    23: TypeInfo(23, "int4", "b"),
    25: TypeInfo(25, "text", "b"),
    1700: TypeInfo(1700, "numeric", "b"),
}
_COLUMNS = (
    Column("id", 23, -1, True),
    Column("price", 1700, (10 << 16 | 2) + 4),
    Column("big", 25),
    Column("phone", 25),
    Column("secret", 25),
)
_RELATION = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, _COLUMNS)
_SOURCE = {"dsn": "postgresql://x", "mask": {"public.t.phone": 1}, "exclude": ["public.t.secret"]}
_PLACE = Place(Position(1, 1000, 11), 990, 77, 1_700_000_000_000)

Row = tuple[bytes | bool | None, ...]
_GOOD: Row = (b"1", b"2.00", b"large", b"123", b"never")
_BAD: Row = (b"1", b"NaN", b"large", b"123", b"never")


class _Outbox:
    def __init__(self) -> None:
        self.sent: list[tuple[bytes, dict[str, Any]]] = []

    def send_to(self, to: Destination, partition: int, key: bytes, value: bytes, position: bytes) -> None:
        assert (to.topic, partition) == ("p.tailrace.dead", 0)
        assert Position.from_bytes(position) == Position(1, 1000, 11)
        assert b"never" not in value
        self.sent.append((key, json.loads(value)))


class _Destinations:
    def beside(self, topic: str) -> Destination:
        return Destination(topic, [0])


_SHOWN = ColumnOptions(Source.model_validate(_SOURCE)).applied(_RELATION, [0])
_VALUE = fastavro.parse_schema(json.loads(value_schema(_SHOWN, _TYPES, "p.public.t")))


@pytest.fixture
def table() -> CapturedTable:
    return captured([0])


def captured(keys: list[int]) -> CapturedTable:
    columns = [value_type(column, _TYPES) for column in _SHOWN.columns]
    encoder = TableEncoder(Names("1.0", "p", "db", "public", "t"), columns, keys, 1, 2)
    encoder.begin(1, 1000, 1_700_000_000_000, 77, 1_700_000_000_001)
    names = tuple(type_name(column, _TYPES) for column in _COLUMNS)
    return CapturedTable(_RELATION, keys, Destination("p.public.t", [0]), encoder, _SHOWN.columns, names)


def refusals(outbox: _Outbox, on_error: str = "divert", max_message_bytes: int = 2**24) -> Refusals:
    source = Source.model_validate(_SOURCE | {"on_table_error": on_error})
    config = Config(source=source, kafka=Kafka(prefix="p", max_message_bytes=max_message_bytes))
    return Refusals(config, cast("Outbox", outbox), cast("Destinations", _Destinations()))


def diverted(table: CapturedTable, change: bytes) -> tuple[list[Record], bytes, dict[str, Any]]:
    """Divert a change, given as kind, mark and tuples; return its records, key and dead letter."""
    outbox = _Outbox()
    message = bytes(XLOGDATA) + change[:1] + b"\0\0\0\1" + change[1:]
    pos = XLOGDATA + 5
    encode = {b"I": table.encoder.insert, b"U": table.encoder.change, b"D": table.encoder.remove}[change[:1]]
    with pytest.raises(ColumnRefused) as refused:
        encode(message, pos + (change[:1] == b"I"), 990, 8)
    records = refusals(outbox).change(table, refused.value, message, pos, 8, _PLACE)
    ((key, letter),) = outbox.sent
    assert (letter["column"], letter["type"], letter["reason"]) == (
        "price",
        "numeric(10,2)",
        "NaN and infinity are no decimals",
    )
    return records, key, letter


def key(n: int) -> bytes:
    return b"\0\0\0\0\1" + bytes([2 * n])


def value(record: Record) -> dict[str, Any]:
    assert record[2] is not None
    stream = io.BytesIO(record[2][5:])
    row: Any = fastavro.schemaless_reader(stream, _VALUE, None)
    assert stream.read() == b""
    assert isinstance(row, dict)
    return row


def assert_removed(records: list[Record], n: int) -> None:
    event, tombstone = records[:2]
    assert (event[:2], tombstone) == ((0, key(n)), (1, key(n), None))
    removed = value(event)
    assert (removed["op"], removed["before"], removed["after"], removed["source"]["ordinal"]) == ("d", None, None, 8)


def test_a_refused_insert_is_a_delete_and_a_dead_letter(table: CapturedTable) -> None:
    records, sent, letter = diverted(table, b"IN" + tuple_data(*_BAD))
    assert_removed(records, 1)
    assert len(records) == 2
    assert sent == key(1)
    assert letter == {
        "schema": "public",
        "table": "t",
        "column": "price",
        "type": "numeric(10,2)",
        "reason": "NaN and infinity are no decimals",
        "op": "c",
        "position": {"epoch": 1, "commit_lsn": "0/3E8", "ordinal": 11},
        "lsn": "0/3DE",
        "xid": 77,
        "ts_ms": 1_700_000_000_000,
        "old": None,
        "new": {"id": "1", "price": "NaN", "big": "large", "phone": "**3"},
        "unchanged": [],
    }


def test_the_dead_letter_of_an_update_lists_unchanged_toast_columns(table: CapturedTable) -> None:
    new = (b"1", b"NaN", False, b"\xff2", False)
    records, _, letter = diverted(table, b"UN" + tuple_data(*new))
    assert_removed(records, 1)
    assert (letter["op"], letter["unchanged"]) == ("u", ["big"])
    assert letter["new"] == {"id": "1", "price": "NaN", "phone": "*2"}


def test_changed_key_with_a_refused_row_is_a_delete_of_the_old_key(table: CapturedTable) -> None:
    old = tuple_data(b"1", None, None, None, None)
    records, sent, letter = diverted(table, b"UK" + old + b"N" + tuple_data(b"2", *_BAD[1:]))
    assert_removed(records, 1)
    assert records[2:] == [(2, key(2), None)]
    assert (sent, letter["old"], letter["new"]["id"]) == (key(2), {"id": "1"}, "2")


@pytest.mark.parametrize("big", [b"large", False])
def test_a_refused_old_image_does_not_hold_back_the_new_row(table: CapturedTable, big: bytes | bool) -> None:
    new = (b"1", b"3.00", big, b"45", b"never")
    records, _, letter = diverted(table, b"UO" + tuple_data(*_BAD) + b"N" + tuple_data(*new))
    ((part, row_key, _),) = records
    row = value(records[0])
    assert (part, row_key, row["op"], row["before"], row["source"]["ordinal"]) == (2, key(1), "u", None, 10)
    assert {name: str(shown) for name, shown in row["after"].items()} == {
        "id": "1",
        "price": "3.00",
        "big": "large",
        "phone": "*5",
    }
    assert (letter["old"]["price"], letter["new"]["price"]) == ("NaN", "3.00")


def test_a_refused_old_image_under_another_key_is_deleted(table: CapturedTable) -> None:
    records, _, _ = diverted(table, b"UO" + tuple_data(*_BAD) + b"N" + tuple_data(b"2", *_GOOD[1:]))
    assert_removed(records, 1)
    assert (records[2][:2], value(records[2])["after"]["id"]) == ((2, key(2)), 2)


def test_an_update_with_both_images_refused_is_a_delete(table: CapturedTable) -> None:
    records, _, _ = diverted(table, b"UO" + tuple_data(*_BAD) + b"N" + tuple_data(*_BAD))
    assert_removed(records, 1)
    assert len(records) == 2


def test_a_refused_delete_is_still_a_delete(table: CapturedTable) -> None:
    records, sent, letter = diverted(table, b"DO" + tuple_data(*_BAD))
    assert_removed(records, 1)
    assert (sent, letter["op"], letter["new"], letter["old"]["price"]) == (key(1), "d", None, "NaN")


@pytest.mark.parametrize("change", [b"IN" + tuple_data(*_BAD), b"UO" + tuple_data(*_BAD) + b"N" + tuple_data(*_GOOD)])
def test_a_refused_change_without_a_key_is_only_a_dead_letter(change: bytes) -> None:
    records, sent, letter = diverted(captured([]), change)
    assert (records, sent, letter["new"]["id"]) == ([], b"", "1")


def test_a_damaged_change_is_no_dead_letter(table: CapturedTable) -> None:
    with pytest.raises(DecodeError):
        diverted(table, b"UO" + tuple_data(*_BAD) + b"N" + tuple_data(*_GOOD[:2]))


def test_a_dead_letter_too_large_for_kafka_has_key_and_position(table: CapturedTable) -> None:
    outbox = _Outbox()
    row = (b"1", b"NaN", b"x" * 2**20, None, None)
    kept = refusals(outbox, max_message_bytes=2**20).row(table, ColumnRefused(1, "why"), row)
    refusals(outbox, max_message_bytes=2**20).divert(kept, _PLACE.position)
    ((sent, letter),) = outbox.sent
    assert (sent, letter["op"], letter["new"], letter["lsn"]) == (key(1), "r", {"id": "1"}, None)
    assert letter["left_out_bytes"] > 2**20


def test_stop_raises_an_error_that_shows_no_value(table: CapturedTable) -> None:
    with pytest.raises(SourceError) as stopped:
        refusals(_Outbox(), "stop").row(table, ColumnRefused(1, "why"), [b"1", b"4711", None, None, None])
    assert "4711" not in str(stopped.value)
    assert stopped.value.hint.splitlines()[1].strip().startswith('exclude = ["public.t.price"]')


@pytest.mark.parametrize("mark", [b"IN", b"UO", b"UN"])
def test_all_refused_columns_of_a_row_are_named_at_once(mark: bytes) -> None:
    """The encoder stops at the first; an operator who sees one after the other loses an hour each time."""
    columns = (Column("id", 23, -1, True), *(Column(f"n{n}", 1700, (10 << 16 | 2) + 4) for n in range(3)))
    relation = Relation(1, "public", "t", ReplicaIdentity.FULL, columns)
    encoder = TableEncoder(
        Names("1.0", "p", "db", "public", "t"), [value_type(column, _TYPES) for column in columns], [0], 1, 2
    )
    encoder.begin(1, 1000, 1_700_000_000_000, 77, 1_700_000_000_001)
    names = tuple(type_name(column, _TYPES) for column in columns)
    table = CapturedTable(relation, [0], Destination("p.public.t", [0]), encoder, columns, names)
    bad: Row = (b"x", b"NaN", b"1.00", b"123456789012")
    good: Row = (b"1", b"1.00", b"1.00", b"1.00")
    old = tuple_data(*bad) + b"N" + tuple_data(*good) if mark == b"UO" else tuple_data(*bad)
    message = bytes(XLOGDATA) + mark[:1] + b"\0\0\0\1" + mark[1:] + old
    stopping = refusals(_Outbox(), on_error="stop")
    error = stopping.refused(table, ColumnRefused(0, "malformed"), message, XLOGDATA + 5)
    assert error.code == "TR-220"
    assert error.message == (
        'values of columns "id" (int4), "n0" (numeric(10,2)), "n2" (numeric(10,2)) of table "public.t" cannot be'
        " stored exactly"
    )
    assert error.detail.startswith("id: malformed; n0: NaN and infinity are no decimals; n2: ")
    assert 'as_text = ["public.t.id", "public.t.n0", "public.t.n2"]' in error.hint
    assert 'exclude = ["public.t.n0", "public.t.n2"]' in error.hint
    with pytest.raises(SourceError, match="TR-220") as raised:
        stopping.row(table, ColumnRefused(1, "NaN and infinity are no decimals"), [b"1", *cast("Any", bad[1:])])
    assert '"n0" (numeric(10,2)), "n2" (numeric(10,2))' in raised.value.message


def test_dead_letters_are_counted_by_table_until_the_transaction_is_flushed(table: CapturedTable) -> None:
    outbox = _Outbox()
    found = refusals(outbox)
    for _ in range(2):
        row = found.row(table, ColumnRefused(1, "refused"), [b"1", b"NaN", b"large", b"123", b"never"])
        found.divert(row, Position(1, 1000, 11))
    assert found.flushed() == {"public.t": 2}
    assert found.flushed() == {}
