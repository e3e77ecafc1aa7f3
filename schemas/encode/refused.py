"""What an encoder raises when a row cannot go to its topic as it is."""

from __future__ import annotations

from typing import Final

UNBOUNDED: Final = 2**62


class ColumnRefused(Exception):
    """A value of column number `index` cannot be stored exactly; `reason` says why, without the value."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class RecordTooLarge(ColumnRefused):
    """The record would have more than `limit` bytes; no one column is to blame, and `index` is -1."""

    def __init__(self, limit: int) -> None:
        super().__init__(-1, f"its record would have more than {limit} bytes")
        self.limit = limit
