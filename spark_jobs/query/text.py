"""The text of a view's query, and errors that point into it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tailrace.schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QueryText:
    """A query as somebody wrote it in ``[views.NAME]``.

    `asof_first`: its ASOF joins take the first version of a key for all moments before that.
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
        # Below a tab stands a tab, so that the caret is where the fault is.
        below = "".join("\t" if c == "\t" else " " for c in line[: offset - start])
        # As psql prints it: two lines, the second only the caret.
        return f"{label}{line}\n{' ' * len('DETAIL ' + label)}{below}^"


def offset_of(node: exp.Expr | None) -> int | None:
    """Return where a node begins in the text it was parsed from: its first identifier, if it is not known itself."""
    if node is None:
        return None
    found = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    return min(found) if found else None
