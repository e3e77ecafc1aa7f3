"""Values that must not be read on the topic: masked, or replaced by a keyed hash.

Both take and give PostgreSQL's text as bytes, and are the same wherever a value is shown: on the topic, in a dead
letter, in `tailrace verify`.
"""

from __future__ import annotations

import hmac

from tailrace.schemas.types import Kind, ValueType

# An SQL_ASCII database may send what is no UTF-8; it is masked, too, and not refused with its value at hand.
_ERRORS = "surrogateescape"


def masked(text: bytes, keep: int) -> bytes:
    """Return `text` with ``*`` for each character but the last `keep`; for every one if it has no more than `keep`.

    Characters are Unicode's code points, as PostgreSQL's `char_length` counts them.
    """
    characters = text.decode(errors=_ERRORS)
    hidden = len(characters) - keep
    if hidden <= 0:
        hidden = len(characters)
    return b"*" * hidden + characters[hidden:].encode(errors=_ERRORS)


def hashed(text: bytes, salt: bytes) -> bytes:
    """Return the HMAC-SHA-256 of `text` under `salt` in hex. Equal texts give equal hashes, in whatever table."""
    return hmac.digest(salt, text, "sha256").hex().encode()


def hide(text: bytes, option: ValueType | None) -> bytes:
    """Return `text` as a column with `option` shows it."""
    if option is not None and option.kind is Kind.MASKED:
        return masked(text, option.keep)
    if option is not None and option.kind is Kind.HASHED:
        return hashed(text, option.salt)
    return text
