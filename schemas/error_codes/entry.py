"""One entry of the registry of error codes, and the retry rules as data."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum

from schemas.errors import TailraceError


class Retry(Enum):
    """Whether Tailrace tries again by itself; the value is the rule in words."""

    NEVER = "Not by itself."
    STANDBY = "The daemon waits as a standby until the slot is free."
    LOCKED = "The daemon tries again until it succeeds, at a first start as well."
    RESTART = (
        "The daemon tries again for as long as the fault lasts, after pauses of up to 5 s, if it has streamed before;"
        " at a first start the error ends it."
    )
    OUTAGE = (
        "The daemon keeps its slot and tries again for as long as the outage lasts, if it has streamed before; at a"
        " first start the error ends it."
    )
    BATCH = "`tailrace views follow` tries the view again after 5 s, later after up to 300 s; other commands end."
    ROUND = "`tailrace views follow` tries the view again in its next round; other commands end."


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """What is known of one code in advance; the error itself has the names and the numbers."""

    id: str
    error: type[TailraceError] | None
    """The class of the error; None for a warning and for an answer over HTTP."""
    title: str
    retry: Retry = Retry.NEVER
    parks_table: bool = False
    """The error is about one table: with ``source.on_table_error = "park"`` the others continue without it."""
    refill: bool = False
    """The topics lack changes or have others: `tailrace snapshot start --all --reconcile` makes them right again."""
    _: KW_ONLY
    cause: str
    """How the fault comes about, and how to see it."""
    remedy: str
    """What to do: commands, SQL, settings."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of a command that this error ends."""
        return None if self.error is None else self.error.exit_code
