"""Values that other projects' tests insert, first Debezium's AbstractRecordsProducerTest.

They are facts, retyped. PostgreSQL decides the result, not Debezium. A column whose name ends with `_text` is sent
as text here: its value does not fit a decimal.
"""

from __future__ import annotations

from tests.support.random_tables import Plan, Row, Table

_POINT = "2016-11-04 13:51:30"

_DEBEZIUM: dict[str, list[tuple[str, str]]] = {
    "CASH": [("money", "$1234.11"), ("money", "($1234.11)")],
    "DATE_TIME": [
        *[("timestamp", text) for text in (f"{_POINT}.123456", "1936-10-25T22:10:12.608", "infinity", "-infinity")],
        ("timestamp(3)", f"{_POINT}.123456"),
        ("timestamp(6)", f"{_POINT}.123456"),
        *[("timestamp", text) for text in ("21016-11-04T13:51:30.123456", "294247-01-01T23:59:59.999999")],
        ("timestamp(3)", "21016-11-04T13:51:30.124"),
        ("timestamp", "4713-12-31T23:59:59.999999 BC"),
        ("timestamptz", f"{_POINT}.123456+02:00"),
        ("timestamptz", "21016-11-04T13:51:30.123456+07:00"),
        ("timestamptz", "294247-01-01T23:59:59.999999+00:00"),
        ("timestamptz", "4714-12-31T23:59:59.999999Z BC"),
        ("timestamptz", "infinity"),
        ("timestamptz", "-infinity"),
        *[("date", text) for text in ("2016-11-04", "infinity", "-infinity")],
        *[("time", text) for text in ("13:51:30", "24:00:00")],
        ("time(3)", "13:51:30.123"),
        ("timetz", "13:51:30.123789+02:00"),
        ("timetz(3)", "13:51:30.123+02:00"),
        ("interval", "P1Y2M3DT4H5M6.78S"),
    ],
    "BIN": [
        ("bytea", "\\001\\002\\003"),
        *[("bit(1)", text) for text in "01"],
        ("bit(2)", "11"),
        ("bit(7)", "1000000"),
        ("bit varying(2)", "00"),
        ("bit(24)", "000000110000001000000001"),
        ("bit varying(64)", "1" + 63 * "0"),
        *[("bit varying", text) for text in ("101", "111011010001000110000001000000001")],
    ],
    "BYTEA_BINMODE": [("bytea", "\\000\\001\\002"), ("bytea[]", '{"\\\\x000102","\\\\x030405"}')],
    "CIRCLE": [("circle", "((10, 20),10)")],
    "GEOM": [("point", "(1,1)")],
    "TEXT": [("json", '{"bar": "baz"}'), ("jsonb", '{"bar": "baz"}'), ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")],
    "STRING": [
        ("varchar(2)", "\u017e\u0161"),
        ("varchar(2)", "bb"),
        ("char(4)", "cdef"),
        ("char(3)", "abc"),
        ("text", "some text"),
        ("bytea", "\\003\\004\\005"),
        ("citext", "Hello World"),
    ],
    "NETWORK_ADDRESS": [("inet", "192.168.2.0/12")],
    "CIDR_NETWORK_ADDRESS": [("cidr", "192.168.100.128/25")],
    "MACADDR": [("macaddr", "08:00:2b:01:02:03")],
    "MACADDR8": [("macaddr8", "08:00:2b:01:02:03:04:05")],
    "NUMERIC": [
        ("smallint", "1"),
        ("integer", "123456"),
        ("bigint", "1234567890123"),
        *[("real", text) for text in ("3.3", "3", "NaN", "Infinity", "-Infinity")],
        *[("double precision", text) for text in ("4.44", "4", "NaN", "Infinity", "-Infinity")],
        ("boolean", "true"),
        ("oid", "4000000000"),
    ],
    "NUMERIC_DECIMAL": [
        *[("decimal(3,2)", text) for text in ("1.1", "3.30", "1")],
        *[("decimal(4)", text) for text in ("10.11", "10")],
        *[("decimal", text) for text in ("10.1111", "10", "NaN", "Infinity")],
        *[("numeric(6,4)", text) for text in ("22.22", "22")],
        *[("numeric(4)", text) for text in ("22.2", "22")],
        *[("numeric", text) for text in ("22.2222", "22", "NaN", "-Infinity")],
        *[(kind, "NaN _text") for kind in ("decimal(3,2)", "decimal(4)", "numeric(6,4)", "numeric(4)")],
    ],
    "RANGE": [
        ("tsrange", "[2019-03-31 15:30:00, infinity)"),
        ("tsrange", "[2019-03-31 15:30:00, 2019-04-30 15:30:00]"),
        ("tstzrange", "[2017-06-05 11:29:12.549426+00,)"),
        ("tstzrange", "[2017-06-05 11:29:12.549426+00, 2017-06-05 12:34:56.789012+00]"),
        *[("daterange", text) for text in ("[2019-03-31, infinity)", "[2019-03-31, 2019-04-30)")],
        *[("int4range", "[1000,6000)"), ("numrange", "[5.3,6.3)"), ("int8range", "[1000000,6000000)")],
    ],
    "ARRAY": [
        ("int[]", "{1,2,3}"),
        ("bigint[]", "{1550166368505037572}"),
        ("text[]", '{"one","two","three"}'),
        ("char(10)[]", '{"cone","ctwo","cthree"}'),
        ("varchar(10)[]", '{"vcone","vctwo","vcthree"}'),
        ("date[]", "{2016-11-04,2016-11-05,2016-11-06}"),
        ("numeric(10,2)[]", "{1.2,3.4,5.6}"),
        ("numeric[]", "{1.1,2.22,3.333}"),
        ("citext[]", '{"four","five","six"}'),
        ("inet[]", '{"192.168.2.0/12","192.168.1.1","192.168.0.2/1"}'),
        ("cidr[]", '{"192.168.100.128/25", "192.168.0.0/25", "192.168.1.0/24"}'),
        ("macaddr[]", '{"08:00:2b:01:02:03", "08-00-2b-01-02-03", "08002b:010203"}'),
        ("tsrange[]", '{"[2019-03-31 15:30:00, infinity)", "[2019-03-31 15:30:00, 2019-04-30 15:30:00]"}'),
        ("tstzrange[]", '{"[2017-06-05 11:29:12.549426+00,)"}'),
        ("daterange[]", '{"[2019-03-31, infinity)", "[2019-03-31, 2019-04-30)"}'),
        ("int4range[]", '{"[1,6)", "[1,4)"}'),
        ("numrange[]", '{"[5.3,6.3)", "[10.0,20.0)"}'),
        ("int8range[]", '{"[1000000,6000000)", "[5000,9000)"}'),
        ("uuid[]", '{"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "f0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}'),
        ("json[]", '{"{\\"bar\\": \\"baz\\"}","{\\"foo\\": \\"qux\\"}"}'),
        ("jsonb[]", '{"{\\"bar\\": \\"baz\\"}","{\\"foo\\": \\"qux\\"}"}'),
        ("oid[]", "{3,4000000000}"),
    ],
    "CUSTOM": [
        ("ltree", "Top.Collections.Pictures.Astronomy.Galaxies"),
        ("isbn", "978-0-393-04002-9"),
        ("ltree[]", '{"Ship.Frigate","Ship.Destroyer"}'),
    ],
    "HSTORE": [
        ("hstore", '"key" => "val"'),
        ("hstore", '"key1" => "val1","key2" => "val2","key3" => "val3"'),
        ("hstore", '"key1" => "val1","key2" => NULL'),
        ("hstore", '"key_#1" => "val 1","key 2" =>" ##123 78"'),
        ("hstore[]", '{"\\"key4\\" => \\"val4\\",\\"key5\\" => NULL","\\"key6\\" => \\"val6\\""}'),
    ],
}
"""The statement's name without INSERT and TYPES → (type, literal). XML and PostGIS are not in the wheel's server."""

_DIGITS = "1234567890" * 13_107
_PEERDB = {
    "Large_Numeric": [
        ("numeric", _DIGITS),
        ("numeric", f"-0.{'0' * 16_000}7"),
        ("numeric(1000,500)", f"{'9' * 500}.{'8' * 500}"),
        ("numeric(39,0)", "9" * 39),
        ("numeric(38,38)", f"0.{'9' * 38}"),
    ],
}

LITERALS = {f"debezium_{name}": values for name, values in _DEBEZIUM.items()} | {
    f"peerdb_{name}": values for name, values in _PEERDB.items()
}


def plan(statement: str) -> Plan:
    """Return the table of a statement: the values before the snapshot and after it, and a row of nulls."""
    columns, row = [("id", "bigint")], []
    for n, (kind, literal) in enumerate(LITERALS[statement]):
        value = literal.removesuffix(" _text")
        columns.append((f"c{n}" if value == literal else f"c{n}_text", kind))
        row.append(value)
    table = Table(f"literal_{statement.lower()}", columns, 1, full=False)
    nulls: Row = [None] * len(row)
    return Plan(table, [["0", *row]], [["1", *row], ["3", *nulls]], [])
