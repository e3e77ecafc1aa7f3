"""Changes become records: pgoutput's bytes are encoded, and decoded again by fastavro."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import pytest

from tailrace.schemas.avro import key_schema, value_schema
from tailrace.schemas.encode.encoder import Names, TableEncoder, UnchangedToast
from tailrace.schemas.encode.row_codec import ColumnRefused
from tailrace.schemas.envelope import Record
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo, value_type

_TYPES = {
    23: TypeInfo(23, "int4", "b"),
    25: TypeInfo(25, "text", "b"),
    1700: TypeInfo(1700, "numeric", "b"),
    1007: TypeInfo(1007, "_int4", "b", element_oid=23),
}
_COLUMNS = (
    Column("id", 23, -1, True),
    Column("odd name.", 25),
    Column("price", 1700, (10 << 16 | 2) + 4),
    Column("numbers", 1007),
)
_RELATION = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, _COLUMNS)
_VALUE = fastavro.parse_schema(json.loads(value_schema(_RELATION, _TYPES, "p.public.t")))
_KEY = fastavro.parse_schema(json.loads(key_schema(_COLUMNS[:1], _TYPES, "p.public.t")))

Field = bytes | bool | None


def tuple_data(*fields: Field) -> bytes:
    """Return TupleData: False is unchanged TOAST."""
    parts = [struct.pack(">H", len(fields))]
    for field in fields:
        if field is None or field is False:
            parts.append(b"n" if field is None else b"u")
        else:
            assert isinstance(field, bytes)
            parts.append(b"t" + struct.pack(">I", len(field)) + field)
    return b"".join(parts)


@pytest.fixture
def encoder() -> TableEncoder:
    made = TableEncoder(
        Names("1.0", "p", "db", "public", "t"), [value_type(column, _TYPES) for column in _COLUMNS], [0], 1, 2
    )
    made.begin(1, 1000, 1_700_000_000_000, 77, 1_700_000_000_001)
    return made


def decoded(record: Record) -> tuple[int, dict[str, Any], dict[str, Any] | None]:
    part, key, value = record
    assert key[:5] == b"\0\0\0\0\1"
    row: Any = None
    if value is not None:
        assert value[:5] == b"\0\0\0\0\2"
        stream = io.BytesIO(value[5:])
        row = fastavro.schemaless_reader(stream, _VALUE, None)
        assert stream.read() == b"", "bytes behind the record"
    decoded_key: Any = fastavro.schemaless_reader(io.BytesIO(key[5:]), _KEY, None)
    return part, decoded_key, row


def test_an_insert_is_a_create_event_with_its_source(encoder: TableEncoder) -> None:
    message = b"I\0\0\0\1N" + tuple_data(b"-7", "ü\t".encode(), b"-12.50", b"{1,NULL}")
    ((part, key, value),) = map(decoded, encoder.insert(message, 6, 990, 8))
    assert (part, key) == (0, {"id": -7})
    assert value is not None
    assert value["before"] is None
    assert {k: str(v) for k, v in value["after"].items()} == {
        "id": "-7",
        "odd_x20name_x2E": "ü\t",
        "price": "-12.50",
        "numbers": "[1, None]",
    }
    assert value["op"] == "c"
    assert value["source"] == {
        "version": "1.0",
        "connector": "postgresql",
        "name": "p",
        "ts_ms": 1_700_000_000_000,
        "snapshot": None,
        "db": "db",
        "schema": "public",
        "table": "t",
        "txId": 77,
        "xmin": None,
        "commit_lsn": 1000,
        "lsn": 990,
        "ordinal": 8,
        "sequence": '["1000","990"]',
    }


def test_an_update_is_one_record_under_its_key(encoder: TableEncoder) -> None:
    message = b"U\0\0\0\1N" + tuple_data(b"1", b"new", None, None)
    ((_, key, value),) = map(decoded, encoder.change(message, 5, 990, 0))
    assert key == {"id": 1}
    assert value is not None
    assert (value["op"], value["before"], value["after"]["odd_x20name_x2E"]) == ("u", None, "new")


def test_a_changed_key_is_delete_tombstone_create(encoder: TableEncoder) -> None:
    message = b"U\0\0\0\1K" + tuple_data(b"1", None, None, None) + b"N" + tuple_data(b"2", b"x", None, None)
    gone, tombstone, made = map(decoded, encoder.change(message, 5, 990, 4))
    assert (gone[0], gone[1]) == (0, {"id": 1})
    assert gone[2] is not None
    assert (gone[2]["op"], gone[2]["before"]["id"], gone[2]["after"]) == ("d", 1, None)
    assert tombstone == (1, {"id": 1}, None)
    assert (made[0], made[1]) == (2, {"id": 2})
    assert made[2] is not None
    assert (made[2]["op"], made[2]["before"], made[2]["source"]["ordinal"]) == ("c", None, 6)


def test_a_delete_is_event_and_tombstone(encoder: TableEncoder) -> None:
    message = b"D\0\0\0\1O" + tuple_data(b"1", b"x", b"1.00", None)
    event, tombstone = map(decoded, encoder.remove(message, 5, 990, 0))
    assert event[2] is not None
    assert (event[2]["op"], event[2]["before"]["odd_x20name_x2E"], event[2]["after"]) == ("d", "x", None)
    assert tombstone == (1, {"id": 1}, None)


@pytest.mark.parametrize("key", [b"1", b"2"])
def test_unchanged_toast_comes_from_the_full_old_image(encoder: TableEncoder, key: bytes) -> None:
    old = tuple_data(b"1", b"large", b"1.00", b"{1}")
    message = b"U\0\0\0\1O" + old + b"N" + tuple_data(key, False, b"2.00", None)
    value = decoded(encoder.change(message, 5, 990, 0)[-1])[2]
    assert value is not None
    after = value["after"]
    assert (after["id"], after["odd_x20name_x2E"], str(after["price"]), after["numbers"]) == (
        int(key),
        "large",
        "2.00",
        None,
    )


def test_unchanged_toast_without_an_old_image_is_requested(encoder: TableEncoder) -> None:
    message = b"U\0\0\0\1N" + tuple_data(b"1", False, b"2.00", None)
    with pytest.raises(UnchangedToast):
        encoder.change(message, 5, 990, 0)
    ((_, _, value),) = map(decoded, encoder.change_filled(message, 5, [b"1", b"got", b"2.00", None], 990, 0))
    assert value is not None
    assert value["after"]["odd_x20name_x2E"] == "got"


def test_a_snapshot_row_is_a_read_event_without_an_lsn(encoder: TableEncoder) -> None:
    encoder.begin_snapshot(999, 1_700_000_000_000, 1_700_000_000_001)
    key, raw = encoder.snapshot(b"1\ta\t\\N\t\\N\n", 5)
    _, decoded_key, value = decoded((0, key, raw))
    assert decoded_key == {"id": 1}
    assert value is not None
    source = value["source"]
    assert (value["op"], source["snapshot"], source["commit_lsn"], source["lsn"], source["ordinal"]) == (
        "r",
        "true",
        999,
        None,
        5,
    )


def test_a_truncate_event_has_no_rows(encoder: TableEncoder) -> None:
    _, _, value = decoded((0, b"\0\0\0\0\1\2", encoder.truncate(990, 12)))
    assert value is not None
    assert (value["op"], value["before"], value["after"]) == ("t", None, None)


def test_a_value_that_cannot_be_exact_names_its_column(encoder: TableEncoder) -> None:
    message = b"I\0\0\0\1N" + tuple_data(b"1", b"x", b"NaN", None)
    with pytest.raises(ColumnRefused) as refused:
        encoder.insert(message, 6, 990, 0)
    assert refused.value.index == 2


def test_every_cut_message_is_a_decode_error(encoder: TableEncoder) -> None:
    row = tuple_data(b"1", b"some text", b"1.00", b"{1,2}")
    message = b"U\0\0\0\1O" + row + b"N" + row
    for size in range(5, len(message)):
        with pytest.raises((DecodeError, ColumnRefused)):
            encoder.change(message[:size], 5, 990, 0)


def test_a_change_without_a_key_is_one_record() -> None:
    """A change is one record, whatever of its row it changes, and a delete has no tombstone."""
    encoder = TableEncoder(
        Names("1.0", "p", "db", "public", "t"), [value_type(column, _TYPES) for column in _COLUMNS], [], 0, 2
    )
    encoder.begin(1, 1000, 0, 77, 0)
    old, new = tuple_data(b"1", b"a", None, None), tuple_data(b"2", None, None, None)
    made = encoder.insert(b"I\0\0\0\1N" + new, 6, 990, 0)
    changed = encoder.change(b"U\0\0\0\1O" + old + b"N" + new, 5, 990, 4)
    removed = encoder.remove(b"D\0\0\0\1O" + old, 5, 990, 8)
    rows: list[Any] = []
    for ((part, key, value),) in (made, changed, removed):
        assert (part, key) == (0, b"")
        assert value
        rows.append(fastavro.schemaless_reader(io.BytesIO(value[5:]), _VALUE, None))
    ids = [tuple(row[side] and row[side]["id"] for side in ("before", "after")) for row in rows]
    assert ids == [(None, 2), (1, 2), (1, None)]
    assert encoder.row_key([None, None, None, None]) == b""
