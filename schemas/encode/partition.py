# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""The partition of a key, by murmur2 as in Kafka's Java producer, so that other producers agree."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING


@cython.ccall
@cython.exceptval(-1)
def partition_of(key: bytes, partitions: cython.uint) -> cython.Py_ssize_t:
    """Return the partition of a key, from 0 to `partitions` − 1."""
    if cython.compiled:
        return partition_at(cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(key)), len(key), partitions)
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    size = len(key)
    h = 0x9747B28C ^ size
    for k in _words(size // 4)(key):
        k = (k * m) & mask
        h = (h * m ^ (k ^ k >> 24) * m) & mask
    if size % 4:
        h = ((h ^ int.from_bytes(key[size - size % 4 :], "little")) * m) & mask
    h = ((h ^ h >> 13) * m) & mask
    return ((h ^ h >> 15) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=64)
def _words(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Return a function that unpacks `count` 32-bit words from a key."""
    return struct.Struct(f"<{count}I").unpack_from


@cython.cfunc
@cython.wraparound(False)
@cython.boundscheck(False)
@cython.exceptval(check=False)
def partition_at(key: cython.p_const_uchar, size: cython.Py_ssize_t, partitions: cython.uint) -> cython.Py_ssize_t:
    """Return the partition of the key of `size` bytes at a pointer, in compiled code."""
    m: cython.ulonglong = 0x5BD1E995
    mask: cython.ulonglong = 0xFFFFFFFF
    h: cython.ulonglong = 0x9747B28C ^ size
    k: cython.ulonglong
    i: cython.Py_ssize_t = 0
    while size - i >= 4:
        k = key[i] | key[i + 1] << 8 | key[i + 2] << 16
        k |= cython.cast(cython.ulonglong, key[i + 3]) << 24
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = ((h * m) & mask) ^ k
        i += 4
    if size - i == 3:
        h ^= key[i + 2] << 16
    if size - i >= 2:
        h ^= key[i + 1] << 8
    if size - i >= 1:
        h = ((h ^ key[i]) * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return (h & 0x7FFFFFFF) % partitions
