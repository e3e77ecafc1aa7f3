"""Column options: their effect on values, schemas and keys, and the configurations that are refused."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tailrace.schemas.avro import key_schema, value_schema
from tailrace.schemas.config.columns import ColumnOptions
from tailrace.schemas.config.file import load
from tailrace.schemas.config.model import Source
from tailrace.schemas.encode.encoder import Names, TableEncoder, UnchangedToast
from tailrace.schemas.errors import ConfigError
from tailrace.schemas.hidden import masked
from tailrace.schemas.relation import Relation, ReplicaIdentity
from tailrace.schemas.types import Column, TypeInfo, type_name, value_type
from tests.unit.test_encoder import Field, tuple_data

_TYPES = {
    23: TypeInfo(23, "int4", "b"),
    25: TypeInfo(25, "text", "b"),
    1007: TypeInfo(1007, "_int4", "b", element_oid=23),
    1700: TypeInfo(1700, "numeric", "b"),
}
_RELATION = Relation(
    1,
    "public",
    "users",
    ReplicaIdentity.DEFAULT,
    (
        Column("secret", 25),
        Column("id", 23, -1, True),
        Column("phone", 25),
        Column("ssn", 23),
        Column("body", 25),
    ),
)
_OPTIONS: dict[str, Any] = {
    "exclude": ["public.*.secret"],
    "mask": {"public.users.phone": 4},
    "hash": ["public.users.ssn"],
    "hash_salt": "pepper",
}
_NEW: tuple[Field, ...] = (b"never", b"1", "+49 123 ä56".encode(), b"123", b"x")
_ROW = {
    "id": 1,
    "phone": "*******" + " ä56",
    "ssn": hmac.new(b"pepper", b"123", hashlib.sha256).hexdigest(),
    "body": "x",
}


def _source(**options: Any) -> Source:
    return Source.model_validate({"dsn": "postgresql://x", **options})


_SHOWN = ColumnOptions(_source(**_OPTIONS)).applied(_RELATION, [1])
_VALUE = fastavro.parse_schema(json.loads(value_schema(_SHOWN, _TYPES, "p.public.users")))
_KEY = fastavro.parse_schema(json.loads(key_schema([_SHOWN.columns[1]], _TYPES, "p.public.users")))


@pytest.fixture
def encoder() -> TableEncoder:
    columns = [value_type(column, _TYPES) for column in _SHOWN.columns]
    made = TableEncoder(Names("1.0", "p", "db", "public", "users"), columns, [1], 1, 2)
    made.begin(1, 1000, 1_700_000_000_000, 77, 1_700_000_000_001)
    return made


def _decoded(value: bytes | None) -> dict[str, Any]:
    assert value is not None
    assert b"never" not in value
    stream = io.BytesIO(value[5:])
    row: Any = fastavro.schemaless_reader(stream, _VALUE, None)
    assert stream.read() == b""
    assert isinstance(row, dict)
    return row


def test_stream_snapshot_and_old_images_hide_columns_alike(encoder: TableEncoder) -> None:
    ((_, key, value),) = encoder.insert(b"I\0\0\0\1N" + tuple_data(*_NEW), 6, 990, 0)
    assert fastavro.schemaless_reader(io.BytesIO(key[5:]), _KEY, None) == {"id": 1}
    assert _decoded(value)["after"] == _ROW
    (_, _, value), _ = encoder.remove(b"D\0\0\0\1O" + tuple_data(*_NEW), 5, 990, 0)
    assert _decoded(value)["before"] == _ROW
    encoder.begin_snapshot(999, 1, 2)
    line = b"\t".join(field if isinstance(field, bytes) else b"\\N" for field in _NEW)
    again, value = encoder.snapshot(line, 5)
    assert again == key
    assert _decoded(value)["after"] == _ROW


def test_null_stays_null(encoder: TableEncoder) -> None:
    ((_, _, value),) = encoder.insert(b"I\0\0\0\1N" + tuple_data(None, b"1", None, None, None), 6, 990, 0)
    assert _decoded(value)["after"] == {"id": 1, "phone": None, "ssn": None, "body": None}


def test_unchanged_toast_of_an_excluded_column_is_not_looked_up(encoder: TableEncoder) -> None:
    message = b"U\0\0\0\1N" + tuple_data(False, *_NEW[1:])
    ((_, _, value),) = encoder.change(message, 5, 990, 0)
    assert _decoded(value)["after"] == _ROW


@pytest.mark.parametrize("unchanged", [2, 3, 4])
def test_unchanged_toast_is_hidden_too(encoder: TableEncoder, unchanged: int) -> None:
    new: list[Field] = [False, *_NEW[1:]]
    new[unchanged] = False
    ((_, _, value),) = encoder.change(b"U\0\0\0\1O" + tuple_data(*_NEW) + b"N" + tuple_data(*new), 5, 990, 0)
    assert (_decoded(value)["before"], _decoded(value)["after"]) == (_ROW, _ROW)
    message = b"U\0\0\0\1N" + tuple_data(*new)
    with pytest.raises(UnchangedToast) as missing:
        encoder.change(message, 5, 990, 0)
    assert missing.value.columns == [unchanged]
    fields = [None if field is False or field is True else field for field in _NEW]
    ((_, _, value),) = encoder.change_filled(message, 5, fields, 990, 0)
    assert _decoded(value)["after"] == _ROW


@pytest.mark.parametrize(
    ("text", "keep", "shown"),
    [
        (b"1234567", 4, b"***4567"),
        (b"1234", 4, b"****"),  # no longer than the part to keep: nothing is shown
        (b"12", 4, b"**"),
        (b"", 4, b""),
        (b"abc", 0, b"***"),
        ("äöü".encode(), 1, "**ü".encode()),
        (b"\xff\xfe1", 1, b"**1"),
    ],
)
def test_a_mask_shows_only_the_last_characters(text: bytes, keep: int, shown: bytes) -> None:
    assert masked(text, keep) == shown


@pytest.mark.parametrize("option", [{"exclude": ["*.id"]}, {"mask": {"*.id": 1}}, {"hash": ["*.id"], "hash_salt": "s"}])
def test_a_key_cannot_be_hidden(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r'"id" is part of the key of table "public\.users"'):
        ColumnOptions(_source(**option)).applied(_RELATION, [1])


@pytest.mark.parametrize(
    "option",
    [
        {"exclude": ["*.phone"], "mask": {"public.users.phone": 4}},
        {"mask": {"*.phone": 4, "public.users.phone": 2}},
        {"as_text": ["public.users.*"], "exclude": ["public.users.phone"]},
    ],
)
def test_two_options_of_one_column_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r'column "public\.users\.phone" has two options') as refused:
        ColumnOptions(_source(**option)).applied(_RELATION, [1])
    assert "phone" in refused.value.detail


def test_patterns_that_match_nothing_name_the_nearest_column() -> None:
    options = ColumnOptions(_source(exclude=["public.users.secert", "zzz", "*.body"]))
    assert options.unmatched([_RELATION]) == [
        ("source.exclude", "public.users.secert", "public.users.secret"),
        ("source.exclude", "zzz", None),
    ]


def test_a_hash_needs_a_salt(tmp_path: Path) -> None:
    file = tmp_path / "tailrace.toml"
    file.write_text('[source]\ndsn = "postgresql://x"\nhash = ["public.users.ssn"]\n')
    with pytest.raises(ConfigError, match="hash needs hash_salt"):
        load(file, environ={})
    (tmp_path / "salt").write_text("pepper\n")
    file.write_text(file.read_text() + f'hash_salt_file = "{tmp_path}/salt"\n')
    salt = load(file, environ={}).source.hash_salt
    assert salt is not None
    assert (salt.get_secret_value(), "pepper" in str(salt)) == ("pepper", False)


def test_the_salt_is_never_printed() -> None:
    assert "pepper" not in repr(_SHOWN)


@pytest.mark.parametrize(
    ("oid", "typmod", "name"),
    [(1700, (10 << 16 | 2) + 4, "numeric(10,2)"), (1700, -1, "numeric"), (1007, -1, "int4[]"), (25, -1, "text")],
)
def test_types_are_named_as_in_sql(oid: int, typmod: int, name: str) -> None:
    assert type_name(Column("x", oid, typmod), _TYPES) == name
