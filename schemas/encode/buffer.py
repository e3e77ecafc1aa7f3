# mypy: disable-error-code="untyped-decorator,no-any-return,name-defined,valid-type"
"""Growable byte buffer, to which the encoder appends and from which it copies keys and values.

Compiled by Cython where possible, like `row_codec`: then it writes through a pointer into memory that it reuses from
row to row. Its C signatures are in buffer.pxd.
"""

from __future__ import annotations

import struct

try:
    import cython
except ModuleNotFoundError:
    from tailrace.schemas.encode import cython_shim as cython

from tailrace.schemas.encode.refused import UNBOUNDED, RecordTooLarge

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy
else:
    from tailrace.schemas.encode.varint import zigzag

_pack_double = struct.Struct("<d").pack
_SMALL = cython.declare(cython.Py_ssize_t, 1_048_576)


@cython.final
@cython.cclass
class Buffer:
    """A growing sequence of at most `most` bytes. `clear` releases memory above 1 MiB.

    If not compiled, the limit holds only where the encoder checks it.
    """

    def __init__(self, most: int = UNBOUNDED) -> None:
        self.data = bytearray()
        self.most = most
        self.room = 0
        self.size = 0
        if cython.compiled:
            self.at = cython.NULL

    @cython.cfunc
    @cython.exceptval(-1)
    def clear(self) -> cython.int:
        """Remove all bytes."""
        if cython.compiled:
            self.size = 0
            if self.room > _SMALL:
                self.room = 0
                PyByteArray_Resize(self.data, 0)
        else:
            self.data.clear()
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def end(self) -> cython.Py_ssize_t:
        """Return the number of bytes."""
        return self.size if cython.compiled else len(self.data)

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, more: cython.Py_ssize_t) -> cython.int:
        """Make room for `more` bytes, in compiled code only. RecordTooLarge beyond `most` bytes."""
        if self.size + more > self.room:
            if self.size + more > self.most:
                raise RecordTooLarge(self.most)
            self.room = 2 * self.room + more + 256
            PyByteArray_Resize(self.data, self.room)
            self.at = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.data))
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_byte(self, value: cython.int) -> cython.int:
        """Append one byte."""
        if cython.compiled:
            self.reserve(1)
            self.at[self.size] = value
            self.size += 1
        else:
            self.data.append(value)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_long(self, number: cython.longlong) -> cython.int:
        """Append a 64-bit integer as Avro's zigzag varint."""
        if cython.compiled:
            rest: cython.ulonglong = (number << 1) ^ (number >> 63)
            self.reserve(10)
            while rest > 0x7F:
                self.at[self.size] = (rest & 0x7F) | 0x80
                self.size += 1
                rest >>= 7
            self.at[self.size] = rest
            self.size += 1
        else:
            # as C converts an unsigned number: for an LSN, though none is that large
            self.data += zigzag(number - 2**64 if number > 2**63 - 1 else number)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_digits(self, number: cython.ulonglong) -> cython.int:
        """Append a number as decimal digits."""
        if cython.compiled:
            i = cython.declare(cython.int)
            digits: cython.int = digits_of(number)
            self.reserve(digits)
            for i in range(digits):
                self.at[self.size + digits - 1 - i] = 48 + number % 10
                number //= 10
            self.size += digits
        else:
            self.data += b"%d" % number
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_double(self, number: cython.double) -> cython.int:
        """Append an IEEE 754 double, little-endian."""
        if cython.compiled:
            i = cython.declare(cython.int)
            bits = cython.declare(cython.ulonglong)
            memcpy(cython.address(bits), cython.address(number), 8)
            self.reserve(8)
            for i in range(8):
                self.at[self.size + i] = (bits >> (8 * i)) & 0xFF
            self.size += 8
        else:
            self.data += _pack_double(number)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_be64(self, number: cython.ulonglong) -> cython.int:
        """Append an unsigned 64-bit integer, big-endian."""
        if cython.compiled:
            i = cython.declare(cython.int)
            self.reserve(8)
            for i in range(8):
                self.at[self.size + i] = (number >> (56 - 8 * i)) & 0xFF
            self.size += 8
        else:
            self.data += number.to_bytes(8, "big")
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put(self, text: bytes, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """Append text[start:end]; the caller has checked the bounds."""
        if cython.compiled:
            self.reserve(end - start)
            memcpy(self.at + self.size, PyBytes_AS_STRING(text) + start, end - start)
            self.size += end - start
        else:
            self.data += text[start:end]
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put_all(self, raw: bytes) -> cython.int:
        """Append all of `raw`."""
        return self.put(raw, 0, len(raw))

    @cython.cfunc
    @cython.exceptval(-1)
    def put_from(self, other: Buffer, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        """Append other[start:end]; the caller has checked the bounds."""
        if cython.compiled:
            self.reserve(end - start)
            memcpy(self.at + self.size, other.at + start, end - start)
            self.size += end - start
        else:
            self.data += other.data[start:end]
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def byte_at(self, i: cython.Py_ssize_t) -> cython.int:
        """Return the byte at `i`; the caller has checked the bounds."""
        return self.at[i] if cython.compiled else self.data[i]

    @cython.cfunc
    def whole(self) -> bytes:
        """Return a copy of all bytes."""
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.at), self.size)
        return bytes(self.data)


@cython.cfunc
@cython.exceptval(check=False)
def digits_of(number: cython.ulonglong) -> cython.int:
    """Return the number of decimal digits of a number."""
    digits: cython.int = 1
    while number > 9:
        number //= 10
        digits += 1
    return digits
