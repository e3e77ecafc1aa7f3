# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Where the newest record of each key is, for millions of keys: some 40 bytes for each, and its bytes.

Compiled only, like `rows`. Keys are compared, not only their hashes.
"""

from __future__ import annotations

import secrets

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcmp, memcpy, memset

NOWHERE = cython.declare(cython.longlong, -1)
"""The place of a key that was deleted, or is unknown."""

_FIRST_KEYS = cython.declare(cython.Py_ssize_t, 4096)


class TooManyKeys(Exception):
    """The keys need more memory than they may have."""


@cython.final
@cython.cclass
class KeyTable:
    """Places by key, in at most about `most_bytes`.

    `entries` are the end of each key in `keys` and its place, `slots` an open-addressed hash table of entry numbers
    from 1 on, at most two thirds full.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.seed = secrets.randbits(64)
        self.count = self.keys_size = self.keys_room = self.entries_room = self.slots_room = 0
        self.keys, self.entries, self.slots = bytearray(), bytearray(), bytearray()
        if cython.compiled:
            self.key_at = cython.NULL
            self.entry_at = cython.NULL
            self.slot_at = cython.NULL

    def set(self, key: bytes, place: int) -> int:
        """Set the place of a key, and return the place before. TooManyKeys if there is no room for it."""
        if cython.compiled:
            return self.put(cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(key)), len(key), place)
        raise NotImplementedError

    @cython.cfunc
    @cython.exceptval(-2)
    def put(self, key: cython.p_const_uchar, size: cython.Py_ssize_t, place: cython.longlong) -> cython.longlong:
        """As `set`, for a key in memory."""
        if cython.compiled:
            self.grow(size)
            mask: cython.Py_ssize_t = self.slots_room - 1
            slot: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.hash_of(key, size)) & mask
            entry: cython.Py_ssize_t
            start: cython.longlong
            before: cython.longlong
            while self.slot_at[slot] != 0:
                entry = self.slot_at[slot] - 1
                start = self.entry_at[2 * entry - 2] if entry > 0 else 0
                if self.entry_at[2 * entry] - start == size and memcmp(self.key_at + start, key, size) == 0:
                    before = self.entry_at[2 * entry + 1]
                    self.entry_at[2 * entry + 1] = place
                    return before
                slot = (slot + 1) & mask
            memcpy(self.key_at + self.keys_size, key, size)
            self.keys_size += size
            self.entry_at[2 * self.count] = self.keys_size
            self.entry_at[2 * self.count + 1] = place
            self.count += 1
            self.slot_at[slot] = cython.cast(cython.int, self.count)
        return NOWHERE

    @cython.cfunc
    @cython.exceptval(-1)
    def grow(self, size: cython.Py_ssize_t) -> cython.int:
        """Make room for one more key of a size."""
        if cython.compiled:
            if self.keys_size + size > self.keys_room:
                self.keys_room = 2 * self.keys_room + size + 16 * _FIRST_KEYS
                PyByteArray_Resize(self.keys, self.keys_room)
                self.key_at = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.keys))
            if self.count == self.entries_room:
                self.entries_room = 2 * self.entries_room + _FIRST_KEYS
                PyByteArray_Resize(self.entries, 16 * self.entries_room)
                self.entry_at = cython.cast(cython.p_longlong, PyByteArray_AS_STRING(self.entries))
            if 3 * (self.count + 1) > 2 * self.slots_room:
                self.slots_room = max(2 * self.slots_room, 2 * _FIRST_KEYS)
                PyByteArray_Resize(self.slots, 4 * self.slots_room)
                self.slot_at = cython.cast(cython.p_int, PyByteArray_AS_STRING(self.slots))
                memset(self.slot_at, 0, 4 * self.slots_room)
                entry: cython.Py_ssize_t
                for entry in range(self.count):
                    self.index(entry)
            if self.keys_room + 16 * self.entries_room + 4 * self.slots_room > self.most_bytes or self.count > 2**30:
                raise TooManyKeys
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def index(self, entry: cython.Py_ssize_t) -> cython.int:
        """Put an entry into the slots, which have none with its key."""
        if cython.compiled:
            start: cython.longlong = self.entry_at[2 * entry - 2] if entry > 0 else 0
            mask: cython.Py_ssize_t = self.slots_room - 1
            slot: cython.Py_ssize_t = (
                cython.cast(cython.Py_ssize_t, self.hash_of(self.key_at + start, self.entry_at[2 * entry] - start))
                & mask
            )
            while self.slot_at[slot] != 0:
                slot = (slot + 1) & mask
            self.slot_at[slot] = cython.cast(cython.int, entry + 1)
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def hash_of(self, key: cython.p_const_uchar, size: cython.Py_ssize_t) -> cython.ulonglong:
        """Return FNV-1a with a seed, and MurmurHash3's last step, which spreads it over the low bits."""
        found: cython.ulonglong = self.seed
        if cython.compiled:
            i: cython.Py_ssize_t
            for i in range(size):
                found = (found ^ key[i]) * cython.cast(cython.ulonglong, 0x100000001B3)
            found = (found ^ (found >> 33)) * cython.cast(cython.ulonglong, 0xFF51AFD7ED558CCD)
            found ^= found >> 33
        return found
