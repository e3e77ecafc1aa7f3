"""Bloom filter over table keys, so that rows without large values need no file access."""

from __future__ import annotations

from typing import Final

_BITS: Final = 1 << 23
_KEYS: Final = 1 << 20


class KeyFilter:
    """Bloom filter with 1 MiB of memory. With a million keys, one in eight lookups is a false positive."""

    def __init__(self) -> None:
        self._bits = bytearray(_BITS // 8)
        self._added = 0
        self._limit = _KEYS

    def settle(self) -> None:
        """Note that all existing keys have been added."""
        self._limit = max(_KEYS, 2 * self._added)

    @property
    def worn(self) -> bool:
        """Whether so many keys were added since, repeated and deleted ones included, that a rebuild is due."""
        return self._added >= self._limit

    def add(self, oid: int, key: bytes) -> None:
        bit = hash((oid, key)) % _BITS
        self._bits[bit >> 3] |= 1 << (bit & 7)
        self._added += 1

    def may_have(self, oid: int, key: bytes) -> bool:
        """Whether a key may have been added; False is certain."""
        bit = hash((oid, key)) % _BITS
        return bool(self._bits[bit >> 3] & (1 << (bit & 7)))
