"""The capture set: which tables the patterns of ``source.tables`` take, whatever a publication has besides.

The patterns decide by the name of a table as the WAL shows it, that is as of the change: under
publish_via_partition_root a partition has the name of its root. Nothing is asked of the server here.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence


def taken(name: str, patterns: Iterable[str]) -> bool:
    """Return whether `patterns` take a name: the last one that fits decides."""
    return (pattern := deciding(name, patterns)) is not None and not pattern.startswith("!")


def deciding(name: str, patterns: Iterable[str]) -> str | None:
    """Return the pattern that decides about a name: the last one that fits, None if none does."""
    found = None
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!")):
            found = pattern
    return found


class CaptureSet:
    """The tables that `patterns` take."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)

    def captures(self, schema: str, table: str) -> bool:
        """Return whether the changes and rows of a table may leave this process."""
        return taken(f"{schema}.{table}", self.patterns)
