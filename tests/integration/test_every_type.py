"""Every type: fastavro reads from the topic the value that PostgreSQL reports, by snapshot and stream.

The server computes the expected values: units since an epoch, bytes of a float in hex, a type's own output.
"""

from __future__ import annotations

import io
import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import psycopg

from tailrace.cdc.dev.state import Servers
from tailrace.cdc.operations.tail import float_text
from tailrace.schemas.config.file import load
from tests.support.daemon import running, wait_for_state, write_config
from tests.support.topics import read_raw, schemas

_MICROS = "(CASE WHEN isfinite({0}) THEN (extract(epoch FROM {0}) * 1000000)::numeric(30)::text ELSE {0}::text END)"
_DAYS = "(CASE WHEN isfinite({0}) THEN ({0} - date '1970-01-01')::text ELSE {0}::text END)"
_OUTPUT = "format('%s', {0})"


def _double(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal)


def _with_infinity(bits: int) -> Callable[[str], int]:
    limits = {"infinity": 2 ** (bits - 1) - 1, "-infinity": -(2 ** (bits - 1))}
    return lambda text: limits[text] if text in limits else int(text)


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


# type → (values, SQL expression, meaning of its result, meaning of fastavro's value)
_Same = Callable[[Any], Any]
_as_is: _Same = lambda value: value  # noqa: E731
_TYPES: dict[str, tuple[list[str], str, _Same, _Same]] = {
    "smallint": (["-32768", "0", "32767"], "{0}::text", int, _as_is),
    "integer": (["-2147483648", "-1", "2147483647"], "{0}::text", int, _as_is),
    "bigint": (["-9223372036854775808", "63", "64", "9223372036854775807"], "{0}::text", int, _as_is),
    "oid": (["0", "4294967295"], "{0}::text", int, _as_is),
    "boolean": (["t", "f"], "{0}::int::text", lambda text: text == "1", _as_is),
    "real": (
        ["0.1", "-0", "3.4028235e38", "1e-45", "NaN", "Infinity", "-Infinity", "19.25", "16777217"],
        "encode(float4send({0}), 'hex')",
        _double,
        lambda value: struct.pack(">f", value),
    ),
    "double precision": (
        [
            "0.1",
            "-0",
            "0",
            "1.7976931348623157e308",
            "5e-324",
            "NaN",
            "Infinity",
            "-Infinity",
            "123456789.125",
            "999999999999999",
            "1e22",
            "0.30000000000000004",
            "-1234.5",
            "2.5e-7",
        ],
        "encode(float8send({0}), 'hex')",
        _double,
        lambda value: struct.pack(">d", value),
    ),
    "numeric(12,3)": (
        ["999999999.999", "-999999999.999", "0", "-0.001", "0.128", "-0.128", "32.768", "-32.769"],
        "({0} * 1000)::numeric(30)::text",
        int,
        _signed,
    ),
    "numeric(38,0)": (["9" * 38, "-" + "9" * 38, "1"], "{0}::text", int, _signed),
    "numeric": (["1e100", "-0.00000000000000000000001", "NaN", "Infinity", "12.340"], _OUTPUT, str, _as_is),
    "numeric(5,-2)": (["12300", "-100"], _OUTPUT, str, _as_is),
    "date": (
        [
            "1970-01-01",
            "4713-01-01 BC",
            "0001-12-31 BC",
            "0001-01-01",
            "5874897-12-31",
            "infinity",
            "-infinity",
            "2024-02-29",
            "1600-02-29",
            "1900-03-01",
            "12345-06-07",
        ],
        _DAYS,
        _with_infinity(32),
        _as_is,
    ),
    "time": (
        ["00:00:00", "23:59:59.999999", "24:00:00", "12:34:56.7"],
        _MICROS.replace("isfinite({0})", "true"),
        int,
        _as_is,
    ),
    "timestamp": (
        [
            "1970-01-01 00:00:00",
            "4713-01-01 00:00:00 BC",
            "294246-12-31 23:59:59.999999",
            "infinity",
            "-infinity",
            "1969-12-31 23:59:59.999999",
            "2024-02-29 12:34:56.7",
            "0001-12-31 23:59:59.5 BC",
        ],
        _MICROS,
        _with_infinity(64),
        _as_is,
    ),
    "timestamptz": (
        [
            "1970-01-01 00:00:00+00",
            "4713-01-01 00:00:00+00 BC",
            "2001-09-09 01:46:40.123456+05:45",
            "infinity",
            "294247-01-10 04:00:54.775806+00",
        ],
        _MICROS,
        _with_infinity(64),
        _as_is,
    ),
    "bytea": (["", "\\x00ff", "\\x" + "ab" * 3000], "encode({0}, 'hex')", str, lambda value: value.hex()),
    "text": (["", "é€\U0001f600", "tab\tnew\nline\\n\\N", "x" * 9000, '"', "\\.", "NULL"], _OUTPUT, str, _as_is),
    "varchar(5)": (["", "abcde"], _OUTPUT, str, _as_is),
    "char(5)": (["ab", "abcde"], _OUTPUT, str, _as_is),
    '"char"': (["a"], _OUTPUT, str, _as_is),
    "name": (["pg_class"], _OUTPUT, str, _as_is),
    "uuid": (["6f0f8a3e-0000-4000-8000-00000000000A"], _OUTPUT, str, _as_is),
    "json": (['{"a":  1.10, "a": 2}', "null"], _OUTPUT, str, _as_is),
    "jsonb": (['{"b": 1.10, "a": [1e400, null]}', '"\\u00e9"'], _OUTPUT, str, _as_is),
    "interval": (["1 year -2 days 03:04:05.6", "-00:00:01", "178000000 years"], _OUTPUT, str, _as_is),
    "timetz": (["12:34:56.789+05:45", "24:00:00-15:59"], _OUTPUT, str, _as_is),
    "money": (["-1234.56"], _OUTPUT, str, _as_is),
    "inet": (["192.168.0.1/24", "::1"], _OUTPUT, str, _as_is),
    "cidr": (["10.0.0.0/8"], _OUTPUT, str, _as_is),
    "macaddr8": (["08:00:2b:01:02:03:04:05"], _OUTPUT, str, _as_is),
    "bit(3)": (["101"], _OUTPUT, str, _as_is),
    "varbit": (["", "10101"], _OUTPUT, str, _as_is),
    "point": (["(0.1,-1e300)"], _OUTPUT, str, _as_is),
    "polygon": (["((0,0),(1,1),(1,0))"], _OUTPUT, str, _as_is),
    "int4range": (["[1,5)", "empty", "(,)"], _OUTPUT, str, _as_is),
    "tstzmultirange": (["{[2024-01-01 00:00:00+00,2024-01-02 00:00:00+00)}"], _OUTPUT, str, _as_is),
    "tsvector": (["'a':1 'b''c':2A"], _OUTPUT, str, _as_is),
    "pg_lsn": (["16/B374D848"], _OUTPUT, str, _as_is),
    "mood": (["sad", "so, so"], _OUTPUT, str, _as_is),
    "cents": (["12.34", "-0.01"], "({0} * 100)::numeric(30)::text", int, _signed),
    "pair": (['(1,"a b")'], _OUTPUT, str, _as_is),
    "integer[]": (["{}", "{1,NULL,-2147483648}"], "to_jsonb({0})::text", json.loads, _as_is),
    "text[]": (['{"a,b",NULL,"NULL","","\\"q\\\\"}'], "to_jsonb({0})::text", json.loads, _as_is),
    "boolean[]": (["{t,f,NULL}"], "to_jsonb({0})::text", json.loads, _as_is),
    "double precision[]": (["{0.1,-1e-300,5}"], "to_jsonb({0})::text", json.loads, _as_is),
    "numeric(10,3)[]": (
        ["{1.5,NULL,-0.001}"],
        "(SELECT jsonb_agg((v * 1000)::numeric(30)) FROM unnest({0}) AS v)::text",
        json.loads,
        lambda items: [None if item is None else _signed(item) for item in items],
    ),
    "date[]": (
        ["{1970-01-02,NULL,0001-01-01}"],
        "(SELECT jsonb_agg(v - date '1970-01-01') FROM unnest({0}) AS v)::text",
        json.loads,
        _as_is,
    ),
    "uuid[]": (["{6f0f8a3e-0000-4000-8000-000000000001}"], "to_jsonb({0})::text", json.loads, _as_is),
}


