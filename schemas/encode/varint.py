"""Avro's zigzag varints for interpreted code, from lookup tables for speed."""

from __future__ import annotations

_MASK = (1 << 14) - 1

_MORE = [bytes([(bits & 0x7F) | 0x80, bits >> 7 | 0x80]) for bits in range(_MASK + 1)]
"""14 bits, followed by others."""

_LAST = [bytes([bits]) if bits < 0x80 else bytes([(bits & 0x7F) | 0x80, bits >> 7]) for bits in range(_MASK + 1)]


def zigzag(number: int) -> bytes:
    """Return Avro's encoding of a 64-bit signed integer."""
    bits = number << 1 ^ number >> 63
    raw = b""
    while bits > _MASK:
        raw += _MORE[bits & _MASK]
        bits >>= 14
    return raw + _LAST[bits]
