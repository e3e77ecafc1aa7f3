"""Cursor over the bytes of one replication message, with bounds checks shared by all decoder modules."""

from __future__ import annotations

import struct

from tailrace.schemas.errors import DecodeError


class Reader:
    """Read a message starting at `pos`. Raises DecodeError with the offset for missing or malformed data."""

    def __init__(self, message: bytes, what: str, pos: int = 1) -> None:
        """`what` names the message in errors; the default `pos` skips its type byte."""
        self._message = message
        self._what = what
        self.pos = pos

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        self._need(layout.size)
        values = layout.unpack_from(self._message, self.pos)
        self.pos += layout.size
        return values

    def string(self) -> str:
        end = self._message.find(b"\0", self.pos)
        if end < 0:
            raise DecodeError(f"{self._what}'s string", self.pos, 1, 0)
        try:
            text = self._message[self.pos : end].decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"{self._what}'s string, not UTF-8", self.pos + error.start, 1, 0) from None
        self.pos = end + 1
        return text

    def no_flags(self) -> None:
        """Skip a byte of flags, none of which is defined. DecodeError if one is set: its meaning is unknown."""
        self._need(1)
        if self._message[self.pos]:
            raise DecodeError(f"{self._what}'s flags", self.pos, 0, 1)
        self.pos += 1

    def take(self, size: int) -> bytes:
        self._need(size)
        raw = self._message[self.pos : self.pos + size]
        self.pos += size
        return raw

    def end(self) -> None:
        """Raise DecodeError if bytes are left: a longer message belongs to another protocol version."""
        left = len(self._message) - self.pos
        if left:
            raise DecodeError(f"{self._what}'s end", min(self.pos, len(self._message)), 0, left)

    def _need(self, size: int) -> None:
        have = len(self._message) - self.pos
        if have < size:
            raise DecodeError(self._what, self.pos, size, max(have, 0))
