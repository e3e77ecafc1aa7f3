"""Canonical form of a value from any side: equal values have equal forms, different values do not.

The form is PostgreSQL's text under the pinned settings (`schemas.types.RENDERING`). The source's text is not changed;
numbers from topics and views are rendered as PostgreSQL would. That is the inverse of the encoder and shares no code
with it, so a fault of the encoder is detected. Floats, arrays and maps are parsed on both sides, because equal values
may have several texts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Context, Decimal, Inexact
from functools import lru_cache
from typing import Any, Final

import orjson

from tailrace.snapshot.verify.value_kinds import Field, Form, Kind

Canon = str | None | list[Any] | dict[str, Any]
"""A value in canonical form; None is NULL."""

_EXACT: Final = Context(prec=80, traps=[Inexact])
_DATE_INFINITIES: Final = (-(1 << 31), (1 << 31) - 1)
_TIMESTAMP_INFINITIES: Final = (-(1 << 63), (1 << 63) - 1)
_MICROS_PER_DAY: Final = 86_400_000_000
_DAYS_PER_CYCLE: Final = 146_097  # of the Gregorian calendar: 400 years
_EPOCH: Final = date(1970, 1, 1).toordinal()


def row_of(fields: Sequence[Field], values: Mapping[str, Any]) -> list[Canon]:
    """Return a decoded record's values in canonical form; a field that its schema lacks is NULL."""
    return [from_avro(field.form, values.get(field.name)) for field in fields]


def packed(values: Sequence[Canon]) -> bytes:
    """Return the bytes of a row; they are equal only for equal rows."""
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)


def from_avro(form: Form, value: Any) -> Canon:
    """Return the canonical form of a value that was decoded `without_logical_types`."""
    if value is None:
        return None
    kind = form.kind
    if kind is Kind.TEXT:
        return str(value)
    if kind is Kind.TIMESTAMPTZ or kind is Kind.TIMESTAMP:
        return timestamp_text(value, "+00" if kind is Kind.TIMESTAMPTZ else "")
    if kind is Kind.DECIMAL:
        return decimal_text(int.from_bytes(value, "big", signed=True), form.scale)
    if kind is Kind.DATE:
        return date_text(value)
    if kind is Kind.BOOLEAN:
        return "t" if value else "f"
    if kind is Kind.TIME:
        return _clock_text(value)
    if kind is Kind.FLOAT or kind is Kind.DOUBLE:
        return repr(float(value))
    if kind is Kind.BYTES:
        return f"\\x{bytes(value).hex()}"
    if kind is Kind.MAP:
        return dict(value)
    if form.item is not None:
        return [from_avro(form.item, item) for item in value]
    return str(value)


def from_view(form: Form, value: Any) -> Canon:
    """Return the canonical form of a value from a view: numbers as on the topic, decimals as `Decimal`."""
    if value is None:
        return None
    kind = form.kind
    if kind is Kind.DECIMAL and isinstance(value, Decimal):
        return decimal_text(int(value.scaleb(form.scale, _EXACT)), form.scale)
    if kind is Kind.FLOAT:
        # a document holds the shortest decimal, which is a different double than the float
        return repr(struct.unpack("f", struct.pack("f", value))[0])
    if kind is Kind.ARRAY or kind is Kind.VECTOR:
        return [from_view(_item(form), item) for item in value]
    return from_avro(form, value)


def from_text(form: Form, text: str | None) -> Canon:
    """Return the canonical form of the source's text. Unexpected text is not changed and will differ."""
    if text is None:
        return None
    kind = form.kind
    if kind is Kind.DOUBLE or kind is Kind.FLOAT:
        return _float_text(text, single=kind is Kind.FLOAT)
    if kind is Kind.BYTES:
        return text if text.startswith("\\x") else f"\\x{text.lower()}"  # PostGIS prints bare hex
    if kind is Kind.ARRAY:
        items = _array_items(text)
        return text if items is None else [from_text(_item(form), item) for item in items]
    if kind is Kind.VECTOR:
        inside = text[1:-1]
        return [from_text(_item(form), item) for item in inside.split(",")] if inside else []
    if kind is Kind.MAP:
        return _map_items(text)
    return text


def decimal_text(unscaled: int, scale: int) -> str:
    """Return the text of a numeric(p,s) as in PostgreSQL: always with all digits of its scale."""
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    sign = "-" if unscaled < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def date_text(days: int) -> str:
    """Return the text of a date in days since 1970-01-01."""
    if days in _DATE_INFINITIES:
        return "infinity" if days > 0 else "-infinity"
    day, era = _day_text(days)
    return day + era


def timestamp_text(micros: int, zone: str) -> str:
    """Return the text of microseconds since 1970-01-01 00:00, with PostgreSQL's suffix `zone`."""
    if micros in _TIMESTAMP_INFINITIES:
        return "infinity" if micros > 0 else "-infinity"
    days, rest = divmod(micros, _MICROS_PER_DAY)
    day, era = _day_text(days)
    return f"{day} {_clock_text(rest)}{zone}{era}"


def _clock_text(micros: int) -> str:
    seconds, fraction = divmod(micros, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{clock}.{fraction:06}".rstrip("0") if fraction else clock


@lru_cache(maxsize=4096)
def _day_text(days: int) -> tuple[str, str]:
    """Return the day and, before year 1, the era; years outside of Python's range use 400-year cycles."""
    ordinal = days + _EPOCH
    cycles = 0 if 1 <= ordinal <= date.max.toordinal() else (ordinal - 1) // _DAYS_PER_CYCLE
    day = date.fromordinal(ordinal - cycles * _DAYS_PER_CYCLE)
    year = day.year + cycles * 400
    return f"{year if year > 0 else 1 - year:04}-{day.month:02}-{day.day:02}", "" if year > 0 else " BC"


def _float_text(text: str, *, single: bool) -> str:
    try:
        value = float(text)
        return repr(struct.unpack("f", struct.pack("f", value))[0] if single else value)
    except (ValueError, OverflowError):
        return text


def _item(form: Form) -> Form:
    assert form.item is not None
    return form.item


_ARRAY_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"|([^,{}"\\]+)', re.DOTALL)
_MAP_ITEM = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:NULL|"((?:[^"\\]|\\.)*)")(?:, |$)', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _array_items(text: str) -> list[str | None] | None:
    """Return the items of a one-dimensional array that starts at 1; None for any other array."""
    if text == "{}":
        return []
    items: list[str | None] = []
    pos = 1
    while text[:1] == "{":
        match = _ARRAY_ITEM.match(text, pos)
        if match is None:
            return None
        quoted, bare = match.groups()
        items.append(_ESCAPED.sub(r"\1", quoted) if quoted is not None else None if bare == "NULL" else bare)
        pos = match.end() + 1
        if text[match.end() :] == "}":
            return items
    return None


def _map_items(text: str) -> Canon:
    items: dict[str, Any] = {}
    pos = 0
    while pos < len(text):
        match = _MAP_ITEM.match(text, pos)
        if match is None:
            return text
        key, value = match.groups()
        items[_ESCAPED.sub(r"\1", key)] = None if value is None else _ESCAPED.sub(r"\1", value)
        pos = match.end()
    return items
