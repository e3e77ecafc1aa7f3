"""WAL addresses and positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schemas.lsn import Position, format_lsn, parse_lsn

_U64 = st.integers(0, 2**64 - 1)
_POSITIONS = st.builds(Position, st.integers(0, 2**32 - 1), _U64, _U64)


def test_an_lsn_has_the_form_that_postgresql_prints() -> None:
    assert format_lsn(0x16B3748) == "0/16B3748"
    assert parse_lsn("7A/3F2C10") == 0x7A003F2C10


@pytest.mark.parametrize(
    "text",
    ["", "16B3748", "0/", "/0", "0/123456789", "x/0", "+0/1", "0/-1", " 0/1", "0/1\n", "0/0x1", "1_0/0", "٠/١"],
)
def test_a_malformed_lsn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)


@given(_U64)
def test_an_lsn_is_formatted_and_parsed_unchanged(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@given(_POSITIONS, _POSITIONS)
def test_byte_order_is_position_order(one: Position, other: Position) -> None:
    assert Position.from_bytes(one.to_bytes()) == one
    assert (one < other) == (one.to_bytes() < other.to_bytes())