def test_every_type_reads_from_the_topic_as_the_server_reports_it(
    servers: Servers, database: str, prefix: str, tmp_path: Path
) -> None:
    path = write_config(tmp_path, database, servers.bootstrap, prefix)
    columns = {f"c{n}": kind for n, kind in enumerate(_TYPES)}
    with psycopg.connect(database, autocommit=True, options="-c timezone=UTC -c lc_monetary=C") as connection:
        connection.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'so, so'); CREATE TYPE pair AS (n int, t text);"
            "CREATE DOMAIN cents AS numeric(8,2)"
        )
        listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        connection.execute(f"CREATE TABLE v (id int PRIMARY KEY, {listed})".encode())
        rows = write_rows(connection, columns)
        with running(path):
            wait_for_state(load(path), connection)
            names = ", ".join(columns)
            connection.execute(f"INSERT INTO v SELECT id + {rows}, {names} FROM v".encode())
            wait_for_state(load(path), connection)
        expected = ask(connection, columns)
    found = read(servers.bootstrap, prefix, columns)
    assert found.keys() == expected.keys()
    assert len(found) == 2 * rows
    for key, row in expected.items():
        for name, kind in columns.items():
            assert found[key][name] == row[name], f"{kind} in row {key}"


def test_floats_are_printed_as_the_server_prints_them(database: str) -> None:
    """Every power of ten and of two, their neighbors, and random bits; `tailrace tail` prints them."""
    chance = random.Random(7)
    bits = [chance.getrandbits(64) for _ in range(2000)]
    doubles = [struct.unpack(">d", struct.pack(">Q", each))[0] for each in bits]
    doubles += [sign * value for n in range(-30, 31) for value in (10.0**n, 2.0**n, 1.2 * 10.0**n) for sign in (1, -1)]
    doubles += [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 123456.7, 1234567.8]
    with psycopg.connect(database) as connection:
        for single, kind in ((True, "float4"), (False, "float8")):
            values = [
                value for value in doubles if not (single and (1e-45 > abs(value) > 0 or 3e38 < abs(value) < math.inf))
            ]
            found = connection.execute(
                f"SELECT v::text, v::float8 FROM unnest(%s::{kind}[]) v".encode(), (values,)
            ).fetchall()
            assert [float_text(value, single=single) for _, value in found] == [text for text, _ in found]


