# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Parse single values from PostgreSQL's text, under the pinned settings, to Avro's exact values.

Compiled by Cython where possible, like `schemas.encode.row_codec`. A value that the target type cannot hold raises
`ValueRefused` with the reason but without the value, which must not reach a log.
"""

from __future__ import annotations

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

DATE_INFINITY = 2**31 - 1
DATE_MINUS_INFINITY = -(2**31)
TIMESTAMP_INFINITY = 2**63 - 1
TIMESTAMP_MINUS_INFINITY = -(2**63)
"""PostgreSQL's binary values of the infinities; no finite value may be equal to one."""


class ValueRefused(ValueError):
    """The value cannot be stored exactly; the text is the reason."""


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def _number(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Parse the decimal digits text[start:end]; the caller has checked the bounds."""
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    digit: cython.int
    if end <= start or end - start > 18:
        raise ValueRefused("not a number in PostgreSQL's output format")
    for i in range(start, end):
        digit = text[i] - 48
        if digit < 0 or digit > 9:
            raise ValueRefused("not a number in PostgreSQL's output format")
        value = value * 10 + digit
    return value


@cython.cfunc
@cython.exceptval(check=False)
def _civil_days(year: cython.longlong, month: cython.longlong, day: cython.longlong) -> cython.longlong:
    """Return the days since 1970-01-01 of a date in the proleptic Gregorian calendar; year 0 is 1 BC.

    Counted from 0000-03-01 in eras of 400 years, so that a leap day is the last day of its year.
    """
    y: cython.longlong = year - 1 if month <= 2 else year
    era: cython.longlong = y // 400
    of_era: cython.longlong = y - era * 400
    of_year: cython.longlong = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def _days(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t, before_christ: cython.bint) -> cython.longlong:
    """Parse ``YYYY-MM-DD`` in text[start:end]; the year has four to seven digits."""
    dash: cython.Py_ssize_t = end - 6
    # PostgreSQL's years have at most seven digits; longer ones could overflow below
    if dash - start < 4 or dash - start > 7 or text[dash] != 45 or text[dash + 3] != 45:
        raise ValueRefused("not a date in PostgreSQL's output format")
    year: cython.longlong = _number(text, start, dash)
    if before_christ:
        year = 1 - year
    return _civil_days(year, _number(text, dash + 1, dash + 3), _number(text, dash + 4, dash + 6))


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def time_at(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Return the microseconds of ``HH:MM:SS`` in text[start:end], with up to six fractional digits."""
    fraction: cython.longlong = 0
    digits: cython.Py_ssize_t = 0
    if end - start < 8 or text[start + 2] != 58 or text[start + 5] != 58:
        raise ValueRefused("not a time in PostgreSQL's output format")
    if end - start > 8:
        digits = end - start - 9
        if text[start + 8] != 46 or digits > 6:
            raise ValueRefused("not a time in PostgreSQL's output format")
        fraction = _number(text, start + 9, end)
        for _ in range(6 - digits):
            fraction *= 10
    seconds: cython.longlong = (
        _number(text, start, start + 2) * 3600
        + _number(text, start + 3, start + 5) * 60
        + _number(text, start + 6, start + 8)
    )
    return seconds * 1_000_000 + fraction


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(check=False)
def _is_before_christ(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    return end - start > 3 and text[end - 1] == 67 and text[end - 2] == 66 and text[end - 3] == 32


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def date_at(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.longlong:
    """Return the days since 1970-01-01 of the date text[start:end]."""
    if end - start > 7 and text[end - 1] == 121:  # y
        return _infinity(text[start:end], DATE_INFINITY, DATE_MINUS_INFINITY)
    before_christ: cython.bint = _is_before_christ(text, start, end)
    days: cython.longlong = _days(text, start, end - 3 if before_christ else end, before_christ)
    if days >= 2147483647 or days <= -2147483648:  # the values of the infinities
        raise ValueRefused("a date out of PostgreSQL's range")
    return days


@cython.cfunc
def _infinity(text: bytes, plus: cython.longlong, minus: cython.longlong) -> cython.longlong:
    if text == b"infinity":
        return plus
    if text == b"-infinity":
        return minus
    raise ValueRefused("neither a finite nor an infinite value in PostgreSQL's output format")


@cython.cfunc
@cython.boundscheck(False)
@cython.wraparound(False)
@cython.exceptval(-1)
def timestamp_at(text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t, zoned: cython.bint) -> cython.longlong:
    """Return the microseconds since 1970-01-01 00:00 of the timestamp text[start:end].

    `zoned` text ends with +00, because the session's time zone is UTC.
    """
    if end - start > 7 and text[end - 1] == 121:  # y
        return _infinity(text[start:end], TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY)
    before_christ: cython.bint = _is_before_christ(text, start, end)
    if before_christ:
        end -= 3
    if zoned:
        if end - start < 3 or text[end - 3] != 43 or text[end - 2] != 48 or text[end - 1] != 48:
            raise ValueRefused("its time zone is not +00: the session's timezone is not UTC")
        end -= 3
    space: cython.Py_ssize_t = start
    while space < end and text[space] != 32:
        space += 1
    days: cython.longlong = _days(text, start, space, before_christ)
    clock: cython.longlong = time_at(text, space + 1, end)
    # 294247-01-10 04:00:54.775807 is the value of infinity; only the last day can reach it
    if days > 106751991 or (days == 106751991 and clock >= 14454775807):
        raise ValueRefused("later than 294247-01-10 04:00:54.775806, the maximum of timestamp-micros")
    if days < -106751991:
        raise ValueRefused("a timestamp out of PostgreSQL's range")
    return days * 86_400_000_000 + clock


def date_days(text: bytes) -> int:
    """Return the days since 1970-01-01 of a date."""
    return date_at(text, 0, len(text))


def time_micros(text: bytes) -> int:
    """Return the microseconds since midnight of a time; 24:00:00 is 86 400 000 000."""
    return time_at(text, 0, len(text))


def timestamp_micros(text: bytes, zoned: bool) -> int:
    """Return the microseconds since 1970-01-01 00:00 of a timestamp; `zoned` text ends with +00 (UTC)."""
    return timestamp_at(text, 0, len(text), zoned)


def decimal_bytes(text: bytes, precision: int, scale: int) -> bytes:
    """Return the unscaled value of a numeric(precision, scale): shortest big-endian two's complement."""
    negative = text.startswith(b"-")
    whole, _, fraction = (text[1:] if negative else text).partition(b".")
    if not whole.isdigit() or (fraction and not fraction.isdigit()):
        raise ValueRefused("NaN and infinity are no decimals")
    if len(fraction) > scale:
        raise ValueRefused(f"more than {scale} digits after the decimal point")
    unscaled = int(whole + fraction + b"0" * (scale - len(fraction)))
    if unscaled >= 10**precision:
        raise ValueRefused(f"more than {precision} digits")
    if negative:
        unscaled = -unscaled
    bits = (~unscaled if unscaled < 0 else unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)


def array_items(text: bytes) -> list[bytes | None]:
    """Split ``{a,"b,c",NULL}``. ValueRefused for several dimensions, or bounds that do not start at 1."""
    if not text.startswith(b"{"):
        raise ValueRefused("an array whose bounds do not start at 1")
    items: list[bytes | None] = []
    pos: cython.Py_ssize_t = 1
    end: cython.Py_ssize_t = len(text) - 1
    if end < 1 or text[end] != 125:
        raise ValueRefused("not an array in PostgreSQL's output format")
    while pos < end:
        if text[pos] == 123:
            raise ValueRefused("an array of more than one dimension")
        if text[pos] == 34:
            item, pos = _quoted(text, pos + 1, end)
            items.append(item)
        else:
            stop: cython.Py_ssize_t = text.find(b",", pos, end)
            if stop < 0:
                stop = end
            bare = text[pos:stop]
            items.append(None if bare == b"NULL" else bare)
            pos = stop
        if pos < end and text[pos] != 44:
            raise ValueRefused("not an array in PostgreSQL's output format")
        pos += 1
    return items


def hstore_items(text: bytes) -> list[tuple[bytes, bytes | None]]:
    """Split ``"key"=>"value", "key"=>NULL``."""
    items: list[tuple[bytes, bytes | None]] = []
    pos: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(text)
    value: bytes | None
    while pos < end:
        if text[pos] != 34:
            raise ValueRefused("not an hstore in PostgreSQL's output format")
        key, pos = _quoted(text, pos + 1, end)
        if text[pos : pos + 6] == b"=>NULL":
            value, pos = None, pos + 6
        elif text[pos : pos + 3] == b'=>"':
            value, pos = _quoted(text, pos + 3, end)
        else:
            raise ValueRefused("not an hstore in PostgreSQL's output format")
        items.append((key, value))
        if pos < end and text[pos : pos + 2] != b", ":
            raise ValueRefused("not an hstore in PostgreSQL's output format")
        pos += 2
    return items


@cython.cfunc
def _quoted(text: bytes, pos: cython.Py_ssize_t, end: cython.Py_ssize_t) -> tuple[bytes, int]:
    """Parse up to the closing quote; a backslash makes the next byte literal."""
    parts = bytearray()
    while True:
        quote: cython.Py_ssize_t = text.find(b'"', pos, end)
        if quote < 0:
            raise ValueRefused("a quote is not closed")
        escape: cython.Py_ssize_t = text.find(b"\\", pos, quote)
        if escape < 0:
            parts += text[pos:quote]
            return bytes(parts), quote + 1
        parts += text[pos:escape]
        if escape + 1 >= end:
            raise ValueRefused("a quote is not closed")
        parts.append(text[escape + 1])
        pos = escape + 2
