"""Exceptions of an encoder for a row that cannot be stored exactly on its topic."""

from __future__ import annotations

from typing import Final

UNBOUNDED: Final = 2**62


class ColumnRefused(Exception):
    """A value of column number `index` cannot be stored exactly; `reason` does not contain the value."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class RecordTooLarge(ColumnRefused):
    """The record would have more than `limit` bytes; `index` is -1, because no single column is the cause."""

    def __init__(self, limit: int) -> None:
        super().__init__(-1, f"its record would have more than {limit} bytes")
        self.limit = limit
