"""Parsers of single values: PostgreSQL's edge cases, and values that are refused."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.schemas.encode import values
from tailrace.schemas.encode.values import ValueRefused


@given(st.dates())
def test_a_date_is_parsed_into_days(date: datetime.date) -> None:
    assert values.date_days(date.isoformat().encode()) == (date - datetime.date(1970, 1, 1)).days


@given(st.datetimes())
def test_a_timestamp_is_parsed_into_microseconds(moment: datetime.datetime) -> None:
    text = moment.isoformat(sep=" ").encode()
    expected = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    assert values.timestamp_micros(text, False) == expected
    assert values.timestamp_micros(text + b"+00", True) == expected


@pytest.mark.parametrize(
    ("text", "days"),
    [
        (b"0001-12-31 BC", -719163),  # the day before 0001-01-01
        (b"4714-11-24 BC", -2440588),  # Julian day 0, the first date of PostgreSQL
        (b"5874897-12-31", 2145042905),  # its last
        (b"infinity", 2**31 - 1),
        (b"-infinity", -(2**31)),
    ],
)
def test_dates_at_the_limits_are_parsed(text: bytes, days: int) -> None:
    assert values.date_days(text) == days


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        (b"infinity", 2**63 - 1),
        (b"-infinity", -(2**63)),
        (b"294247-01-10 04:00:54.775806", 2**63 - 2),
        # expected values as PostgreSQL has them: extract(epoch from timestamp ...)
        (b"1970-01-01 00:00:00", 0),
        (b"1969-12-31 23:59:59.999999", -1),
        (b"0044-03-15 12:00:00 BC", -63517780800000000),
    ],
)
def test_timestamps_at_the_limits_are_parsed(text: bytes, micros: int) -> None:
    assert values.timestamp_micros(text, False) == micros


@pytest.mark.parametrize("text", [b"294247-01-10 04:00:54.775807", b"294276-12-31 23:59:59.999999"])
def test_a_timestamp_at_or_past_the_value_of_infinity_is_refused(text: bytes) -> None:
    with pytest.raises(ValueRefused):
        values.timestamp_micros(text, False)


def test_a_session_that_is_not_in_utc_is_noticed() -> None:
    with pytest.raises(ValueRefused, match="UTC"):
        values.timestamp_micros(b"2026-01-01 00:00:00+02", True)


def test_24_hours_and_one_microsecond_are_times() -> None:
    assert values.time_micros(b"24:00:00") == 86_400_000_000
    assert values.time_micros(b"00:00:00.000001") == 1


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=1 - 10**10, max_value=10**10 - 1))
def test_a_decimal_is_parsed_into_its_unscaled_bytes(number: Decimal) -> None:
    raw = values.decimal_bytes(f"{number:.4f}".encode(), 14, 4)
    assert Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-4) == number


@pytest.mark.parametrize(
    ("number", "size"), [("0", 1), ("127", 1), ("-128", 1), ("128", 2), ("-129", 2), ("32767", 2), ("-32768", 2)]
)
def test_a_decimal_has_no_superfluous_byte(number: str, size: int) -> None:
    assert len(values.decimal_bytes(number.encode(), 10, 0)) == size


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1.005", b"12345678901"])
def test_a_number_that_does_not_fit_the_decimal_is_refused(text: bytes) -> None:
    with pytest.raises(ValueRefused):
        values.decimal_bytes(text, 10, 2)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (b"{}", []),
        (b"{1,2}", [b"1", b"2"]),
        (b'{NULL,"NULL",""}', [None, b"NULL", b""]),
        (rb'{"a,b","say \"hi\"","back\\slash"}', [b"a,b", b'say "hi"', rb"back\slash"]),
        ('{"ä ö"}'.encode(), ["ä ö".encode()]),
    ],
)
def test_an_array_is_parsed_into_its_items(text: bytes, items: list[bytes | None]) -> None:
    assert values.array_items(text) == items


@pytest.mark.parametrize("text", [b"{{1,2},{3,4}}", b"[0:1]={1,2}", b"{1,2", b'{"a', b'{"a"b}'])
def test_an_array_other_than_of_one_dimension_is_refused(text: bytes) -> None:
    with pytest.raises(ValueRefused):
        values.array_items(text)


def test_an_hstore_is_parsed_into_its_pairs() -> None:
    text = rb'"a"=>"1", "b\"c"=>NULL, ""=>"x\\"'
    assert values.hstore_items(text) == [(b"a", b"1"), (b'b"c', None), (b"", b"x\\")]


@pytest.mark.parametrize("text", [b"9999999-01-01", b"9999999-01-01 BC", b"12345678-01-01", b"12345678-01-01 BC"])
def test_a_date_beyond_postgresqls_range_is_refused(text: bytes) -> None:
    """In compiled code larger years would overflow."""
    with pytest.raises(ValueRefused):
        values.date_days(text)
    with pytest.raises(ValueRefused):
        values.timestamp_micros(text.replace(b"-01-01", b"-01-01 00:00:00"), False)
