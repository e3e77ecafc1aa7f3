"""PostgreSQL is the oracle: texts that we render from numbers are equal to those that it prints."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.cdc.dev import postgres
from tailrace.cdc.dev.server import stop
from tailrace.cdc.postgres.connect import conninfo_for
from tailrace.snapshot.verify.canonical import date_text, decimal_text, from_avro, from_text, packed, timestamp_text
from tailrace.snapshot.verify.value_kinds import form_of

FIRST_DAY, LAST_DAY = -2_440_588, 2_145_031_948  # of PostgreSQL's dates: 4714-11-24 BC, 5874897-12-31
FIRST_MICRO, LAST_MICRO = -210_866_803_200_000_000, 9_223_371_331_199_999_999  # of its timestamps
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
STRINGS = form_of({"type": "array", "items": ["null", "string"]})
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection]:
    folder = tmp_path_factory.mktemp("postgres")
    for parent in [folder, *folder.parents][:3]:
        parent.chmod(0o755)  # the server does not run as root
    server = postgres.start(folder, None, None, lambda _: None)
    try:
        with psycopg.connect(conninfo_for(postgres.dsn(server)), autocommit=True) as connection:
            yield connection
    finally:
        stop(server)


def printed(connection: psycopg.Connection, query: str, values: list[object]) -> list[str | None]:
    rows = connection.execute(query.encode(), [values]).fetchall()
    return [row[0] for row in rows]


@quick
@given(days=st.lists(st.integers(FIRST_DAY, LAST_DAY), min_size=20))
def test_date_text_is_what_postgresql_prints(connection: psycopg.Connection, days: list[int]) -> None:
    query = "SELECT (date '1970-01-01' + day)::text FROM unnest(%s::int[]) WITH ORDINALITY t (day, n) ORDER BY n"
    assert [date_text(day) for day in days] == printed(connection, query, [*days])


@quick
@given(micros=st.lists(st.integers(FIRST_MICRO, LAST_MICRO) | st.integers(-(10**16), 10**16), min_size=20))
def test_timestamp_text_is_what_postgresql_prints(connection: psycopg.Connection, micros: list[int]) -> None:
    query = (
        "SELECT (timestamp '1970-01-01' + us / 86400000000 * interval '1 day'"
        " + us %% 86400000000 * interval '1 microsecond'){}"
        " FROM unnest(%s::int8[]) WITH ORDINALITY t (us, n) ORDER BY n"
    )
    plain = printed(connection, query.format("::text"), [*micros])
    assert [timestamp_text(us, "") for us in micros] == plain
    zoned = printed(connection, query.format("::timestamptz::text"), [*micros])
    assert [timestamp_text(us, "+00") for us in micros] == zoned


@quick
@given(unscaled=st.lists(st.integers(-(10**12) + 1, 10**12 - 1), min_size=20), scale=st.integers(0, 12))
def test_decimal_text_is_what_postgresql_prints(
    connection: psycopg.Connection, unscaled: list[int], scale: int
) -> None:
    query = (
        f"SELECT (u / 1e{scale})::numeric(12,{scale})::text"
        " FROM unnest(%s::numeric[]) WITH ORDINALITY t (u, n) ORDER BY n"
    )
    assert [decimal_text(number, scale) for number in unscaled] == printed(connection, query, [*unscaled])


@quick
@given(floats=st.lists(st.floats() | st.floats(width=32), min_size=20))
def test_a_float_is_equal_from_postgresql_text_and_from_avro(
    connection: psycopg.Connection, floats: list[float]
) -> None:
    for avro, name in (("double", "float8"), ("float", "float4")):
        fitting = [each for each in floats if avro == "double" or each == 0 or not 0 < abs(each) < 1e-37]
        fitting = [each for each in fitting if avro == "double" or not 3e38 < abs(each) < float("inf")]
        query = f"SELECT u::{name}::text FROM unnest(%s::float8[]) WITH ORDINALITY t (u, n) ORDER BY n"
        form = form_of(avro)
        stored = [_single(each) for each in fitting] if avro == "float" else fitting
        assert [from_text(form, text) for text in printed(connection, query, [*fitting])] == [
            from_avro(form, each) for each in stored
        ]


def _single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


@quick
@given(items=st.lists(st.none() | TEXT | st.sampled_from(["NULL", "null", "", "{", '"', "\\", ",", " "])))
def test_an_array_is_equal_from_postgresql_text_and_from_avro(
    connection: psycopg.Connection, items: list[str | None]
) -> None:
    row = connection.execute("SELECT %s::text[]::text", [items]).fetchone()
    assert row is not None
    assert packed([from_text(STRINGS, row[0])]) == packed([from_avro(STRINGS, items)])
