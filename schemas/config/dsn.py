"""Check libpq connection strings, and remove their secrets.

libpq's messages quote the text that libpq cannot parse, which may be a part of the password: none is passed on.
"""

from __future__ import annotations

import difflib
import re
from typing import Final
from urllib.parse import quote

HIDDEN: Final = "**********"

_ESCAPES: Final = (
    "In a URI, write the password with %25 for %, %40 for @, %2F for /, %3A for : and %20 for a space."
    " Or leave it out and use PGPASSWORD, ~/.pgpass or dsn_file"
)
_FORMS: Final = (
    'dsn = "postgresql://USER@HOST:5432/DATABASE" or dsn = "host=HOST port=5432 dbname=DATABASE user=USER";'
    " give the password in PGPASSWORD, ~/.pgpass or dsn_file"
)
_QUOTES: Final = (
    "In name=value pairs, quote a value that has spaces, and escape ' and \\: password='it\\'s'."
    " Or leave the password out and use PGPASSWORD, ~/.pgpass or dsn_file"
)
_URI: Final = re.compile(r"postgres(?:ql)?://")
_NUMBERS: Final = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)
_SECRET: Final = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"})
"""Parameters that libpq marks as secret, and keys that replace a password; file paths are not secret."""


class DsnError(ValueError):
    """Error: libpq cannot parse a connection string. Message and hint contain no part of it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def check(dsn: str) -> None:
    """Raise DsnError if libpq cannot parse `dsn`, or if an unescaped password spills into other parts."""
    from psycopg import ProgrammingError, conninfo

    if "\0" in dsn:
        raise DsnError("a connection string must not contain zero bytes", _FORMS)
    try:
        given = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items()}
    except (ProgrammingError, UnicodeError) as error:
        raise _unreadable(dsn, str(error)) from None
    is_uri = _URI.match(dsn) is not None
    # libpq reads "postgresql://u:p/w@h/db" as host u, port p, and "postgresql://u:p@w@h/db" as host w@h
    host, path = _host_and_path(dsn) if is_uri else ("", "")
    if host.count("@") > 1 or "@" in path:
        raise DsnError("an @ or / in the user or password is not escaped", _ESCAPES)
    if not all(port == "" or (port.isdecimal() and 0 < int(port) < 65536) for port in given.get("port", "").split(",")):
        raise DsnError("the port is not a number from 1 to 65535", _ESCAPES if is_uri else _FORMS)
    for name in _NUMBERS:
        if not re.fullmatch(r"\s*[-+]?\d*\s*", given.get(name, "")):
            raise DsnError(f"{name} is not a number", _FORMS)


def without_secrets(dsn: str) -> str:
    """Return a checked connection string as key/value pairs, its passwords as asterisks."""
    from psycopg import conninfo

    given = conninfo.conninfo_to_dict(dsn)
    shown = {name: HIDDEN if name in _SECRET else value for name, value in given.items()}
    return conninfo.make_conninfo("", **shown)


def _host_and_path(dsn: str) -> tuple[str, str]:
    """Return the part before the first slash, with the user, and the part after it, without parameters."""
    host, _, path = _URI.sub("", dsn, count=1).partition("/")
    return host, path.partition("?")[0]


def _unreadable(dsn: str, reason: str) -> DsnError:
    """Return an error in our own words for a libpq message, which quotes the connection string."""
    if not _URI.match(dsn) and re.match(r"\s*[A-Za-z][A-Za-z0-9+.-]*://", dsn):
        return DsnError("a connection URI begins with postgresql://", _FORMS)
    if reason.startswith(("invalid percent-encoded token", "forbidden value %00")):
        return DsnError("a % is not followed by a valid escape", _ESCAPES)
    if reason.startswith("unexpected spaces"):
        return DsnError("a space in the URI is not escaped", _ESCAPES)
    if unknown := re.match(r'invalid (?:connection option|URI query parameter):? "(.*)"', reason, re.S):
        # the name may be the rest of a password that was not quoted
        close = difflib.get_close_matches(unknown[1], _parameters(), n=1)
        meant = f'; did you mean "{close[0]}"?' if close else ""
        return DsnError(f"it has a parameter that libpq does not know{meant}", _ESCAPES if _URI.match(dsn) else _QUOTES)
    if reason.startswith(("missing key/value separator", "extra key/value separator")):
        return DsnError("a parameter after the ? is not name=value", _ESCAPES)
    if reason.startswith("unterminated quoted string"):
        return DsnError("a quoted value has no closing quote", _QUOTES)
    if _URI.match(dsn):
        return DsnError("it is not a valid connection URI", _ESCAPES)
    if "=" in dsn:
        return DsnError("it is not name=value pairs", _QUOTES)
    return DsnError("it is neither a URI nor name=value pairs", _FORMS)


def _parameters() -> list[str]:
    from psycopg import pq

    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


def secrets(dsn: str) -> list[str]:
    """Return the passwords of a checked connection string, plain, percent-encoded and with backslashes."""
    from psycopg import conninfo

    found = [str(value) for name, value in conninfo.conninfo_to_dict(dsn).items() if name in _SECRET]
    return [form for value in found for form in (value, quote(value, safe=""), quote(value), _escaped(value))]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")
