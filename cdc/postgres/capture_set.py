"""Capture set: the tables that match `source.tables`, whatever else a publication has.

The patterns are matched with a table's name in the WAL, that is, as of the change. Under publish_via_partition_root a
partition has the name of its root. Nothing here queries the server.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from tailrace.schemas.errors import ConfigError


def taken(name: str, patterns: Iterable[str]) -> bool:
    """Return whether `patterns` include a name: the last matching pattern decides."""
    return (pattern := deciding(name, patterns)) is not None and not pattern.startswith("!")


def deciding(name: str, patterns: Iterable[str]) -> str | None:
    """Return the pattern that decides about a name, which is the last matching one; None if none matches."""
    found = None
    for pattern in patterns:
        if fnmatch.fnmatchcase(name, pattern.removeprefix("!")):
            found = pattern
    return found


def broken(pattern: str) -> str | None:
    """Return the reason why a table pattern is invalid; None for a valid one."""
    bare = pattern.removeprefix("!")
    if not bare.strip():
        return "it is empty"
    if "." not in bare and bare != "*":
        return "it has no dot between schema and table"
    at = bare.find("[")
    while at >= 0:
        # like fnmatch: a ] that is the first character of a set does not end it
        end = bare.find("]", at + (3 if bare[at + 1 : at + 2] == "!" else 2))
        if end < 0:
            return "its [ has no ]; a bracket in a name is written [[]"
        at = bare.find("[", end)
    return None


class CaptureSet:
    """The tables that match `patterns`."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)

    def captures(self, schema: str, table: str) -> bool:
        """Return whether the changes and rows of a table may leave this process."""
        return taken(f"{schema}.{table}", self.patterns)

    def check(self, names: Sequence[str]) -> None:
        """Raise ConfigError (TR-127) for invalid patterns, with the nearest of all table `names`."""
        reasons = [f'"{pattern}": {reason}' for pattern in self.patterns if (reason := broken(pattern))]
        if reasons:
            wrong = [pattern for pattern in self.patterns if broken(pattern)]
            raise ConfigError(
                "TR-127",
                f"source.tables has invalid patterns: {_patterns(wrong)}",
                detail=f"{'; '.join(reasons)}. {_nearest(wrong, names)}",
                hint=_HINT,
            )

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that match none of `names`."""
        names = list(names)
        return [each for each in self.patterns if not any(deciding(name, (each,)) for name in names)]

    def refuse_unmatched(self, names: Sequence[str]) -> None:
        """Raise ConfigError (TR-120) at a first start for patterns without a table, which would be missed."""
        wrong = [pattern for pattern in self.unmatched(names) if not pattern.startswith("!")]
        if wrong:
            raise ConfigError(
                "TR-120",
                f"no table matches {_patterns(wrong)} of source.tables",
                detail=_nearest(wrong, names),
                hint=_HINT,
            )


_HINT = 'Patterns are "schema.table" with * and ?, for example tables = ["public.*", "!public.audit_*"].'


def _patterns(patterns: Sequence[str]) -> str:
    return ", ".join(f'"{pattern}"' for pattern in patterns)


def _nearest(patterns: Sequence[str], names: Sequence[str]) -> str:
    if not names:
        return "The database has no tables."
    nearest = (difflib.get_close_matches(pattern.strip("!*"), names, n=3, cutoff=0) for pattern in patterns)
    return f"Nearest table names: {', '.join(dict.fromkeys(name for found in nearest for name in found))}."
