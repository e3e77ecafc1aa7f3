"""The text of a view's query, and errors that point into it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tailrace.schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query as written in ``[views.NAME]``.

    `asof_first`: its ASOF joins use the first version of a key for all earlier moments as well.
    """

    view: str
    sql: str
    asof_first: bool = False

    def error(self, code: str, message: str, at: exp.Expr | int | None = None, *, hint: str = "") -> ConfigError:
        """Return a ConfigError whose detail shows the line of `at` (a node, or an offset) with a caret below."""
        offset = at if isinstance(at, int) else offset_of(at)
        return ConfigError(
            code,
            f'view "{self.view}": {message}',
            detail="" if offset is None else self._pointer(offset),
            hint=hint or f"Change `query` of [views.{self.view}].",
        )

    def _pointer(self, offset: int) -> str:
        start = self.sql.rfind("\n", 0, offset) + 1
        line = self.sql[start:].split("\n", 1)[0]
        label = f"LINE {self.sql.count(chr(10), 0, offset) + 1}: "
        # Copy tabs, so that the caret is below the error.
        below = "".join("\t" if c == "\t" else " " for c in line[: offset - start])
        # In psql's format: two lines, the second with only the caret.
        return f"{label}{line}\n{' ' * len('DETAIL ' + label)}{below}^"


def offset_of(node: exp.Expr | None) -> int | None:
    """Return the offset of a node in its source text: the lowest known of itself and its parts, or None."""
    if node is None:
        return None
    found = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(found) if found else None