def write_rows(connection: psycopg.Connection[Any], columns: dict[str, str]) -> int:
    """Insert each value of each type at least once, besides random ones, and nulls; return the row count."""
    pick = random.Random(5)
    longest = max(len(values) for values, *_ in _TYPES.values())
    for n in range(1, longest + 10):
        drawn = [
            values[n - 1] if n <= len(values) else pick.choice([*values, None])
            for values, *_ in (_TYPES[kind] for kind in columns.values())
        ]
        places = ", ".join(f"%s::text::{kind}" if kind != '"char"' else '%s::"char"' for kind in columns.values())
        connection.execute(f"INSERT INTO v VALUES ({n}, {places})".encode(), drawn)
    connection.execute(f"INSERT INTO v (id) VALUES ({longest + 10})".encode())
    return longest + 10


def ask(connection: psycopg.Connection[Any], columns: dict[str, str]) -> dict[int, dict[str, Any]]:
    """Return the server's own description of each value."""
    questions = [
        f"CASE WHEN {name} IS NOT NULL THEN {_TYPES[kind][1].format(name)} END" for name, kind in columns.items()
    ]
    cursor = connection.execute(f"SELECT id, {', '.join(questions)} FROM v".replace("%", "%%").encode(), ())
    return {
        row[0]: {
            name: None if answer is None else _TYPES[kind][2](answer)
            for (name, kind), answer in zip(columns.items(), row[1:], strict=True)
        }
        for row in cursor
    }


def read(bootstrap: str, prefix: str, columns: dict[str, str]) -> dict[int, dict[str, Any]]:
    """Read the topic with fastavro, without logical types: Python's dates cannot hold all values."""
    plain = {
        number: fastavro.parse_schema(without_logical_types(found))
        for number, found in schemas(bootstrap, prefix).items()
    }
    rows = {}
    for message in read_raw(bootstrap, f"{prefix}.public.v"):
        raw = message.value()
        value: Any = fastavro.schemaless_reader(io.BytesIO(raw[5:]), plain[int.from_bytes(raw[1:5], "big")], None)
        after = value["after"]
        rows[after["id"]] = {
            name: None if after[name] is None else _TYPES[kind][3](after[name]) for name, kind in columns.items()
        }
    return rows


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: without_logical_types(part) for name, part in schema.items() if not name.startswith("logicalType")
        }
    return [without_logical_types(part) for part in schema] if isinstance(schema, list) else schema
