"""Random tables and rows, with every type of PostgreSQL 18 and of the extensions in its wheel.

A value is drawn as a literal, as one would write it between quotes. The server may print it differently.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

ROWS = 4
"""Number of rows in a table before the snapshot, and of rows inserted after it."""

Row = list[str | None]

SETUP = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree; CREATE EXTENSION isn; CREATE EXTENSION cube;
CREATE EXTENSION seg; CREATE EXTENSION vector;
CREATE TYPE mood AS ENUM ('sad', 'so, so', '"{}"', '');
CREATE TYPE "Date" AS ENUM ('a date by name only');
CREATE TYPE pair AS (n int, t text);
CREATE TYPE float_range AS RANGE (subtype = float8);
CREATE DOMAIN cents AS numeric(8,2);
CREATE DOMAIN small_cents AS cents CHECK (VALUE < 100);
CREATE DOMAIN numbers AS int[];
CREATE SCHEMA odd;
CREATE TYPE odd.date AS ENUM ('2024-01-01', 'never');
CREATE TYPE odd.int4 AS (a int)
"""

Literals = st.SearchStrategy[str]

_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20) | st.sampled_from(
    ["", "NULL", "null", "\\N", "\\.", "{}", '"', "\t", "\n", "\\", "'", ",", " ", "x" * 3000, "é" * 5, "t", "f"]
)
_digits = st.text("0123456789", min_size=1, max_size=12)
_floats = st.floats(allow_subnormal=True).map(lambda n: "NaN" if math.isnan(n) else repr(n))
_singles = st.floats(width=32).map(lambda n: "NaN" if math.isnan(n) else repr(n))
_plain_floats = st.floats(-1e6, 1e6).map(repr)


def _decimals(precision: int, scale: int) -> Literals:
    unscaled = st.integers(-(10**precision) + 1, 10**precision - 1) | st.integers(-99, 99)
    return unscaled.map(lambda n: f"{n}e-{scale}")


def _bits(low: int, high: int) -> Literals:
    return st.text("01", min_size=low, max_size=high)


_days = st.integers(-2_440_588, 2_145_031_948) | st.integers(-800_000, 100_000)


def _day(days: int) -> str:
    """Format any date of PostgreSQL's range as it reads it; the calendar repeats every 400 years."""
    cycles = (days + 719_162) // 146_097
    inside = date(1, 1, 1) + timedelta(days=days + 719_162 - cycles * 146_097)
    year = inside.year + 400 * cycles
    return f"{year if year > 0 else 1 - year:04}-{inside:%m-%d}" + ("" if year > 0 else " BC")


_dates = _days.map(_day) | st.sampled_from(["infinity", "-infinity", "epoch"])
_near_dates = st.dates().map(str)
_clocks = st.tuples(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999_999)).map(
    lambda t: f"{t[0]:02}:{t[1]:02}:{t[2]:02}.{t[3]:06}"
) | st.sampled_from(["24:00:00", "00:00:00", "12:00:00.5"])
_zones = st.sampled_from(["+00", "+05:45", "-15:59", "+15:59:59", "-00:00:01"])


def _stamp(parts: tuple[str, str, str]) -> str:
    day, clock, zone = parts
    if day in ("infinity", "-infinity", "epoch"):
        return day
    plain, era = (day.removesuffix(" BC"), " BC" if day.endswith(" BC") else "")
    return f"{plain} {clock}{zone}{era}"


_stamp_days = (
    st.integers(-2_440_000, 106_751_000).map(_day) | _near_dates | st.sampled_from(["infinity", "-infinity", "epoch"])
)
_stamps = st.tuples(_stamp_days, _clocks, st.just("")).map(_stamp)
_zoned = st.tuples(_stamp_days, _clocks, _zones).map(_stamp)
_intervals = st.tuples(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.integers(-(10**15), 10**15)).map(
    lambda t: f"{t[0]} months {t[1]} days {t[2]} microseconds"
)
_json_text = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
).map(json.dumps)
# jsonb cannot hold a zero character, nor half of a surrogate pair
_hstore = st.dictionaries(_text.filter(lambda key: len(key) < 100), st.none() | _text, max_size=4).map(
    lambda pairs: ", ".join(
        f"{_quoted(key)}=>{'NULL' if value is None else _quoted(value)}" for key, value in pairs.items()
    )
)
_points = st.tuples(_plain_floats, _plain_floats).map(lambda p: f"({p[0]},{p[1]})")
_paths = st.lists(_points, min_size=1, max_size=4).map(",".join)
_inet = st.ip_addresses().map(str)
_words = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _ranges(bounds: st.SearchStrategy[Any], text: Any = str) -> Literals:
    def written(drawn: tuple[Any, Any, str, str]) -> str:
        low, high = sorted(drawn[:2])
        return f"{drawn[2]}{_quoted(text(low))},{_quoted(text(high))}{drawn[3]}"

    drawn = st.tuples(bounds, bounds, st.sampled_from("[("), st.sampled_from("])"))
    return drawn.map(written) | st.sampled_from(["empty", "(,)"])


