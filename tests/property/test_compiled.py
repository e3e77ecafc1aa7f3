"""Compiled and interpreted code give the same bytes and errors, on valid and on damaged messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tailrace.schemas.encode.encoder as compiled
from tailrace.schemas.encode.copy_text import split_copy
from tailrace.schemas.types import Kind, ValueType
from tests.support.interpreted import interpreted

_PLAIN = interpreted()
_PLAIN_ENCODER = _PLAIN["tailrace.schemas.encode.encoder"]
_ITEM = ValueType(Kind.INT, "int", "int")
_COLUMNS = [
    ValueType(Kind.INT, "long", "bigint"),
    ValueType(Kind.STRING, "string", "string"),
    ValueType(Kind.DOUBLE, "double", "double"),
    ValueType(Kind.FLOAT, "float", "float"),
    ValueType(Kind.BOOL, "boolean", "boolean"),
    ValueType(Kind.DECIMAL, "bytes", "decimal", scale=3, precision=20),
    ValueType(Kind.DATE, "int", "date"),
    ValueType(Kind.TIME, "long", "bigint"),
    ValueType(Kind.TIMESTAMP, "long", "timestamp_ntz"),
    ValueType(Kind.TIMESTAMPTZ, "long", "timestamp"),
    ValueType(Kind.BYTES, "bytes", "binary"),
    ValueType(Kind.ARRAY, "array", "array<int>", _ITEM),
    ValueType(Kind.MAP, "map", "map<string,string>"),
    ValueType(Kind.VECTOR, "array", "array<float>"),
    ValueType(Kind.MASKED, "string", "string", keep=2),
    ValueType(Kind.HASHED, "string", "string", salt=b"salt"),
    ValueType(Kind.EXCLUDED, "null", "void"),
]

_stamps = st.datetimes().map(lambda moment: moment.isoformat(sep=" ").encode())
_TEXTS = [
    st.integers(-(10**19), 10**19).map(lambda n: str(n).encode()),
    st.text().map(str.encode),
    st.floats().map(lambda n: repr(n).encode()) | st.sampled_from([b"NaN", b"-Infinity", b"-InFinity", b"1e5"]),
    st.floats(width=32).map(lambda n: repr(n).encode()),
    st.sampled_from([b"t", b"f"]),
    st.decimals(places=3, allow_nan=True, min_value=-(10**18), max_value=10**18).map(lambda n: str(n).encode()),
    st.dates().map(lambda date: date.isoformat().encode()),
    st.times().map(lambda time: time.isoformat().encode()),
    _stamps,
    _stamps.map(lambda text: text + b"+00"),
    st.binary().map(lambda raw: b"\\x" + raw.hex().encode()),
    st.lists(st.none() | st.integers(-5, 5)).map(
        lambda items: ("{" + ",".join("NULL" if n is None else str(n) for n in items) + "}").encode()
    ),
    st.sampled_from([b"", b'"a"=>"1"', b'"a"=>NULL, "b\\"c"=>"\\\\"', b'"a"=>']),
    st.lists(st.floats(width=32), min_size=1).map(lambda items: repr(items).replace(" ", "").encode()),
    st.text().map(str.encode) | st.binary(max_size=5),
    st.text().map(str.encode),
    st.text().map(str.encode) | st.just(False),  # unchanged TOAST
]
_Row = tuple[bytes | Literal[False] | None, ...]
_rows: st.SearchStrategy[_Row] = st.tuples(*(st.none() | text for text in _TEXTS))


_updated_rows: st.SearchStrategy[_Row] = st.tuples(*(st.none() | text | st.just(False) for text in _TEXTS))


def _tuple(fields: _Row) -> bytes:
    parts = (
        b"n" if field is None else b"u" if field is False else b"t" + struct.pack(">I", len(field)) + field
        for field in fields
    )
    return struct.pack(">H", len(fields)) + b"".join(parts)


_SOURCE = b"\x02v\x14postgresql\x02n"


def _encoder(module: Any, columns: Sequence[ValueType]) -> Any:
    made = module.TableEncoder(module.Names("v", "n", "d", "s", "t"), columns, [0], 1, 2)
    made.begin(1, 2**40, 1_700_000_000_000, 5, 1_700_000_000_000)
    return made


def _outcome(module: Any, columns: Sequence[ValueType], method: str, *arguments: Any) -> Any:
    try:
        return getattr(_encoder(module, columns), method)(*arguments)
    except Exception as error:
        return type(error).__name__, str(error), getattr(error, "index", None), getattr(error, "offset", None)


def _agree(method: str, message: bytes, pos: int) -> None:
    _agree_on(method, message, pos, 2**41, 12)


def _agree_on(method: str, *arguments: Any, columns: Sequence[ValueType] = _COLUMNS) -> None:
    one, other = (_outcome(module, columns, method, *arguments) for module in (compiled, _PLAIN_ENCODER))
    assert one == other
    if isinstance(one, tuple) and isinstance(one[0], str):
        assert one[0] in ("DecodeError", "ColumnRefused", "UnchangedToast"), one


def test_this_run_compares_two_forms() -> None:
    if not compiled.__file__.endswith(".so"):
        pytest.skip("not compiled here: there is one form only (make setup compiles where there is a C compiler)")


@given(_rows)
@settings(max_examples=300, deadline=None)
def test_both_forms_encode_an_insert_alike(fields: _Row) -> None:
    _agree("insert", b"I\0\0\0\1N" + _tuple(fields), 6)


@given(_rows, _updated_rows, st.sampled_from([b"K", b"O", b""]))
@settings(max_examples=200, deadline=None)
def test_both_forms_encode_updates_and_deletes_alike(old: _Row, new: _Row, mark: bytes) -> None:
    before = mark + _tuple(old) if mark else b""
    _agree("change", b"U\0\0\0\1" + before + b"N" + _tuple(new), 5)
    _agree("remove", b"D\0\0\0\1" + before, 5)
    _agree_on("change_filled", b"U\0\0\0\1" + before + b"N" + _tuple(new), 5, _texts(old), 2**41, 12)


@given(st.lists(st.none() | st.binary(max_size=5), max_size=19) | _rows.map(lambda row: _texts(row)))
@settings(max_examples=200, deadline=None)
def test_both_forms_encode_keys_removals_and_truncates_alike(fields: list[bytes | None]) -> None:
    _agree_on("row_key", fields)
    _agree_on("truncate", 2**41, 12)
    _agree_on("removed", 2**41, 12)


def _texts(row: _Row) -> list[bytes | None]:
    return [None if field is False else field for field in row]


@given(_rows, st.data())
@settings(max_examples=500, deadline=None)
def test_both_forms_treat_a_damaged_update_alike(fields: _Row, data: st.DataObject) -> None:
    message = bytearray(b"U\0\0\0\1O" + _tuple(fields) + b"N" + _tuple(fields))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(5, len(message) - 1))] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(5, len(message)))
    _agree("change", bytes(message[:size]), 5)


_ESCAPES = {8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 92: b"\\\\"}


def _copy_line(fields: Sequence[bytes | None]) -> bytes:
    escaped = (
        b"\\N" if field is None else b"".join(_ESCAPES.get(byte, bytes([byte])) for byte in field) for field in fields
    )
    return b"\t".join(escaped) + b"\n"


@st.composite
def _small_tables(draw: st.DrawFn) -> tuple[list[ValueType], _Row, _Row]:
    """Draw a table of few columns and two rows of it.

    Most of these rows are valid, which is rare where all kinds of columns come together.
    """
    picked = draw(st.lists(st.integers(0, len(_COLUMNS) - 1), min_size=1, max_size=4))
    old = st.tuples(*(st.none() | _TEXTS[i] for i in picked))
    new = st.tuples(*(st.none() | _TEXTS[i] | st.sampled_from([False, b""]) for i in picked))
    return [_COLUMNS[i] for i in picked], draw(old), draw(new)


@given(_small_tables())
@settings(max_examples=600, deadline=None)
def test_both_forms_encode_rows_of_small_tables_alike(table: tuple[list[ValueType], _Row, _Row]) -> None:
    columns, old, new = table
    place = (2**41, 12)
    _agree_on("insert", b"I\0\0\0\1N" + _tuple(new), 6, *place, columns=columns)
    _agree_on("snapshot", _copy_line(_texts(new)), 12, columns=columns)
    for before in (b"", b"K" + _tuple(old), b"O" + _tuple(old), b"O" + _tuple(new)):
        _agree_on("change", b"U\0\0\0\1" + before + b"N" + _tuple(new), 5, *place, columns=columns)
        _agree_on("remove", b"D\0\0\0\1" + before, 5, *place, columns=columns)


@given(_small_tables(), st.data())
@settings(max_examples=600, deadline=None)
def test_both_forms_treat_damage_in_small_tables_alike(
    table: tuple[list[ValueType], _Row, _Row], data: st.DataObject
) -> None:
    columns, old, new = table
    method, whole, pos = data.draw(
        st.sampled_from(
            [
                ("insert", b"I\0\0\0\1N" + _tuple(new), 6),
                ("change", b"U\0\0\0\1N" + _tuple(new), 5),
                ("change", b"U\0\0\0\1O" + _tuple(old) + b"N" + _tuple(new), 5),
                ("remove", b"D\0\0\0\1K" + _tuple(old), 5),
            ]
        )
    )
    message = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(pos, len(message) - 1))
        message[at] = data.draw(st.integers(0, 255) | st.sampled_from(b"tnuN\0\1\2"))
    size = data.draw(st.just(len(message)) | st.integers(pos, len(message)))
    rest = data.draw(st.just(b"") | st.binary(max_size=5))
    _agree_on(method, bytes(message[:size]) + rest, pos, data.draw(st.integers(0, 2**64 - 1)), 12, columns=columns)


_EDGES = [
    *(b"0", b"-0", b"007", b"+5", b" 5", b"1_0", b"-", b"1-2", "٣".encode()),
    *(b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"0000000000000000001", b"1" * 20),
    *(
        b"1.000",
        b"-1.000",
        b".500",
        b"1,500",
        b"t500",
        b"-.500",
        b"1.00",
        b"0.001",
        b"12.3.456",
        b"99999999999999.999",
        b"1" * 18 + b".000",
    ),
    *(b"1e400", b"-1e-400", b"Infinity", b"nan", b"1" * 65, b"0x1", b"1_0.5", b" 1.5"),
    *(b"infinity", b"-infinity", b"2024-02-29", b"12024-01-01", b"0044-03-15 BC", b"24:00:00", b"23:59:60.5"),
    *(b"2024-02-29 23:59:59", b"2024-02-29 23:59:59.5", b"2024-02-29 23:59:59.123456", b"2024-02-29T23:59:59.123456"),
    *(b"2024-02-29 23:59:59.12345x", b"2024-02-29 23:59:59x123456", b"2024-02-29 23:59:5.9123456"),
    *(b"2024-02-29 23:59:59.123456+00", b"2024-02-29 23:59:59+00", b"2024-02-29 23:59:59.1+01", b"+00"),
    *(
        b"12024-01-01 00:00:00.000001",
        b"0044-03-15 12:00:00 BC",
        b"0044-03-15 12:00:00+00 BC",
        b"x" * 1023,
        b"x" * 1024,
    ),
]


@pytest.mark.parametrize("column", _COLUMNS, ids=lambda column: column.kind.name)
def test_both_forms_encode_or_refuse_edge_values_alike(column: ValueType) -> None:
    for text in _EDGES:
        _agree_on("insert", _tuple((b"1", text)), 0, 2**41, 12, columns=[_COLUMNS[0], column])


@pytest.mark.parametrize("number", [0, 63, 64, 8191, 8192, 2**27, 2**41, 10**18, 2**63 - 1, 2**63, 2**64 - 1])
def test_both_forms_encode_edge_positions_alike(number: int) -> None:
    _agree_on("insert", _tuple((b"1",)), 0, number, min(number, 2**62), columns=_COLUMNS[:1])


@given(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=5))
def test_a_copy_line_is_split_into_its_fields(fields: list[bytes | None]) -> None:
    assert split_copy(_copy_line(fields)) == fields


@given(_rows)
@settings(max_examples=300, deadline=None)
def test_a_copied_row_is_encoded_as_a_streamed_insert(fields: _Row) -> None:
    """A line of COPY gives the key and the row that an Insert of the same texts gives, or the same error."""
    line, texts = _copy_line(_texts(fields)), _texts(fields)
    _agree_on("snapshot", line, 2**62)
    _agree_on("snapshot", line[:-1], 2**62)
    streamed = _outcome(compiled, _COLUMNS, "insert", b"I\0\0\0\1N" + _tuple(tuple(texts)), 6, 2**41, 12)
    copied = _outcome(compiled, _COLUMNS, "snapshot", line, 2**62)
    if isinstance(streamed, list):
        ((_, key, value),) = streamed
        # up to the fields of the source, they are equal
        assert copied[0] == key
        assert copied[1].partition(_SOURCE)[0] == value.partition(_SOURCE)[0]
    else:
        assert copied == streamed


@given(_rows, st.data())
@settings(max_examples=300, deadline=None)
def test_both_forms_treat_damaged_copy_lines_alike(fields: _Row, data: st.DataObject) -> None:
    line = bytearray(_copy_line(_texts(fields)))
    for _ in range(data.draw(st.integers(0, 4))):
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.sampled_from([9, 10, 78, 92, 110, 0]))
    _agree_on("snapshot", bytes(line[: data.draw(st.integers(0, len(line)))]), 2**62)


@given(st.binary(max_size=40), st.integers(1, 500))
def test_both_forms_choose_the_same_partition(key: bytes, partitions: int) -> None:
    from tailrace.schemas.encode.partition import partition_of

    assert partition_of(key, partitions) == _PLAIN["tailrace.schemas.encode.partition"].partition_of(key, partitions)
