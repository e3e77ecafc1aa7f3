"""The capture set: which tables the patterns of ``source.tables`` take, whatever a publication has besides.

The patterns decide by the name of a table as the WAL shows it, that is as of the change: under
publish_via_partition_root a partition has the name of its root. Nothing is asked of the server here.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence

from tailrace.schemas.errors import ConfigError


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


def broken(pattern: str) -> str | None:
    """Return why a pattern can be none of tables; None for one that can."""
    bare = pattern.removeprefix("!")
    if not bare.strip():
        return "it is empty"
    if "." not in bare and bare != "*":
        return "it has no dot between schema and table"
    at = bare.find("[")
    while at >= 0:
        # as fnmatch reads it: the first character of a set may be the bracket that ends others
        end = bare.find("]", at + (3 if bare[at + 1 : at + 2] == "!" else 2))
        if end < 0:
            return "its [ has no ]; a bracket in a name is written [[]"
        at = bare.find("[", end)
    return None


class CaptureSet:
    """The tables that `patterns` take."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)

    def captures(self, schema: str, table: str) -> bool:
        """Return whether the changes and rows of a table may leave this process."""
        return taken(f"{schema}.{table}", self.patterns)

    def check(self, names: Sequence[str]) -> None:
        """Refuse patterns that are none (TR-127); `names` are those of the tables there are, to show the nearest."""
        reasons = [f'"{pattern}": {reason}' for pattern in self.patterns if (reason := broken(pattern))]
        if reasons:
            wrong = [pattern for pattern in self.patterns if broken(pattern)]
            raise ConfigError(
                "TR-127",
                f"source.tables has {_patterns(wrong)} that cannot be used",
                detail=f"{'; '.join(reasons)}. {_nearest(wrong, names)}",
                hint=_HINT,
            )

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that fit none of `names`."""
        names = list(names)
        return [each for each in self.patterns if not any(deciding(name, (each,)) for name in names)]

    def refuse_unmatched(self, names: Sequence[str]) -> None:
        """Refuse a first start with patterns that fit no table: what they are meant for would not be captured."""
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
    return f"The nearest names of tables: {', '.join(dict.fromkeys(name for found in nearest for name in found))}."
