"""One entry of the registry of error codes, and the retry rules as data."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum

from tailrace.schemas.errors import TailraceError


class Retry(Enum):
    """The rule by which Tailrace retries after an error; the value describes it in words."""

    NEVER = "Not automatically."
    STANDBY = "The daemon waits as a standby until the slot is free."
    LOCKED = "The daemon tries again until it succeeds, at a first start as well."
    RESTART = (
        "The daemon tries again for as long as the fault lasts, after pauses of up to 5 s; before it has streamed, for"
        " `delivery.start_timeout_s`, then the error ends it, and systemd or the container's restart policy starts it"
        " again."
    )
    OUTAGE = (
        "The daemon keeps its slot and tries again for as long as the outage lasts; before it has streamed, for"
        " `delivery.start_timeout_s`, then the error ends it, and systemd or the container's restart policy starts it"
        " again."
    )
    BATCH = "`tailrace views follow` tries the view again after 5 s, later after up to 300 s; other commands end."
    ROUND = "`tailrace views follow` tries the view again in its next round; other commands end."


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """The static description of one code; the error itself has the names and numbers."""

    id: str
    error: type[TailraceError] | None
    """The class of the error; None for a warning or an HTTP answer."""
    title: str
    retry: Retry = Retry.NEVER
    parks_table: bool = False
    """The error is about one table: with ``source.on_table_error = "park"`` the others continue without it."""
    refill: bool = False
    """The topics lack changes or have wrong ones: `tailrace snapshot start --all --reconcile` repairs them."""
    _: KW_ONLY
    cause: str
    """The cause of the fault, and how to recognize it."""
    remedy: str
    """The remedy: commands, SQL, settings."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of a command that ends with this error; None if it has no class."""
        return None if self.error is None else self.error.exit_code

    @property
    def what_follows(self) -> str:
        """Tailrace's reaction to the error, in words: the retry rule, and whether a table is parked."""
        if not self.parks_table:
            return self.retry.value
        return (
            f"{self.retry.value} Only the table is parked, unless"
            ' `source.on_table_error = "stop"`; once the cause is removed, `tailrace table resume` reads it again. An'
            " error of the configuration file, found at a start, ends the daemon."
        )

    def to_dict(self) -> dict[str, str | int | bool | None]:
        """Return the entry for JSON; `retry` is the name of the rule in lower case."""
        return {
            "code": self.id,
            "title": self.title,
            "exit_code": self.exit_code,
            "error": None if self.error is None else self.error.__name__,
            "retry": self.retry.name.lower(),
            "parks_table": self.parks_table,
            "refill": self.refill,
            "cause": self.cause,
            "remedy": self.remedy,
            "what_follows": self.what_follows,
        }