_int4s = st.integers(-(2**31), 2**31 - 2)
_int8s = st.integers(-(2**63), 2**63 - 1)
_near = st.dates(date(1000, 1, 1), date(3000, 1, 1))

TYPES: dict[str, Literals] = {
    "smallint": st.integers(-(2**15), 2**15 - 1).map(str),
    "integer": st.integers(-(2**31), 2**31 - 1).map(str),
    "bigint": _int8s.map(str),
    "oid": st.integers(0, 2**32 - 1).map(str),
    "boolean": st.sampled_from(["t", "f"]),
    "real": _singles,
    "double precision": _floats,
    "numeric": st.decimals(-(10**30), 10**30).map(str)
    | st.sampled_from(["NaN", "Infinity", "-Infinity", "1e500", "-1e-400", "0.000", "100.00"]),
    "numeric(12,3)": _decimals(12, 3),
    "numeric(38,10)": _decimals(38, 10),
    "numeric(38,0)": _decimals(38, 0),
    "numeric(2,2)": _decimals(2, 2),
    "numeric(60,5)": _decimals(60, 5),
    "numeric(5,-2)": st.integers(-99_999, 99_999).map(lambda n: f"{n}00"),
    "numeric(3,5)": st.integers(-999, 999).map(lambda n: f"{n}e-5"),
    "money": st.integers(-(2**60), 2**60).map(lambda cents: f"{cents / 100:.2f}"),
    "date": _dates,
    "time": _clocks,
    "time(2)": _clocks,
    "timetz": st.tuples(_clocks, _zones).map("".join),
    "timestamp": _stamps,
    "timestamp(0)": _stamps,
    "timestamptz": _zoned,
    "timestamptz(3)": _zoned,
    "interval": _intervals,
    "interval day to second(1)": _intervals,
    "bytea": st.binary(max_size=60).map(lambda raw: "\\x" + raw.hex()),
    "text": _text,
    "varchar": _text,
    "varchar(7)": _text.map(lambda text: text[:7]),
    "char(5)": _text.map(lambda text: text[:5]),
    '"char"': st.sampled_from(["a", "", "\\", "é", "\t", "\\377"]),
    "name": _text.map(lambda text: text[:10]),
    "citext": _text,
    "uuid": st.uuids().map(str),
    "json": _json_text,
    "jsonb": _json_text.map(lambda text: text.replace("\\u0000", "")),
    "jsonpath": _words.map(lambda word: f"$.{word} ? (@ > 1)"),
    "inet": _inet,
    "cidr": _inet,
    "macaddr": st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":")),
    "macaddr8": st.binary(min_size=8, max_size=8).map(lambda raw: raw.hex(":")),
    "bit(1)": _bits(1, 1),
    "bit(11)": _bits(11, 11),
    "varbit": _bits(0, 70),
    "varbit(9)": _bits(0, 9),
    "point": _points,
    "line": st.integers(1, 99).map(lambda n: f"{{{n},1,2.5}}"),
    "lseg": st.tuples(_points, _points).map(lambda ends: f"[{ends[0]},{ends[1]}]"),
    "box": st.tuples(_points, _points).map(",".join),
    "path": _paths.map(lambda path: f"[{path}]") | _paths.map(lambda path: f"({path})"),
    "polygon": _paths.map(lambda path: f"({path})"),
    "circle": _points.map(lambda point: f"<{point},2.5>"),
    "int4range": _ranges(_int4s),
    "int8range": _ranges(st.integers(-(2**62), 2**62)),
    "numrange": _ranges(st.decimals(-(10**9), 10**9, places=3)),
    "daterange": _ranges(_near),
    "tsrange": _ranges(_near),
    "tstzrange": _ranges(_near),
    "float_range": _ranges(st.floats(-1e9, 1e9), repr),
    "int4multirange": st.lists(_ranges(_int4s), max_size=3).map(lambda ranges: "{" + ",".join(ranges) + "}"),
    "datemultirange": st.lists(_ranges(_near), max_size=3).map(lambda ranges: "{" + ",".join(ranges) + "}"),
    "tsvector": st.lists(st.tuples(_words, st.integers(1, 99)), max_size=4).map(
        lambda found: " ".join(f"{word}:{at}A" for word, at in found)
    ),
    "tsquery": st.lists(_words, min_size=1, max_size=3).map(" & !".join),
    "pg_lsn": st.integers(0, 2**64 - 1).map(lambda lsn: f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"),
    "xid8": st.integers(0, 2**63).map(str),
    "pg_snapshot": st.integers(5, 2**31).map(lambda xid: f"{xid}:{xid + 9}:{xid + 3}"),
    "regtype": st.sampled_from(["integer", "timestamp with time zone", "text[]"]),
    "int2vector": st.lists(st.integers(-9, 9), max_size=4).map(lambda items: " ".join(map(str, items))),
    "hstore": _hstore,
    "ltree": st.lists(_words, max_size=4).map(".".join),
    "lquery": st.lists(_words, min_size=1, max_size=3).map(lambda labels: ".".join([*labels, "*"])),
    "isbn": st.sampled_from(["978-0-393-04002-9", "0-306-40615-2"]),
    "cube": st.lists(_plain_floats, min_size=1, max_size=3).map(lambda at: f"({', '.join(at)})"),
    "seg": st.tuples(st.integers(-99, 0), st.integers(1, 99)).map(lambda ends: f"{ends[0]} .. {ends[1]}"),
    "vector(3)": st.lists(_plain_floats, min_size=3, max_size=3).map(lambda at: f"[{','.join(at)}]"),
    "vector": st.lists(_plain_floats, min_size=1, max_size=9).map(lambda at: f"[{','.join(at)}]"),
    "halfvec(2)": st.tuples(st.integers(-99, 99), st.integers(-99, 99)).map(lambda at: f"[{at[0]},{at[1]}]"),
    "mood": st.sampled_from(["sad", "so, so", '"{}"', ""]),
    '"Date"': st.just("a date by name only"),
    "odd.date": st.sampled_from(["2024-01-01", "never"]),
    "odd.int4": st.just("(5)"),
    "pair": st.tuples(st.integers(-9, 9), _text).map(lambda pair: f"({pair[0]},{_quoted(pair[1])})"),
    "cents": _decimals(8, 2),
    "small_cents": st.integers(-500_000, 9_999).map(lambda n: f"{n}e-2"),
    "numbers": st.lists(st.integers(-9, 9), max_size=5).map(lambda items: "{" + ",".join(map(str, items)) + "}"),
}
"""Type → literals that it accepts, all of which can be exact on a topic."""

