"""Hide values: mask them or replace them by a keyed hash.

Both functions convert PostgreSQL's text as bytes, and give the same result wherever a value appears: on the topic, in a
dead letter, in `tailrace verify`.
"""

from __future__ import annotations

import hmac

from tailrace.schemas.types import Kind, ValueType

# An SQL_ASCII database may send bytes that are not UTF-8; they are masked, too, so that no error can show the value.
_ERRORS = "surrogateescape"


def masked(text: bytes, keep: int) -> bytes:
    """Return `text` with ``*`` for each character except the last `keep`.

    If it has at most `keep` characters, all are masked. Characters are Unicode code points, as in PostgreSQL's
    `char_length`.
    """
    characters = text.decode(errors=_ERRORS)
    hidden = len(characters) - keep
    if hidden <= 0:
        hidden = len(characters)
    return b"*" * hidden + characters[hidden:].encode(errors=_ERRORS)


def hashed(text: bytes, salt: bytes) -> bytes:
    """Return the HMAC-SHA-256 of `text` under `salt` in hex. Equal texts give equal hashes in all tables."""
    return hmac.digest(salt, text, "sha256").hex().encode()


def hide(text: bytes, option: ValueType | None) -> bytes:
    """Return `text` as hidden by a column's `option`."""
    if option is not None and option.kind is Kind.MASKED:
        return masked(text, option.keep)
    if option is not None and option.kind is Kind.HASHED:
        return hashed(text, option.salt)
    return text
