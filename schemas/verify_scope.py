"""The part of a view that `tailrace verify` compares: all of it, recent keys, a sample, or the staged generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from tailrace.schemas.lsn import format_lsn, parse_lsn


@dataclass(frozen=True, slots=True)
class Scope:
    """What is compared of a view with its topics.

    `since`: only keys whose newest record on the topic is after this LSN. `sample`: only this share of the keys, from 0
    to 1, chosen by a hash of the key, so that repeating it compares the same keys. `staged`: the staged generation
    instead of the live one.
    """

    since: int | None = None
    sample: float | None = None
    staged: bool = False

    @property
    def is_partial(self) -> bool:
        """Whether some keys are not compared."""
        return self.since is not None or self.sample is not None

    def arguments(self) -> list[str]:
        """Return the options of the Spark job for this scope."""
        return [
            *([] if self.since is None else [f"--since={format_lsn(self.since)}"]),
            *([] if self.sample is None else [f"--sample={self.sample!r}"]),
            *(["--staged"] if self.staged else []),
        ]

    def sentences(self) -> Iterator[str]:
        """Yield what was not compared, in words."""
        if self.since is not None:
            yield f"only keys whose newest record is after {format_lsn(self.since)}; all others were not compared"
        if self.sample is not None:
            yield f"a sample of {_percent(self.sample)} of the keys; {_percent(1 - self.sample)} were not compared"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; `not_compared` is the share of the keys that a sample leaves out."""
        return {
            "since": None if self.since is None else format_lsn(self.since),
            "sample": self.sample,
            "not_compared": None if self.sample is None else round(1 - self.sample, 6),
            "staged": self.staged,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        since = value["since"]
        return cls(None if since is None else parse_lsn(since), value["sample"], value["staged"])


WHOLE: Final = Scope()


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"
