"""pgoutput messages built from drawn fields: parsed as written, a DecodeError wherever they are cut."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.cdc.wal import pgoutput, pgoutput_stream
from tailrace.schemas.errors import DecodeError
from tailrace.schemas.relation import Relation

_int8 = st.integers(0, 255)
_int32 = st.integers(0, 2**32 - 1)
_lsn = st.integers(0, 2**64 - 1)
_us = st.integers(-(2**63), 2**63 - 1)
_flag = st.booleans()
_name = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)
_none = st.just(0)

# each field: its layout, and its strategy; "s" is a zero-terminated string
_Layout = list[tuple[str, st.SearchStrategy[Any]]]
_END: _Layout = [("Q", _lsn), ("Q", _lsn), ("q", _us)]
_PREPARED: _Layout = [*_END, ("I", _int32), ("s", _name)]
_FORMS: list[tuple[str, Callable[[bytes], Any], _Layout]] = [
    ("B", pgoutput.begin, [("Q", _lsn), ("q", _us), ("I", _int32)]),
    ("C", pgoutput.commit, [("x", _none), *_END]),
    ("Y", pgoutput.type_, [("I", _int32), ("s", _name.filter(bool)), ("s", _name)]),
    ("O", pgoutput.origin, [("Q", _lsn), ("s", _name)]),
    ("S", pgoutput_stream.stream_start, [("I", _int32), ("?", _flag)]),
    ("E", pgoutput_stream.stream_stop, []),
    ("c", pgoutput_stream.stream_commit, [("I", _int32), ("x", _none), *_END]),
    ("A", partial(pgoutput_stream.stream_abort, parallel=True),
     [("I", _int32), ("I", _int32), ("Q", _lsn), ("q", _us)]),
    ("b", pgoutput_stream.begin_prepare, _PREPARED),
    ("P", pgoutput_stream.prepare, [("x", _none), *_PREPARED]),
    ("p", pgoutput_stream.stream_prepare, [("x", _none), *_PREPARED]),
    ("K", pgoutput_stream.commit_prepared, [("x", _none), *_PREPARED]),
    ("r", pgoutput_stream.rollback_prepared,
     [("x", _none), ("Q", _lsn), ("Q", _lsn), ("q", _us), ("q", _us), ("I", _int32), ("s", _name)]),
]  # fmt: skip


@st.composite
def _messages(draw: st.DrawFn) -> tuple[Callable[[bytes], Any], bytes, list[Any]]:
    kind, read, layout = draw(st.sampled_from(_FORMS))
    message, fields = kind.encode(), []
    for code, strategy in layout:
        value = draw(strategy)
        if code == "x":
            message += b"\0"
            continue
        message += value.encode() + b"\0" if code == "s" else struct.pack(">" + code, value)
        fields.append(value + pgoutput.POSTGRES_EPOCH_US if code == "q" else value)
    return read, message, fields


def _relation(draw: st.DrawFn) -> bytes:
    columns = draw(st.lists(st.tuples(_int8, _name, _int32), max_size=3))
    head = struct.pack(">I", draw(_int32)) + draw(_name).encode() + b"\0" + draw(_name).encode() + b"\0"
    head += draw(st.sampled_from([b"d", b"n", b"f", b"i"])) + struct.pack(">H", len(columns))
    return head + b"".join(
        bytes([flags]) + name.encode() + b"\0" + struct.pack(">Ii", oid, -1) for flags, name, oid in columns
    )


def _truncate(draw: st.DrawFn) -> bytes:
    oids = draw(st.lists(_int32, max_size=3))
    return struct.pack(f">IB{len(oids)}I", len(oids), draw(_int8), *oids)


def _message(draw: st.DrawFn) -> bytes:
    content = draw(st.binary(max_size=5))
    head = struct.pack(">BQ", draw(_int8), draw(_lsn)) + draw(_name).encode() + b"\0"
    return head + struct.pack(">I", len(content)) + content


_BODIES: list[tuple[bytes, Callable[[bytes, int], Any], Callable[[st.DrawFn], bytes]]] = [
    (b"R", pgoutput.relation, _relation),
    (b"T", pgoutput.truncate, _truncate),
    (b"M", pgoutput.message_, _message),
]


@st.composite
def _bodies(draw: st.DrawFn) -> tuple[Callable[[bytes, int], Any], bytes, bytes]:
    """Draw a message: its parser, its type and its body."""
    kind, read, body = draw(st.sampled_from(_BODIES))
    return read, kind, body(draw)


def _refused(read: Callable[[bytes], Any], message: bytes) -> None:
    with pytest.raises(DecodeError) as error:
        read(message)
    assert 0 <= error.value.offset <= max(len(message), 1)


def _cut(read: Callable[[bytes], Any], message: bytes) -> None:
    for size in range(1, len(message)):
        _refused(read, message[:size])
    _refused(read, message + b"\0")


@given(_messages())
@settings(max_examples=300, deadline=None)
def test_a_message_is_parsed_into_the_fields_it_was_built_from(
    drawn: tuple[Callable[[bytes], Any], bytes, list[Any]],
) -> None:
    read, message, fields = drawn
    made = read(message)
    assert [getattr(made, name) for name in made.__slots__] == fields
    _cut(read, message)


@given(_bodies(), st.binary(min_size=4, max_size=4))
@settings(max_examples=200, deadline=None)
def test_a_message_in_a_streamed_block_is_parsed_as_outside_of_it(
    drawn: tuple[Callable[[bytes, int], Any], bytes, bytes], xid: bytes
) -> None:
    read, kind, body = drawn
    outside = read(kind + body, 1)
    streamed = kind + xid + body
    whose, pos = pgoutput_stream.streamed(streamed)
    assert whose == int.from_bytes(xid, "big")
    assert read(streamed, pos) == outside
    _cut(lambda message: read(message, 1), kind + body)
    _cut(lambda message: read(message, pgoutput_stream.streamed(message)[1]), streamed)


def _at_1(drawn: tuple[Callable[[bytes, int], Any], bytes, bytes]) -> tuple[Callable[[bytes], Any], bytes]:
    read, kind, body = drawn
    return lambda message: read(message, 1), kind + body


@given(_messages().map(lambda drawn: drawn[:2]) | _bodies().map(_at_1), st.data())
@settings(max_examples=500, deadline=None)
def test_a_damaged_message_is_parsed_or_raises_a_decode_error(
    drawn: tuple[Callable[[bytes], Any], bytes], data: st.DataObject
) -> None:
    read, message = drawn
    damaged = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(_int8)
    try:
        made = read(bytes(damaged))
    except DecodeError:
        return
    assert isinstance(made, Relation) or type(made).__module__ in (pgoutput.__name__, pgoutput_stream.__name__)
