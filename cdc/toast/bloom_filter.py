"""A Bloom filter over the keys of tables, so that rows without large values cost no look into a file."""

from __future__ import annotations

from typing import Final

_BITS: Final = 1 << 23
_KEYS: Final = 1 << 20


class KeyFilter:
    """Memory: 1 MiB. With a million keys in it, one no in eight comes out as a yes."""

    def __init__(self) -> None:
        self._bits = bytearray(_BITS // 8)
        self._added = 0
        self._limit = _KEYS

    def settle(self) -> None:
        """Say that all keys there are have been added."""
        self._limit = max(_KEYS, 2 * self._added)

    @property
    def worn(self) -> bool:
        """Whether so many were added since, many of them again or gone by now, that it had better be made anew."""
        return self._added >= self._limit

    def add(self, oid: int, key: bytes) -> None:
        bit = hash((oid, key)) % _BITS
        self._bits[bit >> 3] |= 1 << (bit & 7)
        self._added += 1

    def may_have(self, oid: int, key: bytes) -> bool:
        """Whether a key may have been added; a no is certain."""
        bit = hash((oid, key)) % _BITS
        return bool(self._bits[bit >> 3] & (1 << (bit & 7)))