_KEYS = ["bigint", "text", "varchar(7)", "uuid", "numeric(12,3)", "date", "timestamptz", "boolean", "mood", "inet"]
_KEYS += ["citext", "bytea", "char(5)", "double precision", "numeric", "cents", "macaddr", "time", "oid", "ltree"]
_NAMES = ["a", "B", "with space", 'a"quote', "dot.ted", "ünïcode", "per%cent", "back\\slash", "select", "1st", "a_b"]


@dataclass(frozen=True)
class Table:
    """A table whose `columns` are (name, type), first `id`; the first `key` columns are the key."""

    name: str
    columns: list[tuple[str, str]]
    key: int
    full: bool

    def create(self) -> str:
        """Return the statement that creates it."""
        listed = ", ".join(f"{quote(name)} {kind}" for name, kind in self.columns)
        key = ", ".join(quote(name) for name, _ in self.columns[: self.key])
        made = f"CREATE TABLE {self.name} ({listed}, PRIMARY KEY ({key}))"
        return made + (f"; ALTER TABLE {self.name} REPLICA IDENTITY FULL" if self.full else "")


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, repr=False)
class Plan:
    """A table, its rows before the snapshot, its streamed rows, and updates: (id, column, literal)."""

    table: Table
    before: list[Row]
    after: list[Row]
    updates: list[tuple[int, str, str]]


def plans(number: int, seed_: int) -> list[Plan]:
    """Draw `number` tables that together have every type, and an array of each."""
    kinds = [*TYPES, *(f"{kind}[]" for kind in TYPES)]
    return [_plan(_plans(f"t{n}", kinds[n::number]), seed_ + n) for n in range(number)]


def _plan(strategy: st.SearchStrategy[Plan], seed_: int) -> Plan:
    """Draw one plan: the last of three, because Hypothesis draws the simplest first."""
    found: list[Plan] = []

    @seed(seed_)
    @settings(max_examples=3, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(plan: Plan) -> None:
        found.append(plan)

    collect()
    return found[-1]


@st.composite
def _plans(draw: st.DrawFn, name: str, kinds: list[str]) -> Plan:
    keys = draw(st.lists(st.sampled_from(_KEYS), max_size=2))
    columns = [(f"{draw(st.sampled_from(_NAMES))}{n}", kind) for n, kind in enumerate([*keys, *kinds])]
    table = Table(name, [("id", "bigint"), *columns], 1 + len(keys), draw(st.booleans()))
    updates = []
    for n in range(0, 2 * ROWS, 2):
        column, kind = draw(st.sampled_from(columns))
        updates.append((n, column, draw(_literals(kind))))
    made = [_row(draw, table, n) for n in range(2 * ROWS)]
    return Plan(table, made[:ROWS], made[ROWS:], updates)


def _row(draw: st.DrawFn, table: Table, number: int) -> Row:
    row: Row = [str(number)]
    for n, (_, kind) in enumerate(table.columns[1:], 1):
        null = n >= table.key and draw(st.integers(0, 5)) == 0
        row.append(None if null else draw(_literals(kind)))
    return row


def _literals(kind: str) -> Literals:
    if kind.endswith("[]"):
        items = TYPES[kind[:-2]]
        return st.lists(st.none() | items, max_size=4).map(lambda drawn: _array(drawn, ";" if kind == "box[]" else ","))
    return TYPES[kind]


def _array(items: list[str | None], delimiter: str) -> str:
    return "{" + delimiter.join("NULL" if item is None else _quoted(item) for item in items) + "}"
